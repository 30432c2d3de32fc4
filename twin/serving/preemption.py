"""Who must make room: a stream that outgrows the KV memory preempts the last-come of the lowest priority."""

from __future__ import annotations

from twin.serving.allocation import free
from twin.serving.live import LiveRequests
from twin.serving.plan import StepPlan
from twin.serving.request import RUNNING, WAITING, Request


def grow(live: LiveRequests, plan: StepPlan) -> None:
    """Give streams that are about to outgrow their pages more of them, preempting from the back when there are
    none."""
    growers, live.growers = live.growers, []
    kv, lookahead = live.kv, live.lookahead
    for request in growers:
        if request.status != RUNNING or request.room >= lookahead:
            continue
        needed = kv.pages(lookahead - request.room)
        while request.status == RUNNING and not kv.take(needed):
            _preempt(live, max([*live.decoding, *live.prefilling], key=lambda r: (r.priority, r.order)), plan)
        if request.status == RUNNING:
            request.private_tokens += needed
            request.room += needed


def _preempt(live: LiveRequests, victim: Request, plan: StepPlan) -> None:
    """Back to the queue, its KV recomputed later or swapped out now."""
    decoding = victim.computed >= victim.target
    live.drop(victim)
    free(live.kv, victim)
    victim.preemptions += 1
    live.preemptions += 1
    if live.limits.preemption == "swap":
        victim.resident_tokens = victim.context_tokens if decoding else victim.computed
        plan.transfer_tokens += victim.resident_tokens
        victim.status, victim.swapped = WAITING, True
    if not victim.resident_tokens:
        victim.restart()
    live.queue.push(victim)
