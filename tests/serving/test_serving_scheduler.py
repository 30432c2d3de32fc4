"""The scheduler by hand: no clock, one step at a time."""

from __future__ import annotations

from itertools import repeat

import pytest

from twin.errors import PolicyError
from twin.serving.config import Limits
from twin.serving.request import CANCELLED, FINISHED, REFUSED, WAITING, Request
from twin.serving.scheduler import Scheduler


def scheduler(k: int = 0, kept: int = 1, **limits: object) -> Scheduler:
    bounds = Limits(**{"max_seqs": 4, "kv_capacity_tokens": 1000, "page_tokens": 1, "kv_watermark": 0.0} | limits)  # type: ignore[arg-type]
    return Scheduler(bounds, [k] * (bounds.max_seqs + 1), lambda r, k: repeat(kept), record_kept=True)


def test_prompts_are_cut_into_chunks_beside_decode() -> None:
    s = scheduler(k=1, kept=2, max_batched_tokens=10)
    s.submit(Request(0, 0.0, 6, 9))
    plan = s.plan_step(0.0)
    assert (plan.rows, plan.prefill_tokens) == (0, 6)
    assert s.complete_step(plan, 1.0).tokens == 1
    s.submit(Request(1, 1.0, 20, 5))
    chunks = []
    for step in range(3):
        plan = s.plan_step(1.0 + step)
        assert plan.rows == 2, "decode goes first"
        chunks.append((plan.prefill_tokens, plan.prefill_context_tokens))
        outcome = s.complete_step(plan, 2.0 + step)
        assert outcome.kept == [2]
    assert chunks == [(8, 0.0), (8, 8.0), (4, 16.0)]
    assert len(s.decoding) == 2


def test_a_step_planned_ahead_does_not_know_who_came_meanwhile() -> None:
    for ahead, expected in ((False, [1, 0, 0]), (True, [0, 1, 0])):
        s = scheduler(plans_ahead=ahead)
        s.submit(Request(0, 0.0, 4, 50), 0.0)
        s.complete_step(s.plan_step(0.0), 1.0)
        plan = s.plan_step(1.0)
        s.submit(Request(1, 1.5, 4, 50), 1.5)
        s.complete_step(plan, 2.0)
        started = []
        for now in (2.0, 3.0, 4.0):
            plan = s.plan_step(now)
            started.append(len(plan.prefill))
            s.complete_step(plan, now + 1.0)
        assert started == expected


def test_an_idle_engine_starts_at_once_even_when_it_plans_ahead() -> None:
    s = scheduler(plans_ahead=True)
    s.submit(Request(0, 0.0, 4, 1), 0.0)
    s.complete_step(s.plan_step(0.0), 1.0)
    s.submit(Request(1, 0.9, 4, 1), 0.9)
    assert s.plan_step(1.0).prefill_tokens == 4


def test_separate_prefill_stops_decode() -> None:
    s = scheduler(max_batched_tokens=10, prefill="separate")
    s.submit(Request(0, 0.0, 4, 9))
    s.complete_step(s.plan_step(0.0), 1.0)
    s.submit(Request(1, 1.0, 15, 5))
    for tokens in (10, 5):
        plan = s.plan_step(1.0)
        assert (plan.rows, plan.prefill_tokens) == (0, tokens)
        s.complete_step(plan, 2.0)
    plan = s.plan_step(3.0)
    assert (plan.rows, plan.prefill_tokens) == (2, 0)
    gaps = s.complete_step(plan, 4.0).gaps
    assert sorted(gaps) == [(2.0, 1), (3.0, 1)], "the first stream waited for the other's prompt"


def test_priority_goes_first_and_is_preempted_last() -> None:
    s = scheduler(max_seqs=2, kv_capacity_tokens=30)
    low, high = Request(0, 0.0, 10, 15, priority=5), Request(1, 0.0, 10, 15, priority=0)
    s.submit(low)
    s.submit(high)
    plan = s.plan_step(0.0)
    assert [r.index for r, _ in plan.prefill] == [1, 0]
    for step in range(40):
        s.complete_step(plan, float(step))
        plan = s.plan_step(float(step))
        if plan.idle:
            break
    assert (low.status, high.status) == (FINISHED, FINISHED)
    assert (low.preemptions > 0, high.preemptions) == (True, 0)
    assert high.finish_s < low.finish_s


def test_what_can_never_fit_is_refused() -> None:
    s = scheduler(kv_capacity_tokens=50)
    large = Request(0, 0.0, 45, 10)
    assert not s.submit(large)
    assert large.status == REFUSED
    assert s.plan_step(0.0).idle


def test_clients_give_up_on_the_first_token_or_on_the_answer() -> None:
    s = scheduler(max_seqs=1)
    patient = Request(0, 0.0, 5, 50, timeout_s=3.0)
    queued = Request(1, 0.0, 5, 5, first_token_timeout_s=1.0)
    s.submit(patient)
    s.submit(queued)
    s.complete_step(s.plan_step(0.0), 0.5)
    plan = s.plan_step(1.5)
    assert list(plan.cancelled) == [queued]
    s.complete_step(plan, 2.0)
    plan = s.plan_step(3.0)
    assert list(plan.cancelled) == [patient]
    assert (patient.status, patient.emitted) == (CANCELLED, 2)
    assert s.kv.used_tokens == s.load == 0


def test_cancelling_takes_effect_at_the_next_step() -> None:
    s = scheduler()
    request = Request(0, 0.0, 5, 50)
    s.submit(request)
    plan = s.plan_step(0.0)
    s.cancel(request)
    s.complete_step(plan, 1.0)
    assert request.emitted == 1
    assert list(s.plan_step(1.0).cancelled) == [request]


def test_the_draft_length_follows_the_streams() -> None:
    limits = Limits(max_seqs=3, kv_capacity_tokens=1000)
    s = Scheduler(limits, [5, 5, 3, 1], lambda r, k: repeat(k + 1))
    for i in range(3):
        s.submit(Request(i, 0.0, 4, 200))
        s.complete_step(s.plan_step(0.0), 1.0)
    seen = []
    for index in (2, 1):
        plan = s.plan_step(2.0)
        seen.append((len(plan.decode), plan.k))
        s.complete_step(plan, 3.0)
        s.cancel(s.decoding[index])
    plan = s.plan_step(4.0)
    seen.append((len(plan.decode), plan.k))
    assert seen == [(3, 1), (2, 3), (1, 5)]


def test_a_schedule_that_does_not_cover_the_sequences_is_refused() -> None:
    with pytest.raises(PolicyError, match="covers 2 streams but max_seqs is 4"):
        Scheduler(Limits(max_seqs=4), [5, 5, 3], lambda r, k: repeat(1))
    with pytest.raises(PolicyError, match="cannot hold the 6 rows"):
        Scheduler(Limits(max_seqs=1, max_batched_tokens=4), [5, 5], lambda r, k: repeat(1))


def test_prefix_blocks_are_reused_and_at_least_one_token_is_computed() -> None:
    s = scheduler(prefix_block_tokens=8, max_seqs=1)
    first, same = Request(0, 0.0, 32, 1, blocks=(1, 2, 3, 4)), Request(1, 0.0, 32, 1, blocks=(1, 2, 3, 4))
    s.submit(first)
    s.submit(same)
    assert s.plan_step(0.0).prefill_tokens == 32
    s.complete_step(s.plan_step(0.0), 1.0)
    assert first.status == FINISHED
    plan = s.plan_step(1.0)
    assert (plan.prefill_tokens, plan.prefill_context_tokens) == (8, 24.0)
    assert same.cached_tokens == 24
    assert s.hit_tokens == 24


def test_evicted_blocks_come_back_from_the_host() -> None:
    s = scheduler(prefix_block_tokens=8, host_tier_tokens=800, kv_capacity_tokens=40, max_seqs=1)
    requests = [Request(0, 0.0, 24, 1, blocks=(1, 2, 3)), Request(1, 0.0, 30, 1, blocks=(7, 8, 9)),
                Request(2, 0.0, 26, 1, blocks=(1, 2, 3))]  # fmt: skip
    transfers = []
    for request in requests:
        s.submit(request)
        plan = s.plan_step(0.0)
        transfers.append(plan.transfer_tokens)
        s.complete_step(plan, 1.0)
    assert transfers == [0, 0, 16], "one of its blocks was never evicted"
    assert requests[2].cached_tokens == 24
    assert s.host_hit_tokens == 16


def test_the_same_requests_give_the_same_run() -> None:
    def run() -> list[float]:
        s = scheduler(k=2, kept=2, max_seqs=2, kv_capacity_tokens=60)
        requests = [Request(i, 0.0, 10 + i, 12) for i in range(6)]
        for r in requests:
            s.submit(r)
        now = 0.0
        while not (plan := s.plan_step(now)).idle:
            now += 1.0
            s.complete_step(plan, now)
        assert all(r.status != WAITING for r in requests)
        return [r.finish_s for r in requests]

    assert run() == run()
