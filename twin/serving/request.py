"""One request and where it is in its life.

A request is *waiting*, then *running* (its prompt is being computed, then it decodes), and ends exactly once:
*finished*, *cancelled* (its client left), *refused* (it can never fit), *failed* (its replica died and nobody resumed
it), or is *unfinished* when the simulation stops. Millions of them may exist, so the class has slots and no
properties on the hot path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

WAITING, RUNNING, TRANSFER, FINISHED, CANCELLED, REFUSED, FAILED, UNFINISHED = range(8)
STATUS_NAMES = ("waiting", "running", "transfer", "finished", "cancelled", "refused", "failed", "unfinished")
#: states a request never leaves
ENDED = frozenset((FINISHED, CANCELLED, REFUSED, FAILED, UNFINISHED))


class Request:
    """A prompt of `prompt_tokens` that asks for `output_tokens`, and what has happened to it so far.

    `blocks` are content hashes of the prompt's successive full blocks (each names everything before it too), for
    prefix reuse; `session` groups requests of one conversation for a router; lower `priority` is served first.
    `deadline_s` and `first_deadline_s` are when the client gives up, in all or on the first token.

    Scheduler state: `left` output tokens still owed; `target` tokens whose KV must exist before the next token can be
    sampled and `computed` of them that exist (the prefill phase is `computed < target`); `room` allocated KV tokens
    beyond the context while decoding; `draw` yields the tokens kept by each verify step.
    """

    __slots__ = (
        "arrival_s", "blocks", "cached_tokens", "computed", "deadline_s", "draw", "finish_s", "first_deadline_s",
        "first_scheduled_s", "first_token_s", "index", "last_token_s", "left", "order", "output_tokens",
        "pinned_blocks", "preemptions", "prefilled_tokens", "priority", "private_tokens", "profile", "prompt_tokens",
        "queued_s", "replica", "resident_tokens", "room", "session", "status", "swapped", "target", "traffic",
    )  # fmt: skip

    def __init__(
        self, index: int, arrival_s: float, prompt_tokens: int, output_tokens: int, *, traffic: int = 0,
        priority: int = 0, timeout_s: float = math.inf, first_token_timeout_s: float = math.inf,
        blocks: tuple[int, ...] = (), session: int = -1,
    ) -> None:  # fmt: skip
        self.index = index
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.traffic = traffic
        self.priority = priority
        self.deadline_s = arrival_s + timeout_s
        self.first_deadline_s = arrival_s + first_token_timeout_s
        self.blocks = blocks
        self.session = session

        self.status = WAITING
        self.left = output_tokens
        self.target = prompt_tokens
        self.computed = 0
        self.room = 0
        self.private_tokens = 0  # KV tokens allocated to this request alone
        self.pinned_blocks = 0  # leading prefix blocks it holds in the shared cache
        self.resident_tokens = 0  # KV tokens that wait outside the device: swapped out, or sent by a prefill replica
        self.swapped = False  # it waits with its KV in host memory
        self.cached_tokens = 0  # prompt tokens it did not compute thanks to the prefix cache
        self.prefilled_tokens = 0  # prompt tokens computed for it, recomputation included
        self.preemptions = 0
        self.order = 0  # place in its scheduler's queue
        self.queued_s = -math.inf  # when it came to its scheduler
        self.replica = -1
        self.profile = 0  # which acceptance profile of its class this stream follows
        self.draw: Iterator[int] | None = None
        self.first_scheduled_s = math.nan
        self.first_token_s = math.nan
        self.last_token_s = math.nan
        self.finish_s = math.nan

    @property
    def emitted(self) -> int:
        """Output tokens its client has received."""
        return self.output_tokens - self.left

    @property
    def context_tokens(self) -> int:
        """KV tokens behind the token being decoded: prompt and output without the last sampled token."""
        return self.prompt_tokens + self.output_tokens - self.left - 1

    def restart(self) -> None:
        """Forget the KV: everything known so far becomes the prompt of a new prefill."""
        self.target = self.prompt_tokens + self.emitted
        self.computed = 0
        self.room = 0
        self.resident_tokens = 0
        self.swapped = False
        self.status = WAITING

    def __repr__(self) -> str:
        return (
            f"<Request {self.index} {STATUS_NAMES[self.status]} {self.prompt_tokens}+{self.output_tokens} tokens, "
            f"{self.left} left>"
        )
