"""Random deployments under random trouble: nothing is lost, duplicated or conjured up.

Scenarios are small and cramped on purpose: KV memory that holds few requests, outages, impatient clients.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving_support import AnalyticStepTime

from twin.serving.collector import Collector
from twin.serving.config import Deployment, Limits, Link, Outage
from twin.serving.draws import DrawSource, FixedAcceptance
from twin.serving.request import ENDED, FAILED, FINISHED, REFUSED, UNFINISHED, Request
from twin.serving.simulate import Run, simulate
from twin.serving.workload import ClosedLoop, FixedLength, RequestMaker, Source


class CheckingCollector(Collector):
    """Checks the books of the replica after every step."""

    def __init__(self, k: list[int]) -> None:
        super().__init__()
        self.k = k
        self.seen: list[int] = []
        self.ended_requests: list[Request] = []

    def arrived(self, request: Request, now_s: float) -> None:
        self.seen.append(request.index)
        super().arrived(request, now_s)

    def ended(self, request: Request, now_s: float) -> None:
        assert request.status in ENDED
        assert request.private_tokens == request.pinned_blocks == 0 or request.status == UNFINISHED
        self.ended_requests.append(request)
        super().ended(request, now_s)

    def stepped(self, replica: Any, plan: Any, outcome: Any, start_s: float, end_s: float) -> None:
        scheduler = replica.scheduler
        kv, limits = scheduler.kv, scheduler.limits
        kv.check()
        holders = [*scheduler.decoding, *scheduler.prefilling, *scheduler.live.outgoing.values()]
        assert kv.private_tokens == sum(r.private_tokens for r in holders)
        assert sum(kv._pins.values()) == sum(r.pinned_blocks for r in holders)
        assert scheduler.running <= limits.max_seqs
        assert plan.rows + plan.prefill_tokens <= limits.max_batched_tokens
        assert all(1 <= tokens <= r.target for r, tokens in plan.prefill)
        assert len({r.index for r in holders}) == len(holders)
        for request in scheduler.decoding:
            assert request.room >= 0
            held = request.private_tokens + request.pinned_blocks * kv.block_tokens
            assert held - request.room == request.context_tokens
        assert scheduler.live.context_tokens == sum(r.context_tokens for r in scheduler.decoding)
        assert end_s >= start_s
        super().stepped(replica, plan, outcome, start_s, end_s)


LIMITS = st.builds(
    Limits,
    max_batched_tokens=st.integers(8, 64),
    max_seqs=st.integers(1, 5),
    kv_capacity_tokens=st.integers(64, 400),
    max_context_tokens=st.sampled_from([100, 1000]),
    page_tokens=st.sampled_from([1, 4]),
    prefill=st.sampled_from(["chunked", "separate"]),
    long_prefill_tokens=st.sampled_from([0, 5]),
    preemption=st.sampled_from(["recompute", "swap"]),
    kv_watermark=st.sampled_from([0.0, 0.1]),
    prefix_block_tokens=st.sampled_from([0, 8]),
    plans_ahead=st.booleans(),
)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    limits = draw(LIMITS)
    if limits.prefix_block_tokens and draw(st.booleans()):
        limits = limits.model_copy(update={"host_tier_tokens": 64})
    replicas = draw(st.integers(1, 3))
    prefillers = draw(st.sampled_from([0, 0, 1, 2]))
    everyone = st.one_of(st.integers(0, replicas + prefillers - 1), st.just("router"))
    outages = draw(st.lists(st.tuples(everyone, st.floats(0, 1.5), st.floats(0.01, 0.5)), max_size=3))
    return Deployment(
        limits=limits,
        replicas=replicas,
        router=draw(st.sampled_from(["round-robin", "least-loaded", "prefix-affinity"])),
        in_flight=draw(st.sampled_from([0, 0, 2])),
        prefill_replicas=prefillers,
        link=Link(latency_s=1e-3, bytes_per_s=1e4) if prefillers else None,
        kv_bytes_per_token=2.0,
        host_bytes_per_s=1e4,
        host_transfer=draw(st.sampled_from(["overlapped", "blocking"])),
        outages=tuple(Outage(replica=r, at_s=a, for_s=f) for r, a, f in outages),
        on_outage=draw(st.sampled_from(["resume", "fail"])),
    )


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    requests, time_s = [], 0.0
    for i in range(draw(st.integers(1, 25))):
        time_s += draw(st.floats(0, 0.15))
        prompt = draw(st.integers(1, 90))
        family = draw(st.integers(0, 2))
        requests.append(
            Request(
                i, time_s, prompt, draw(st.integers(1, 30)),
                priority=draw(st.integers(0, 1)),
                timeout_s=draw(st.sampled_from([1e9, 1e9, 0.3])),
                first_token_timeout_s=draw(st.sampled_from([1e9, 1e9, 0.1])),
                blocks=tuple(100 * family + n for n in range(prompt // 8)),
            )
        )  # fmt: skip
    return requests


def check_books(run: Run, collector: CheckingCollector, requests: list[Request]) -> None:
    ended = collector.ended_requests
    assert sorted(r.index for r in ended) == sorted(collector.seen) == [r.index for r in requests]
    assert collector.in_system == 0
    for request in ended:
        assert 0 <= request.left <= request.output_tokens
        assert (request.left == 0) == (request.status == FINISHED)
        if request.status == FINISHED:
            assert request.arrival_s <= request.first_scheduled_s <= request.first_token_s <= request.finish_s
            # Every prompt token was computed or came from the cache, at least once.
            assert request.prefilled_tokens + request.cached_tokens >= request.prompt_tokens or request.preemptions
        if request.status == REFUSED:
            assert request.emitted == 0 or run.cluster.deployment.prefill_replicas
    # Tokens the engines emitted are tokens clients received.
    assert collector.emitted_tokens == sum(r.emitted for r in ended)
    assert collector.prefilled_tokens == sum(r.prefilled_tokens for r in ended)
    counts = run.result.requests
    parts = (counts.finished, counts.cancelled, counts.refused, counts.failed, counts.unfinished)
    assert sum(parts) == counts.arrived == len(requests)
    assert run.result.little.relative_error < 1e-9


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployments(), request_lists(), st.integers(0, 4))
def test_nothing_is_lost_or_duplicated(deployment: Deployment, requests: list[Request], k: int) -> None:
    schedule = [min(k, 4 - s // 2) if s else k for s in range(deployment.limits.max_seqs + 1)]
    schedule = [max(s, 0) for s in schedule]
    collector = CheckingCollector(schedule)
    draws = DrawSource([[FixedAcceptance(0.6)]], 0)
    run = simulate(deployment, AnalyticStepTime(), schedule, draws, iter(requests), warmup_s=0.0, collector=collector)
    check_books(run, collector, requests)
    assert run.result.requests.unfinished == 0, "the run drained, so nothing may be stuck"
    for replica in (*run.cluster.replicas, *run.cluster.prefillers):
        assert replica.scheduler.load == 0
        assert replica.scheduler.kv.used_tokens == 0
    if not deployment.outages or deployment.on_outage == "resume":
        assert run.result.requests.failed == 0
    statuses = {r.status for r in collector.ended_requests}
    assert UNFINISHED not in statuses
    if FAILED in statuses:
        assert deployment.outages


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deployments(), st.integers(1, 6), st.floats(0, 0.2), st.integers(1, 3), st.floats(0.3, 2.0))
def test_closed_loops_keep_their_users(
    deployment: Deployment, users: int, think_s: float, turns: int, until_s: float
) -> None:
    """At most `users` requests are ever in the system, and a run that is cut off says what was unfinished."""
    source = Source("s", FixedLength(20), FixedLength(9), timeout_s=1.0)
    limits = deployment.limits
    maker = RequestMaker([source], 0, max_context_tokens=limits.max_context_tokens)
    loop = ClosedLoop(
        users, maker, think_s=think_s, turns=turns, prefix_block_tokens=limits.prefix_block_tokens,
        max_context_tokens=limits.max_context_tokens,
    )  # fmt: skip
    schedule = [2] * (limits.max_seqs + 1)
    collector = CheckingCollector(schedule)
    draws = DrawSource([[FixedAcceptance(0.6)]], 0)
    run = simulate(
        deployment, AnalyticStepTime(), schedule, draws, loop, until_s=until_s, warmup_s=0.0, collector=collector
    )
    assert run.result.little.in_system <= users + 1e-9
    assert run.result.requests.arrived >= 1
    assert run.result.requests.unfinished <= users
    assert run.result.little.relative_error < 1e-9
    assert collector.emitted_tokens == sum(r.emitted for r in collector.ended_requests)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption_happens_and_costs(preemption: str) -> None:
    """Two streams that cannot both grow: the later one is preempted once, and both get all their tokens."""
    limits = Limits(max_seqs=2, kv_capacity_tokens=64, page_tokens=4, kv_watermark=0.0, preemption=preemption)
    requests = [Request(0, 0.0, 20, 30), Request(1, 0.0, 20, 30)]
    collector = CheckingCollector([0, 0, 0])
    draws = DrawSource([[FixedAcceptance(0.0)]], 0)
    deployment = Deployment(limits=limits, kv_bytes_per_token=1.0, host_bytes_per_s=1e3, host_transfer="blocking")
    run = simulate(deployment, AnalyticStepTime(), [0] * 3, draws, iter(requests), warmup_s=0.0, collector=collector)
    assert run.result.preemptions == 1
    assert requests[0].preemptions == 0
    assert requests[1].preemptions == 1
    assert collector.emitted_tokens == 60
    recomputed = requests[1].prefilled_tokens - 20
    assert (recomputed > 0) == (preemption == "recompute")
