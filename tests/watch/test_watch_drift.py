"""Serve and watch pointed at each other; and the sequential test on its own, on simulated nulls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from watch_support import alarms, expectations, loaded, watch_of

from twin.watch.drift import Chart, threshold
from twin.watch.session import ACCEPTANCE_BEYOND, STEP, describe

TWO_MINUTES_S = 120.0


@pytest.mark.parametrize("users", [1, 4, 16])
def test_the_same_lane_does_not_drift(users: int) -> None:
    """Five simulated minutes without an alarm; the expected step is within 2 % of the mean over windows."""
    seen = list(watch_of(loaded(users, seed=1)).run(300.0))
    assert not alarms(seen)
    ratios = [o.step_ratio for o in seen if o.step_ratio]
    assert len(ratios) > 50
    assert float(np.mean(ratios)) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("users", [1, 4, 16])
def test_a_slower_step_is_caught_and_named(users: int) -> None:
    found = alarms(list(watch_of(loaded(users, step_factor=1.15)).run(TWO_MINUTES_S)))
    assert found and {factor for _, factor, _ in found} == {STEP}
    assert math.expm1(found[0][2]) == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize("users", [4, 16])
def test_lower_acceptance_is_caught_and_its_position_named(users: int) -> None:
    found = alarms(list(watch_of(loaded(users, acceptance_shift={1: -0.1})).run(TWO_MINUTES_S)))
    assert found and {factor for _, factor, _ in found} == {"acceptance at position 1"}
    assert found[0][2] == pytest.approx(-0.1, abs=0.04)


def test_both_at_once_are_told_apart() -> None:
    drifted = loaded(16, step_factor=0.8, acceptance_shift={2: -0.25})
    names = {factor for _, factor, _ in alarms(list(watch_of(drifted).run(TWO_MINUTES_S)))}
    assert names == {STEP, "acceptance at position 2"}


def test_an_alarm_says_what_moved() -> None:
    seen = list(watch_of(loaded(4, step_factor=1.15)).run(60.0))
    alarm = next(a for o in seen for a in o.alarms)
    assert describe(alarm).startswith("DRIFT: step time is +1")


def _run_length(rng: np.random.Generator, mean: float, sd: float, edge: float, limit: float, most: int) -> int:
    chart = Chart("x", ACCEPTANCE_BEYOND, limit)
    for n, deviation in enumerate(rng.normal(mean, sd, size=most), start=1):
        if chart.add(float(deviation), sd, edge, start_s=n - 1.0, end_s=float(n)) is not None:
            return n
    return most


@pytest.mark.parametrize("sd", [0.02, 0.05, 0.1])
def test_false_alarms_on_simulated_nulls_are_as_rare_as_stated(sd: float) -> None:
    """At the very edge of the interval a chart's mean run to a false alarm is at least e^h windows; h for 100."""
    rng, limit = np.random.default_rng(1), threshold(1, 100.0)
    lengths = [_run_length(rng, 0.03, sd, 0.03, limit, 4000) for _ in range(60)]
    # Runs are about exponential: the mean of 60 has a standard error of 13 %; cut-off runs only lower it.
    assert float(np.mean(lengths)) > 100.0 * (1 - 2 * 0.13)
    inside = [_run_length(rng, 0.0, sd, 0.03, limit, 500) for _ in range(30)]
    assert float(np.mean(inside)) > float(np.mean([min(n, 500) for n in lengths]))


def test_one_bad_window_never_decides() -> None:
    chart = Chart("x", 0.05, threshold(2, 1000.0))
    assert chart.add(100.0, 0.001, 0.05, start_s=0.0, end_s=1.0) is None
    assert chart.add(math.nan, 0.1, 0.05, start_s=1.0, end_s=2.0) is None


def test_the_interval_is_the_predictions() -> None:
    """Edges: the 90 % interval of `twin predict` for the step, the class's own uncertainty for acceptance."""
    observation = list(watch_of(loaded(4)).run(10.0))[-1]
    assert observation.step is not None and 0.02 < observation.step.edge < 0.12
    assert observation.acceptance is not None
    assert np.all(observation.acceptance.edge > 0.005) and np.all(observation.acceptance.edge < 0.1)
    assert expectations().most_positions == 5
