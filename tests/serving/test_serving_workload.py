"""Arrival processes, mixes, and users in a closed loop."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_support import AnalyticStepTime

from twin.errors import TrafficError
from twin.serving.arrivals import Rate, arrival_times
from twin.serving.config import Deployment, Limits
from twin.serving.draws import DrawSource, FixedAcceptance, ProfileDraw
from twin.serving.request import Request
from twin.serving.simulate import Run, simulate
from twin.serving.workload import ClosedLoop, FixedLength, RequestMaker, Source, open_loop


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_variation_asked_for(cv: float) -> None:
    times = np.array(list(islice(arrival_times(Rate.constant(4.0), np.random.default_rng(1), cv=cv), 200_000)))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02, abs=1e-9)


def test_a_ramp_has_the_integral_of_its_rate() -> None:
    """From 1/s to 9/s in 1000 s: 5000 arrivals, of which (1 x 500 + 4 x 500 / 2) = 1500 in the first half."""
    times = np.array(list(islice(arrival_times(Rate.ramp(1.0, 9.0, 1000.0), np.random.default_rng(2)), 8000)))
    assert (times < 1000).sum() == pytest.approx(5000, rel=0.04)
    assert (times < 500).sum() == pytest.approx(1500, rel=0.08)
    assert (times[-1] - 1000) == pytest.approx((8000 - (times < 1000).sum()) / 9.0, rel=0.05)


def test_a_ramp_to_zero_ends() -> None:
    assert len(list(arrival_times(Rate.ramp(10.0, 0.0, 100.0), np.random.default_rng(3)))) == pytest.approx(
        500, rel=0.2
    )


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.sampled_from([0.0, 0.1, 2.5, 50.0])), min_size=1, max_size=5),
    st.floats(0, 200),
)
def test_time_of_inverts_the_integral(steps: list[tuple[float, float]], expected: float) -> None:
    points, time_s = [], 0.0
    for gap, rate in steps:
        points.append((time_s, rate))
        time_s += gap
    rate_over_time = Rate(points)
    found = rate_over_time.time_of(expected)
    if found == math.inf:
        assert points[-1][1] == 0
        return
    grid = np.union1d(np.linspace(0, found, 2001), [t for t, _ in points if t <= found])
    integral = float(np.trapezoid([rate_over_time.at(t) for t in grid], grid))
    assert integral == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(0.0, 1.0), (0.0, 2.0)], [(0.0, -1.0)], [(0.0, math.nan)]])
def test_bad_rates_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(TrafficError):
        Rate(points)


def test_acceptance_draws_follow_their_profile() -> None:
    rng = np.random.default_rng(0)
    survival = [0.72, 0.5, 0.3, 0.3, 0.05]
    kept = np.asarray(ProfileDraw({5: survival}).kept(200_000, 5, rng))
    assert kept.min() >= 1
    assert kept.max() <= 6
    for position, expected in enumerate(survival, start=1):
        assert (kept > position).mean() == pytest.approx(expected, abs=0.004)
    fixed = np.asarray(FixedAcceptance(0.5).kept(200_000, 3, rng))
    assert fixed.mean() == pytest.approx(1 + 0.5 + 0.25 + 0.125, abs=0.01)


def test_draws_do_not_depend_on_who_asks_when() -> None:
    """Streams of one kind share one sequence; another kind's draws do not disturb it."""
    request = Request(0, 0.0, 1, 1)
    alone, disturbed = (DrawSource([[FixedAcceptance(0.6)]], 3) for _ in range(2))
    list(islice(disturbed(request, 2), 100))
    assert list(islice(alone(request, 5), 50)) == list(islice(disturbed(request, 5), 50))


def test_a_mix_has_its_shares_and_lengths() -> None:
    sources = [Source("a", FixedLength(100), FixedLength(5), weight=3.0, priority=2, shared_prefix_tokens=64),
               Source("b", FixedLength(7), FixedLength(9), weight=1.0, timeout_s=5.0)]  # fmt: skip
    maker = RequestMaker(sources, 0, prefix_block_tokens=16)
    requests = [maker.make(float(i)) for i in range(20_000)]
    first = [r for r in requests if r.traffic == 0]
    assert len(first) / len(requests) == pytest.approx(0.75, abs=0.01)
    assert {(r.prompt_tokens, r.output_tokens, r.priority, len(r.blocks)) for r in first} == {(164, 5, 2, 4)}
    assert all(r.deadline_s == r.arrival_s + 5.0 for r in requests if r.traffic == 1)
    with pytest.raises(TrafficError):
        RequestMaker([], 0)


def test_an_open_loop_ends_at_its_time_or_count() -> None:
    maker = RequestMaker([Source("a", FixedLength(1), FixedLength(1))], 0)
    times = iter([0.5, 1.5, 2.5, 3.5])
    assert [r.arrival_s for r in open_loop(times, maker, until_s=3.0)] == [0.5, 1.5, 2.5]
    assert len(list(open_loop(iter([0.1, 0.2, 0.3]), maker, until_s=9.0, limit=2))) == 2


def closed(users: int, *, think_s: float = 0.0, turns: int = 1, block: int = 0, until_s: float = 60.0) -> Run:
    limits = Limits(max_seqs=64, prefix_block_tokens=block)
    draws = DrawSource([[FixedAcceptance(0.6)]], 0)
    maker = RequestMaker([Source("a", FixedLength(64), FixedLength(32))], 0, draws=draws)
    loop = ClosedLoop(users, maker, think_s=think_s, turns=turns, prefix_block_tokens=block, start_over_s=0.5)
    return simulate(Deployment(limits=limits), AnalyticStepTime(), [3] * 65, draws, loop, until_s=until_s)


def test_without_thinking_every_user_is_always_in_the_system() -> None:
    result = closed(8).result
    assert result.little.in_system == pytest.approx(8, rel=0.01)
    assert result.steady


def test_thinking_users_obey_the_interactive_response_time_law() -> None:
    """N = X (R + Z): users, throughput, response and think time."""
    result = closed(10, think_s=2.0, until_s=600.0).result
    assert result.finished_per_s * (result.e2e_s.mean + 2.0) == pytest.approx(10, rel=0.03)


def test_conversations_grow_and_reuse_their_prefix() -> None:
    run = closed(4, turns=5, block=16, until_s=20.0)
    prompts = run.collector.requests.measures()["prompt_tokens"]
    # Turn t carries t messages of 64 and t - 1 answers of 32.
    assert set(prompts.tolist()) == {64.0, 160.0, 256.0, 352.0, 448.0}
    cache = run.result.cache
    assert cache is not None
    # Of 64 + 160 + ... + 448 = 1280 tokens the previous prompts' 832 can hit (answers are not in the prompt's blocks).
    assert cache.hit_rate == pytest.approx(832 / 1280, abs=0.03)


def test_a_closed_loop_needs_an_end() -> None:
    maker = RequestMaker([Source("a", FixedLength(1), FixedLength(1))], 0)
    with pytest.raises(TrafficError, match="never ends"):
        simulate(
            Deployment(), AnalyticStepTime(), [0] * 300, DrawSource([[FixedAcceptance(0)]], 0), ClosedLoop(1, maker)
        )


def test_starts_are_in_order_of_time() -> None:
    maker = RequestMaker([Source("a", FixedLength(1), FixedLength(1))], 0)
    starts = [r.arrival_s for r in ClosedLoop(5, maker, start_over_s=10.0).start()]
    assert starts == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert all(a <= b for a, b in pairwise(starts))
