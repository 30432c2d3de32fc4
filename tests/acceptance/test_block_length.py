"""The mechanism that carries a profile to another block length: fit, held-out errors, ranking of block lengths."""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from acceptance_support import ROOT, conditionals
from hypothesis import given
from hypothesis import strategies as st

from twin.acceptance.block_length import MECHANISM, carry, shape_from_mean
from twin.acceptance.block_length_fit import (
    Holdout,
    MechanismFit,
    Point,
    Sweep,
    fit_mechanism,
    from_means,
    leave_one_out,
    one_anchor,
    read_sweeps,
    with_errors,
)
from twin.acceptance.profile import conditional_from_survival, survival_from_conditional
from twin.errors import CalibrationError, TrafficError

TEXT = (ROOT / "calibration" / "acceptance" / "k_sweeps.csv").read_text(encoding="utf-8")
SWEEPS = read_sweeps(TEXT)


@lru_cache(maxsize=1)
def fitted() -> MechanismFit:
    return fit_mechanism(SWEEPS)


@lru_cache(maxsize=1)
def held_out() -> list[Holdout]:
    return leave_one_out([s for s in SWEEPS if s.drafter != "single-layer"])


def test_the_shipped_parameters_are_the_fit() -> None:
    found = with_errors(fitted().mechanism, SWEEPS)
    # shipped rounded to two or three digits
    np.testing.assert_allclose(astuple(MECHANISM), astuple(found), rtol=0.03)
    assert fitted().rms_percent < 1.8


def test_leave_one_out_error() -> None:
    errors = np.abs([h.error for h in held_out()])
    assert len(errors) > 120
    assert np.median(errors) < 0.012
    assert np.sqrt((errors**2).mean()) < 0.025
    # the ends of a sweep are extrapolations; the worst of all is a pair five drafts apart on another box
    assert errors.max() < 0.09


def test_the_other_models_lengths_from_five_alone() -> None:
    # 3.61, 3.77, 3.73, 3.47 at k = 5, 6, 7, 8: rises, turns, falls
    sweep = next(s for s in SWEEPS if s.name == "dsv4-pro-0813")
    points = {p.k: p for p in sweep.points}
    predicted = {k: from_means(sweep, [points[5]], points[k], MECHANISM) for k in (6, 7, 8)}
    for k, measured in ((6, 3.77), (7, 3.73), (8, 3.47)):
        assert predicted[k] == pytest.approx(measured, rel=0.04)
    assert predicted[8] < predicted[7] < predicted[6]
    assert predicted[6] > points[5].tokens_per_step


def test_longer_blocks_from_five_alone_on_the_lane() -> None:
    # 2.60 and 3.66 (block, k = 9) from 2.85 and 3.83 (token, k = 5); padded codegen 5.70-6.05 from 5.1
    by_name = {s.name: {p.k: p for p in s.points} for s in SWEEPS}
    for name, low, high in (("prose", 2.60, 2.60), ("code", 3.66, 3.66), ("codegen", 5.70, 6.05)):
        sweep = next(s for s in SWEEPS if s.name == f"sidecar-{name}")
        points = by_name[sweep.name]
        predicted = from_means(sweep, [points[5]], points[9], MECHANISM)
        assert low * 0.96 <= predicted <= high * 1.045
        rises = points[9].tokens_per_step > points[5].tokens_per_step
        assert (predicted > points[5].tokens_per_step) == rises


@pytest.mark.parametrize(("at_1", "at_5"), [(1.898, 4.19), (1.667, 2.49)])
def test_sweeps_of_another_box_that_no_fit_has_seen(at_1: float, at_5: float) -> None:
    # code and prose of an agent harness, greedy, GB300 with cold experts in Grace; counts of one run, so about 2 %
    one, five = (Point(k, "greedy", 0.0, mean, None) for k, mean in ((1, at_1), (5, at_5)))
    sweep = Sweep("grace", "block", 5, (one, five))
    assert from_means(sweep, [five], one, MECHANISM) == pytest.approx(at_1, rel=0.02)
    # from one position to five is a long way: the stated error is 4.6 %
    assert from_means(sweep, [one], five, MECHANISM) == pytest.approx(at_5, rel=2 * MECHANISM.widening(1, 5, 5))


def _pairs(sweeps: list[Sweep]) -> list[tuple[str, int, int, bool]]:
    """Pairs of block lengths of one sweep that differ by more than 3 %, each predicted without both of them."""
    out = []
    for sweep in sweeps:
        for a, b in combinations(sweep.points, 2):
            rest = [p for p in sweep.points if p.k not in (a.k, b.k)]
            given_points = rest or [a]
            difference = b.tokens_per_step / a.tokens_per_step - 1
            if abs(difference) <= 0.03:
                continue
            first = from_means(sweep, given_points, a, MECHANISM) if rest else a.tokens_per_step
            second = from_means(sweep, given_points, b, MECHANISM)
            out.append((sweep.name, a.k, b.k, (second > first) == (difference > 0)))
    return out


def test_the_longer_keeping_block_is_ranked_rightly() -> None:
    pairs = _pairs([s for s in SWEEPS if s.drafter != "single-layer"])
    right = sum(ok for *_, ok in pairs)
    assert len(pairs) > 300
    assert right / len(pairs) >= 0.97


def test_the_errors_widen_with_distance() -> None:
    # two of three predictions from one anchor lie within the stated error, not much more and not much less
    inside = []
    block = {s.name: s.trained_block for s in SWEEPS}
    for h in one_anchor([s for s in SWEEPS if s.drafter != "single-layer"]):
        inside.append(abs(h.error) <= MECHANISM.widening(h.used[0], h.k, block[h.sweep]))
    assert 0.6 <= np.mean(inside) <= 0.8


@given(conditionals, st.integers(1, 20), st.sampled_from([None, 1, 5, 7]))
def test_carry_keeps_a_profile_a_profile(c: np.ndarray, k: int, trained: int | None) -> None:
    s = survival_from_conditional(c)
    carried = carry(s, k, trained_block=trained)
    assert carried.shape == (k,)
    assert np.all(np.diff(carried) <= 0) and np.all((carried >= 0) & (carried <= 1))
    if trained is None or len(c) <= trained:
        np.testing.assert_allclose(carry(s, len(s), trained_block=trained), s, rtol=1e-6, atol=1e-9)


@given(st.floats(0.3, 0.95), st.integers(2, 5))
def test_dilution_lowers_every_position(c: float, k: int) -> None:
    s = survival_from_conditional(np.full(k, c))
    longer = conditional_from_survival(carry(s, k + 1, trained_block=5))[:k]
    if k < 5:
        assert np.all(longer < c)


@given(st.integers(1, 12), st.floats(0.02, 0.98), st.sampled_from([None, 5]))
def test_shape_has_the_mean(k: int, share: float, trained: int | None) -> None:
    mean = 1 + share * k * (0.5 if trained and k > trained else 1.0)
    try:
        s = shape_from_mean(k, mean, trained_block=trained)
    except TrafficError:
        assert trained is not None and k > trained
        return
    assert 1 + s.sum() == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("mean", [1.0, 6.0, 9.0])
def test_an_impossible_mean_is_refused(mean: float) -> None:
    with pytest.raises(TrafficError, match="between 1 and 6"):
        shape_from_mean(5, mean, trained_block=5)


def test_a_broken_sweep_table_says_the_line() -> None:
    with pytest.raises(CalibrationError, match="line 2"):
        read_sweeps(TEXT.splitlines()[0] + "\na,b,block,5,x,token,1.0,1.8,,s\n")
