"""Who is let in, and how much of which prompt a step computes.

A waiting request is admitted in order of priority, then of arrival, when a sequence slot is free and its KV fits.
Prompts take what decode left of the batched-token cap in chunks, those already begun first.
"""

from __future__ import annotations

import math

from twin.serving.allocation import allocate
from twin.serving.live import LiveRequests
from twin.serving.plan import StepPlan
from twin.serving.request import RUNNING, Request


def plan_prefill(live: LiveRequests, plan: StepPlan, budget: int, *, known_s: float, now_s: float) -> None:
    """Fill `budget` tokens of the plan with prompt chunks. Who came after `known_s` is not known yet."""
    limits, queue = live.limits, live.queue
    most = limits.long_prefill_tokens or budget
    weighted = 0
    for request in live.prefilling:
        if budget <= 0:
            break
        tokens = min(request.target - request.computed, budget, most)
        plan.prefill.append((request, tokens))
        weighted += tokens * request.computed
        budget -= tokens
    while budget > 0 and queue and live.running < limits.max_seqs:
        head = queue.head()
        # Resident KV joins at the start of a step, not in the middle of planning one.
        if head.resident_tokens or head.queued_s > known_s or not _admit(live, head, plan, now_s):
            break
        tokens = min(head.target - head.computed, budget, most)
        plan.prefill.append((head, tokens))
        weighted += tokens * head.computed
        budget -= tokens
        live.prefilling.append(head)
    plan.prefill_tokens = total = sum(tokens for _, tokens in plan.prefill)
    plan.prefill_context_tokens = weighted / total if total else 0.0


def admit_resident(live: LiveRequests, plan: StepPlan, now_s: float) -> None:
    """Let in, from the front of the queue, those whose KV exists: swapped out, or sent by a prefill replica."""
    queue = live.queue
    while queue and live.running < live.limits.max_seqs:
        head = queue.head()
        if not head.resident_tokens or not _admit(live, head, plan, now_s):
            return
        if head.computed < head.target:
            live.prefilling.append(head)
        else:
            live.join(head)


def _admit(live: LiveRequests, request: Request, plan: StepPlan, now_s: float) -> bool:
    """Let the head of the queue in if its KV fits."""
    kv, limits = live.kv, live.limits
    grant = allocate(kv, request, int(kv.capacity_tokens * limits.kv_watermark) if live.running else 0)
    if grant is None:
        return False
    live.queue.pop()
    request.status = RUNNING
    if math.isnan(request.first_scheduled_s):
        request.first_scheduled_s = now_s
    if request.resident_tokens:
        if request.swapped:
            plan.transfer_tokens += request.resident_tokens
        request.resident_tokens, request.swapped = 0, False
        return True
    cached = max(grant.cached_tokens - limits.prefix_replay_tokens, 0)
    request.computed = cached
    request.cached_tokens += cached
    if kv.block_tokens:
        live.looked_up_tokens += request.target
        live.hit_tokens += cached
        live.host_hit_tokens += grant.from_host_tokens
        plan.transfer_tokens += grant.from_host_tokens
    return True
