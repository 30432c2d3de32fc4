"""Policies and schedules: both notations, refusals, adaptive verification against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.acceptance.policy import (
    Adaptive,
    ByStreams,
    ConfidenceCap,
    PerRequest,
    Schedule,
    StepCost,
    fixed,
    parse_schedule,
)
from twin.errors import PolicyError


def survival_of(k: int) -> np.ndarray:
    return 0.7 ** np.arange(1.0, k + 1)


def test_both_notations_are_one_schedule() -> None:
    text, rows = parse_schedule("1-4:5, 5-8:3, 9-32:3"), parse_schedule([[1, 4, 5], [5, 8, 3], [9, 32, 3]])
    assert text == rows == parse_schedule("[[1, 4, 5], [5, 8, 3], [9, 32, 3]]")
    assert text == parse_schedule('{"num_speculative_tokens_per_batch_size": [[1,4,5],[5,8,3],[9,32,3]]}')
    assert [text.k_for(n) for n in (1, 4, 5, 8, 9, 32)] == [5, 5, 3, 3, 3, 3]
    assert text.vllm() == "[[1, 4, 5], [5, 8, 3], [9, 32, 3]]"
    assert text.merged().text() == "1-4:5, 5-32:3"
    assert text.ks == (3, 5)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=8))
def test_writing_and_reading_back(steps: list[tuple[int, int]]) -> None:
    ranges, first = [], 1
    for length, k in steps:
        ranges.append((first, first + length - 1, k))
        first += length
    schedule = Schedule(tuple(ranges))
    assert parse_schedule(schedule.text()) == schedule == parse_schedule(schedule.vllm())
    merged = schedule.merged()
    assert all(merged.k_for(n) == schedule.k_for(n) for n in range(1, first))


@pytest.mark.parametrize(
    ("given_text", "message"),
    [
        ("1-4:5, 6-8:3", "no k for 5 streams"),
        ("1-4:5, 4-8:3", "overlap at 4"),
        ("2-4:5", "no k for 1 streams"),
        ("4-1:5", "larger than the last"),
        ("1-4:99", "0 to 64"),
        ("1-4=5", "FIRST-LAST:K"),
        ("", "empty"),
        ("[[1, 2]]", "whole numbers"),
        ("[[1, 4, true]]", "whole numbers"),
        ("[1, 2, 3]", "whole numbers"),
        ("[[1, 4, 5]", "not a list"),
        ("{}", "empty"),
        (5, "not a list"),
        ("1-99999999:3", "more than"),
    ],
)
def test_a_wrong_schedule_is_refused(given_text: object, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_schedule(given_text)  # type: ignore[arg-type]


def test_streams_outside_the_schedule_are_refused_with_the_range_to_add() -> None:
    with pytest.raises(PolicyError, match="5-9:5"):
        parse_schedule("1-4:5").k_for(9)


def test_fixed_and_scheduled_k() -> None:
    decision = ByStreams(parse_schedule("1-4:5, 5-8:3")).decide(6, survival_of)
    np.testing.assert_array_equal(decision.drafted, 3)
    np.testing.assert_array_equal(decision.rows, 4)
    np.testing.assert_allclose(decision.kept, 1 + survival_of(3).sum())
    assert ByStreams(fixed(0)).decide(2, survival_of).kept.tolist() == [1.0, 1.0]


def test_per_request_k() -> None:
    decision = PerRequest((5, 0, 3)).decide(3, survival_of)
    np.testing.assert_array_equal(decision.rows, [6, 1, 4])
    np.testing.assert_allclose(decision.kept, [1 + survival_of(5).sum(), 1.0, 1 + survival_of(3).sum()])
    with pytest.raises(PolicyError, match="one a stream"):
        PerRequest((5,)).decide(2, survival_of)
    with pytest.raises(PolicyError, match="per-request"):
        PerRequest((65,))


costs = st.lists(st.floats(0.0, 0.004), min_size=9, max_size=9)


streams_of_three = st.lists(st.lists(st.floats(0.05, 0.99), min_size=3, max_size=3), min_size=1, max_size=2)


@settings(max_examples=60, deadline=None)
@given(streams_of_three, costs, st.floats(0.0, 0.003))
def test_adaptive_finds_the_best_prefixes(conditional: list[list[float]], steps: list[float], draft_s: float) -> None:
    survival = np.cumprod(np.array(conditional).T, axis=0)
    streams, k = survival.shape[1], 3
    cost = StepCost(tuple(range(1, 10)), tuple(0.005 + np.cumsum(steps)))
    decision = Adaptive(k, cost, draft_s).decide(streams, lambda _: survival)

    def rate(prefixes: tuple[int, ...]) -> float:
        kept = sum(1 + survival[:n, i].sum() for i, n in enumerate(prefixes))
        return float(kept / (draft_s + cost.seconds_at(np.array(float(sum(prefixes) + streams)))))

    best = max(rate(prefixes) for prefixes in product(range(k + 1), repeat=streams))
    chosen = tuple(int(n) - 1 for n in decision.rows)
    assert rate(chosen) == pytest.approx(best, rel=1e-9)
    np.testing.assert_array_equal(decision.drafted, k)
    for i, n in enumerate(chosen):
        assert decision.kept[i] == pytest.approx(1 + survival[:n, i].sum())


def test_adaptive_verifies_all_when_rows_are_free_and_little_when_they_cost() -> None:
    free = Adaptive(5, StepCost((1, 64), (0.01, 0.01))).decide(4, survival_of)
    dear = Adaptive(5, StepCost((1, 64), (0.001, 0.064))).decide(4, survival_of)
    np.testing.assert_array_equal(free.rows, 6)
    assert dear.total_rows < free.total_rows
    np.testing.assert_array_equal(dear.drafted, 5)


def test_confidence_cap() -> None:
    decision = ConfidenceCap(5, 0.3).decide(2, survival_of)
    np.testing.assert_array_equal(decision.rows, 4)  # 0.7, 0.49, 0.343 are kept, 0.24 is not
    with pytest.raises(PolicyError):
        ConfidenceCap(5, 1.5)


@pytest.mark.parametrize(
    ("rows", "seconds"), [((1, 2), (0.1,)), ((), ()), ((2, 1), (0.1, 0.2)), ((1, 2), (0.2, 0.1)), ((1,), (0.0,))]
)
def test_a_broken_cost_table_is_refused(rows: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(PolicyError):
        StepCost(rows, seconds)
