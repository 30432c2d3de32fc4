"""Serve and watch pointed at each other; and the sequential test on its own, on simulated nulls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from watch_support import alarms, expectations, loaded, watch_of

from twin.watch.drift import Chart, Evidence, Family, deviations, gaussian, threshold
from twin.watch.session import LEVEL, STEP, describe, position

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


@pytest.mark.parametrize(
    ("traffic", "output", "users"),
    [
        ("mixed", 200, 1),
        ("mixed", 200, 4),
        ("mixed", 200, 16),
        ("mixed", None, 4),
        ("code", None, 1),
        ("code", None, 16),
    ],
)
def test_lower_acceptance_is_caught_and_its_position_named(traffic: str, output: int | None, users: int) -> None:
    engine = loaded(users, output=output, traffic=traffic, acceptance_shift={1: -0.1})
    found = alarms(list(watch_of(engine, traffic=traffic).run(TWO_MINUTES_S)))
    assert found and {factor for _, factor, _ in found} == {position(0)}
    assert found[0][2] == pytest.approx(-0.1, abs=0.04)


def test_easier_answers_are_no_change_of_one_position() -> None:
    """All positions of every stream better: the level, or nothing yet, but no single position."""
    expected = expectations()
    everywhere = {i + 1: 0.1 for i in range(5)}
    found = alarms(list(watch_of(loaded(16, acceptance_shift=everywhere)).run(2 * TWO_MINUTES_S)))
    assert found and {factor for _, factor, _ in found} == {LEVEL}
    assert found[0][2] > 0.05 and expected.most_positions == 5


@pytest.mark.parametrize("users", [1, 4, 16])
def test_long_and_uneven_answers_raise_nothing(users: int) -> None:
    """The class's own lengths, five minutes: a few answers fill many windows."""
    assert not alarms(list(watch_of(loaded(users, output=None, seed=11)).run(300.0)))


def test_both_at_once_are_told_apart() -> None:
    drifted = loaded(16, step_factor=0.8, acceptance_shift={2: -0.25})
    names = {factor for _, factor, _ in alarms(list(watch_of(drifted).run(TWO_MINUTES_S)))}
    assert names == {STEP, "acceptance at position 2"}


def test_an_alarm_says_what_moved() -> None:
    seen = list(watch_of(loaded(4, step_factor=1.15)).run(60.0))
    alarm = next(a for o in seen for a in o.alarms)
    assert describe(alarm).startswith("DRIFT: step time is +1")


def _run_length(rng: np.random.Generator, mean: float, sd: float, edge: float, limit: float, most: int) -> int:
    chart = Chart("x", limit)
    for n, deviation in enumerate(rng.normal(mean, sd, size=most), start=1):
        if chart.add(gaussian(float(deviation), sd, edge, 0.05), start_s=n - 1.0):
            return n
    return most


@pytest.mark.parametrize("sd", [0.02, 0.05, 0.1])
def test_false_alarms_on_simulated_nulls_are_as_rare_as_stated(sd: float) -> None:
    """At the very edge of the interval a chart's mean run to a false alarm is at least e^h windows; h for 100."""
    rng, limit = np.random.default_rng(1), threshold(1, 100.0)
    lengths = [_run_length(rng, 0.03, sd, 0.03, limit, 2000) for _ in range(60)]
    # Runs are about exponential: the mean of 60 has a standard error of 13 %; cut-off runs only lower it.
    assert float(np.mean(lengths)) > 100.0 * (1 - 2 * 0.13)
    inside = [_run_length(rng, 0.0, sd, 0.03, limit, 500) for _ in range(30)]
    assert float(np.mean(inside)) > float(np.mean([min(n, 500) for n in lengths]))


def test_one_bad_window_never_decides() -> None:
    chart = Chart("x", threshold(2, 1000.0))
    assert not chart.add(gaussian(100.0, 0.001, 0.05, 0.05), start_s=0.0)
    assert chart.level == pytest.approx(0.5)


def test_the_ratio_is_the_formula() -> None:
    """(c / s^2) (d - b - c / 2), and the mirror image; the most likely shift is the deviation."""
    found = gaussian(0.07, 0.04, 0.02, 0.05)
    assert found.ratio(+1) == pytest.approx(0.05 / 0.04**2 * (0.07 - 0.02 - 0.025))
    assert found.ratio(-1) == pytest.approx(0.05 / 0.04**2 * (-0.07 - 0.02 - 0.025))
    assert found.most_likely() == pytest.approx(0.07)
    assert gaussian(9.0, 0.04, 0.02, 0.05).most_likely() == pytest.approx(0.22)


def test_the_best_explanation_names_the_alarm() -> None:
    """One chart passes the limit first, another explains the same windows better: the alarm carries the other's name."""
    family, values = Family([Chart("a", 5.0), Chart("b", 5.0)]), deviations(0.02, 0.05)
    first = Evidence(np.linspace(0.0, 9.0, 9), values)
    better = Evidence(np.array([0, 0, 0, 0, 0, 0, 0, 0, 30.0]), values)
    raised = [family.add({"a": first, "b": better}, start_s=5.0 * i, end_s=5.0 * i + 5.0) for i in range(6)]
    alarm = next(a for a in raised if a is not None)
    assert alarm.factor == "b" and alarm.deviation > 0.1 and alarm.since_s == 0.0
    assert family.level < 1.0


def test_the_interval_is_the_predictions() -> None:
    """Edges: the 90 % interval of `twin predict` for the step, the class's own uncertainty for acceptance."""
    observation = list(watch_of(loaded(4)).run(10.0))[-1]
    assert observation.step is not None and 0.02 < observation.step.edge < 0.12
    assert observation.acceptance is not None
    assert np.all(observation.acceptance.edge > 0.005) and np.all(observation.acceptance.edge < 0.1)
    assert expectations().most_positions == 5
