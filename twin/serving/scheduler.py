"""Continuous batching: which requests share the next engine step, and what the step did to them.

The scheduler has no clock. `plan_step(now_s)` chooses a batch, somebody else decides how long it takes (simulated or
real time), and `complete_step(plan, now_s)` books the result. The policy is that of vLLM's and SGLang's schedulers:

* decoding streams go first, each with k + 1 rows of the batched-token cap, k from the schedule by live streams;
* prompts take the rest of the cap in chunks (`prefill = "chunked"`), or have steps to themselves (`"separate"`);
* who is let in, and who must make room, is in `admission.py` and `preemption.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from twin.errors import PolicyError
from twin.serving.admission import admit_resident, plan_prefill
from twin.serving.allocation import free
from twin.serving.completion import complete_decode, complete_prefill
from twin.serving.config import Limits
from twin.serving.kvcache import KvCache
from twin.serving.live import Draws, LiveRequests
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.preemption import grow
from twin.serving.queue import Deadlines
from twin.serving.request import CANCELLED, REFUSED, RUNNING, TRANSFER, WAITING, Request

__all__ = ["Draws", "Scheduler", "check_limits"]


def check_limits(limits: Limits, k_by_streams: Sequence[int]) -> None:
    """Raise PolicyError when the schedule does not cover the sequences, or one stream's rows do not fit into a
    step."""
    if len(k_by_streams) <= limits.max_seqs:
        raise PolicyError(
            f"the k-schedule covers {len(k_by_streams) - 1} streams but max_seqs is {limits.max_seqs}; "
            f"extend its last range."
        )
    if max(k_by_streams) + 1 > limits.max_batched_tokens:
        raise PolicyError(
            f"max_batched_tokens = {limits.max_batched_tokens} cannot hold the {max(k_by_streams) + 1} rows of one "
            f"stream; raise it."
        )


class Scheduler:
    """The batch of one replica. `k_by_streams[n]` is the draft length when n streams decode, n = 0 ... max_seqs."""

    def __init__(
        self, limits: Limits, k_by_streams: Sequence[int], draws: Draws, *, orders: Iterator[int] | None = None,
        record_kept: bool = False,
    ) -> None:  # fmt: skip
        """`orders` numbers submissions; schedulers that pass requests to each other share one. Raises PolicyError."""
        check_limits(limits, k_by_streams)
        self.limits = limits
        self.live = LiveRequests(limits, max(k_by_streams), draws, orders)
        self._k_by_streams = list(k_by_streams)
        self._record_kept = record_kept
        self._known_s = math.inf  # requests that came later are not in the step being planned
        self._planned_s = math.inf
        self._deadlines = Deadlines()
        self._cancels: list[Request] = []

    # -- who is here -------------------------------------------------------------------------------------------

    @property
    def kv(self) -> KvCache:
        """The KV memory."""
        return self.live.kv

    @property
    def decoding(self) -> Sequence[Request]:
        """Streams that decode."""
        return self.live.decoding

    @property
    def prefilling(self) -> Sequence[Request]:
        """Requests whose prompt is being computed."""
        return self.live.prefilling

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return self.live.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.live.queue)

    @property
    def load(self) -> int:
        """Requests here that have not ended."""
        return self.running + self.waiting + len(self.live.outgoing)

    @property
    def preemptions(self) -> int:
        """How often somebody had to make room."""
        return self.live.preemptions

    @property
    def looked_up_tokens(self) -> int:
        """Prompt tokens a prefix was looked for."""
        return self.live.looked_up_tokens

    @property
    def hit_tokens(self) -> int:
        """Those found and not computed again."""
        return self.live.hit_tokens

    @property
    def host_hit_tokens(self) -> int:
        """Those of the found ones that came from the host tier."""
        return self.live.host_hit_tokens

    # -- requests come and go ----------------------------------------------------------------------------------

    def fits_ever(self, request: Request) -> bool:
        """Whether the request could run alone on this replica."""
        kv = self.kv
        most = kv.pages(request.prompt_tokens + request.output_tokens + self.live.lookahead)
        return (
            most <= kv.capacity_tokens
            and request.prompt_tokens + request.output_tokens <= self.limits.max_context_tokens
        )

    def submit(self, request: Request, now_s: float = -math.inf) -> bool:
        """Queue a request. False (and its status REFUSED) when it can never fit. Resident KV, if any, comes along."""
        if not self.fits_ever(request):
            request.status = REFUSED
            return False
        request.status = WAITING
        request.order = next(self.live.orders)
        request.queued_s = now_s
        self.live.queue.push(request)
        self._deadlines.add(request)
        return True

    def cancel(self, request: Request) -> None:
        """Its client left; takes effect at the next `plan_step`."""
        self._cancels.append(request)

    def release(self, request: Request) -> None:
        """A handed-off request has arrived elsewhere: free its KV here."""
        del self.live.outgoing[request.index]
        free(self.kv, request)
        request.order = -1  # what this scheduler still remembers of it is void

    def evacuate(self, *, keep_cache: bool = False) -> list[Request]:
        """Take every request away, in order of arrival here; each starts over from its prompt and what it has
        emitted.

        The replica died and its KV is lost, or (`keep_cache`) only the clients' connections are gone.
        """
        lost = self.live.take_all()
        for request in lost:
            if keep_cache:
                free(self.kv, request)
            request.private_tokens = request.pinned_blocks = 0
            request.restart()
        self._deadlines.clear()
        self._cancels.clear()
        if not keep_cache:
            self.kv.clear()
        return sorted(lost, key=lambda r: r.order)

    # -- one step ----------------------------------------------------------------------------------------------

    def plan_step(self, now_s: float) -> StepPlan:
        """Choose what runs next. The plan is idle when nothing can; call again after a submission or a release."""
        if not self.limits.plans_ahead:
            return self._plan(now_s)
        self._known_s, self._planned_s = self._planned_s, now_s
        plan = self._plan(now_s)
        if plan.idle:  # there was no step to plan beside: what waits starts at once
            cancelled, self._known_s = plan.cancelled, math.inf
            plan = self._plan(now_s)
            plan.cancelled = cancelled
        return plan

    def _plan(self, now_s: float) -> StepPlan:
        plan, live = StepPlan(), self.live
        if self._cancels or self._deadlines.due(now_s):
            plan.cancelled = self._leave(now_s)
        if live.queue:
            admit_resident(live, plan, now_s)
        limits, budget = self.limits, self.limits.max_batched_tokens
        separate = limits.prefill == "separate"
        if separate and (live.queue or live.prefilling):
            plan_prefill(live, plan, budget, known_s=self._known_s, now_s=now_s)
            if plan.prefill:
                return plan
        if live.decoding:
            budget -= self._plan_decode(plan, budget)
        if budget > 0 and not separate and (live.queue or live.prefilling):
            plan_prefill(live, plan, budget, known_s=self._known_s, now_s=now_s)
        return plan

    def _plan_decode(self, plan: StepPlan, budget: int) -> int:
        """Every stream that fits into the budget decodes; the rows that takes."""
        live = self.live
        k = self._k_by_streams[len(live.decoding)]
        live.set_k(k)
        if live.growers:
            grow(live, plan)
        decode = live.decoding
        if len(decode) * (k + 1) > budget:
            decode = decode[: budget // (k + 1)]
        plan.k, plan.decode = k, decode
        if decode:
            plan.context_tokens = live.context_tokens / len(live.decoding)
        return len(decode) * (k + 1)

    def complete_step(self, plan: StepPlan, now_s: float) -> StepOutcome:
        """Book a step that ended at `now_s`: every decoding stream keeps what its acceptance draw says."""
        outcome = StepOutcome()
        if plan.decode:
            complete_decode(self.live, plan.decode, outcome, now_s, record_kept=self._record_kept)
        if plan.prefill:
            complete_prefill(self.live, plan.prefill, outcome, now_s)
        return outcome

    def _leave(self, now_s: float) -> list[Request]:
        """Requests whose client left or gave up by `now_s`."""
        leaving, self._cancels = [*self._cancels, *self._deadlines.expired(now_s)], []
        live, left = self.live, []
        for request in leaving:
            if request.status == WAITING:
                live.queue.forget()
            elif request.status == RUNNING:
                live.drop(request)
            elif request.status != TRANSFER or live.outgoing.pop(request.index, None) is None:
                continue
            live.end(request, CANCELLED, now_s)
            left.append(request)
        return left
