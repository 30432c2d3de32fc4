"""One engine step on paper: what was chosen to run, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from twin.serving.request import Request


class StepPlan:
    """The streams that decode, the prompt chunks that ride along, and the KV that moves to or from the host."""

    __slots__ = (
        "cancelled", "context_tokens", "decode", "k", "prefill", "prefill_context_tokens", "prefill_tokens",
        "transfer_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.cancelled: Sequence[Request] = ()
        self.decode: Sequence[Request] = ()
        self.k = 0
        self.context_tokens = 0.0  # mean over the decoding streams
        self.prefill: list[tuple[Request, int]] = []
        self.prefill_tokens = 0
        self.prefill_context_tokens = 0.0  # tokens already in the KV before a chunk, mean weighted by chunk
        self.transfer_tokens = 0

    @property
    def rows(self) -> int:
        """Verified tokens in the step."""
        return len(self.decode) * (self.k + 1)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run."""
        return not self.decode and not self.prefill and not self.transfer_tokens


class StepOutcome:
    """What a step did. `kept[i]` tokens went to `plan.decode[i]`; `started` got one token out of their prefill."""

    __slots__ = ("finished", "gaps", "handed_off", "kept", "started", "tokens")

    def __init__(self) -> None:
        self.finished: list[Request] = []
        self.started: list[Request] = []
        self.handed_off: list[Request] = []  # prefill role: ready to be sent to a decode replica
        self.kept: list[int] = []  # only when the scheduler was told to record it
        self.gaps: list[tuple[float, int]] = []  # (seconds since a stream's previous tokens, how many streams)
        self.tokens = 0  # output tokens given to clients
