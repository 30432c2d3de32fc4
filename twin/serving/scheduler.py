"""Continuous batching: which requests share the next engine step, and what the step did to them.

The scheduler has no clock. `plan_step(now_s)` chooses a batch, somebody else decides how long it takes (simulated or
real time), and `complete_step(plan, now_s)` books the result. The policy is that of vLLM's and SGLang's schedulers:

* decoding streams go first, each with k + 1 rows of the batched-token cap, k from the schedule by live streams;
* prompts take the rest of the cap in chunks (`prefill = "chunked"`), or have steps to themselves (`"separate"`);
* a waiting request is admitted in order of priority, then of arrival, when a sequence slot is free and its KV fits;
* a stream that outgrows the KV memory preempts the last-come of the lowest priority, to be recomputed or swapped out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from twin.errors import PolicyError
from twin.serving.allocation import allocate, free, held_tokens, share_prompt
from twin.serving.config import Limits
from twin.serving.kvcache import KvCache
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.queue import Deadlines, WaitingQueue
from twin.serving.request import CANCELLED, FINISHED, REFUSED, RUNNING, TRANSFER, WAITING, Request

#: (request, k) -> how many tokens each further verify step of that stream keeps, bonus token included
Draws = Callable[[Request, int], Iterator[int]]


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
        self.kv = KvCache(
            limits.kv_capacity_tokens,
            page_tokens=limits.page_tokens,
            block_tokens=limits.prefix_block_tokens,
            host_capacity_tokens=limits.host_tier_tokens,
        )
        self.decoding: list[Request] = []
        self.prefilling: list[Request] = []
        self.preemptions = 0
        self.hit_tokens = 0
        self.host_hit_tokens = 0
        self.looked_up_tokens = 0
        self._k_by_streams = list(k_by_streams)
        self._lookahead = max(self._k_by_streams) + 1
        self._draws = draws
        self._record_kept = record_kept
        self._k = -1
        self._known_s = math.inf  # requests that came later are not in the step being planned
        self._planned_s = math.inf
        self._queue = WaitingQueue()
        self._orders = count() if orders is None else orders
        self._deadlines = Deadlines()
        self._cancels: list[Request] = []
        self._growers: list[Request] = []
        self._outgoing: dict[int, Request] = {}
        self._context_tokens = 0  # sum over decoding streams

    # -- requests come and go ----------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.decoding) + len(self.prefilling)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def load(self) -> int:
        """Requests here that have not ended."""
        return self.running + self.waiting + len(self._outgoing)

    def fits_ever(self, request: Request) -> bool:
        """Whether the request could run alone on this replica."""
        kv = self.kv
        most = kv.pages(request.prompt_tokens + request.output_tokens + self._lookahead)
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
        request.order = next(self._orders)
        request.queued_s = now_s
        self._queue.push(request)
        self._deadlines.add(request)
        return True

    def cancel(self, request: Request) -> None:
        """Its client left; takes effect at the next `plan_step`."""
        self._cancels.append(request)

    def release(self, request: Request) -> None:
        """A handed-off request has arrived elsewhere: free its KV here."""
        del self._outgoing[request.index]
        free(self.kv, request)
        request.order = -1  # what this scheduler still remembers of it is void

    def evacuate(self, *, keep_cache: bool = False) -> list[Request]:
        """Take every request away, in order of arrival here; each starts over from its prompt and what it has
        emitted.

        The replica died and its KV is lost, or (`keep_cache`) only the clients' connections are gone.
        """
        lost = [*self.decoding, *self.prefilling, *self._queue.clear(), *self._outgoing.values()]
        for request in lost:
            if keep_cache:
                free(self.kv, request)
            request.private_tokens = request.pinned_blocks = 0
            request.restart()
        self.decoding, self.prefilling, self._growers = [], [], []
        self._deadlines.clear()
        self._cancels.clear()
        self._outgoing.clear()
        self._context_tokens = 0
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
        plan = StepPlan()
        if self._cancels or self._deadlines.due(now_s):
            plan.cancelled = self._leave(now_s)
        if self._queue:
            self._admit_resident(plan, now_s)
        limits, budget = self.limits, self.limits.max_batched_tokens
        separate = limits.prefill == "separate"
        if separate and (self._queue or self.prefilling):
            self._plan_prefill(plan, budget, now_s)
            if plan.prefill:
                return plan
        if self.decoding:
            k = self._k_by_streams[len(self.decoding)]
            if k != self._k:
                self._k = k
                for request in self.decoding:
                    request.draw = self._draws(request, k)
            if self._growers:
                self._grow(plan)
            decode = self.decoding
            if len(decode) * (k + 1) > budget:
                decode = decode[: budget // (k + 1)]
            plan.k, plan.decode = k, decode
            budget -= len(decode) * (k + 1)
            if decode:
                plan.context_tokens = self._context_tokens / len(self.decoding)
        if budget > 0 and not separate and (self._queue or self.prefilling):
            self._plan_prefill(plan, budget, now_s)
        return plan

    def complete_step(self, plan: StepPlan, now_s: float) -> StepOutcome:
        """Book a step that ended at `now_s`: every decoding stream keeps what its acceptance draw says."""
        outcome = StepOutcome()
        if plan.decode:
            self._complete_decode(plan.decode, outcome, now_s)
        if plan.prefill:
            self._complete_prefill(plan.prefill, outcome, now_s)
        return outcome

    # -- completing --------------------------------------------------------------------------------------------

    def _complete_decode(self, decode: Sequence[Request], outcome: StepOutcome, now_s: float) -> None:
        # The hot loop of the whole simulation: one turn for every stream of every step.
        finished, gaps, growers = outcome.finished, outcome.gaps, self._growers
        kept = outcome.kept if self._record_kept else None
        lookahead = self._lookahead
        tokens, group, members = 0, math.nan, 0
        for request in decode:
            got: int = next(request.draw)  # type: ignore[arg-type]
            previous = request.last_token_s
            if previous == group:
                members += 1
            else:
                if members:
                    gaps.append((now_s - group, members))
                group, members = previous, 1
            request.last_token_s = now_s
            left = request.left
            if got < left:
                request.left = left - got
                room = request.room - got
                request.room = room
                if room < lookahead:
                    growers.append(request)
            else:
                got = left
                request.left = 0
                finished.append(request)
            tokens += got
            if kept is not None:
                kept.append(got)
        gaps.append((now_s - group, members))
        outcome.tokens += tokens
        self._context_tokens += tokens
        if finished:
            for request in finished:
                self._context_tokens -= request.context_tokens
                self._end(request, FINISHED, now_s)
            self.decoding = [r for r in self.decoding if r.left]

    def _complete_prefill(self, chunks: list[tuple[Request, int]], outcome: StepOutcome, now_s: float) -> None:
        done = False
        for request, tokens in chunks:
            request.computed += tokens
            request.prefilled_tokens += tokens
            if request.computed == request.target:
                done = True
                self._start(request, outcome, now_s)
        if done:
            self.prefilling = [r for r in self.prefilling if r.computed < r.target]

    def _start(self, request: Request, outcome: StepOutcome, now_s: float) -> None:
        """The prompt is complete: its last position gives a token, and the stream goes on to decode."""
        request.left -= 1
        outcome.tokens += 1
        outcome.started.append(request)
        if math.isnan(request.first_token_s):
            request.first_token_s = now_s
        else:
            outcome.gaps.append((now_s - request.last_token_s, 1))
        request.last_token_s = now_s
        share_prompt(self.kv, request)
        if request.left == 0:
            outcome.finished.append(request)
            self._end(request, FINISHED, now_s)
        elif self.limits.role == "prefill":
            request.status = TRANSFER
            request.resident_tokens = request.computed
            self._outgoing[request.index] = request
            outcome.handed_off.append(request)
        else:
            self._join(request)

    def _join(self, request: Request) -> None:
        context = request.context_tokens
        request.room = held_tokens(self.kv, request) - context
        if request.room < self._lookahead:
            self._growers.append(request)
        if self._k >= 0:
            request.draw = self._draws(request, self._k)
        self._context_tokens += context
        self.decoding = [*self.decoding, request]  # a new list: the plan of a running step keeps the old one

    def _end(self, request: Request, status: int, now_s: float) -> None:
        free(self.kv, request)
        request.status = status
        request.finish_s = now_s

    # -- planning ----------------------------------------------------------------------------------------------

    def _plan_prefill(self, plan: StepPlan, budget: int, now_s: float) -> None:
        limits = self.limits
        most = limits.long_prefill_tokens or budget
        weighted = 0
        for request in self.prefilling:
            if budget <= 0:
                break
            tokens = min(request.target - request.computed, budget, most)
            plan.prefill.append((request, tokens))
            weighted += tokens * request.computed
            budget -= tokens
        while budget > 0 and self._queue and self.running < limits.max_seqs:
            head = self._queue.head()
            # Resident KV joins at the start of a step, not in the middle of planning one.
            if head.resident_tokens or head.queued_s > self._known_s or not self._admit(head, plan, now_s):
                break
            tokens = min(head.target - head.computed, budget, most)
            plan.prefill.append((head, tokens))
            weighted += tokens * head.computed
            budget -= tokens
            self.prefilling.append(head)
        plan.prefill_tokens = total = sum(tokens for _, tokens in plan.prefill)
        plan.prefill_context_tokens = weighted / total if total else 0.0

    def _admit(self, request: Request, plan: StepPlan, now_s: float) -> bool:
        """Let the head of the queue in if its KV fits."""
        kv = self.kv
        grant = allocate(kv, request, int(kv.capacity_tokens * self.limits.kv_watermark) if self.running else 0)
        if grant is None:
            return False
        self._queue.pop()
        request.status = RUNNING
        if math.isnan(request.first_scheduled_s):
            request.first_scheduled_s = now_s
        if request.resident_tokens:
            if request.swapped:
                plan.transfer_tokens += request.resident_tokens
            request.resident_tokens, request.swapped = 0, False
            return True
        cached = max(grant.cached_tokens - self.limits.prefix_replay_tokens, 0)
        request.computed = cached
        request.cached_tokens += cached
        if kv.block_tokens:
            self.looked_up_tokens += request.target
            self.hit_tokens += cached
            self.host_hit_tokens += grant.from_host_tokens
            plan.transfer_tokens += grant.from_host_tokens
        return True

    def _admit_resident(self, plan: StepPlan, now_s: float) -> None:
        while self._queue and self.running < self.limits.max_seqs:
            head = self._queue.head()
            if not head.resident_tokens or not self._admit(head, plan, now_s):
                return
            if head.computed < head.target:
                self.prefilling.append(head)
            else:
                self._join(head)

    def _grow(self, plan: StepPlan) -> None:
        """Give streams that are about to outgrow their pages more of them, preempting from the back when there are
        none."""
        growers, self._growers = self._growers, []
        kv = self.kv
        for request in growers:
            if request.status != RUNNING or request.room >= self._lookahead:
                continue
            needed = kv.pages(self._lookahead - request.room)
            while request.status == RUNNING and not kv.take(needed):
                self._preempt(max([*self.decoding, *self.prefilling], key=lambda r: (r.priority, r.order)), plan)
            if request.status == RUNNING:
                request.private_tokens += needed
                request.room += needed

    def _preempt(self, victim: Request, plan: StepPlan) -> None:
        decoding = victim.computed >= victim.target
        self._drop(victim)
        free(self.kv, victim)
        victim.preemptions += 1
        self.preemptions += 1
        if self.limits.preemption == "swap":
            victim.resident_tokens = victim.context_tokens if decoding else victim.computed
            plan.transfer_tokens += victim.resident_tokens
            victim.status, victim.swapped = WAITING, True
        if not victim.resident_tokens:
            victim.restart()
        self._queue.push(victim)

    def _drop(self, request: Request) -> None:
        if request.computed >= request.target:
            self.decoding.remove(request)
            self._context_tokens -= request.context_tokens
        else:
            self.prefilling.remove(request)

    def _leave(self, now_s: float) -> list[Request]:
        """Requests whose client left or gave up by `now_s`."""
        leaving, self._cancels = [*self._cancels, *self._deadlines.expired(now_s)], []
        left = []
        for request in leaving:
            if request.status == WAITING:
                self._queue.forget()
            elif request.status == RUNNING:
                self._drop(request)
            elif request.status != TRANSFER or self._outgoing.pop(request.index, None) is None:
                continue
            self._end(request, CANCELLED, now_s)
            left.append(request)
        return left
