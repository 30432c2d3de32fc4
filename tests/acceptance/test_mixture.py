"""Stream mixtures: the pooled profile is exact, the spread is the asked one, conditionals rise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from acceptance_support import DATA, conditionals
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.acceptance.mixture import StreamMixture, beta_streams, draw_kept, fit_beta_streams, spread_streams
from twin.acceptance.profile import Counts, conditional_from_survival, survival_from_conditional


@settings(max_examples=60, deadline=None)
@given(conditionals, st.floats(0.0, 0.4))
def test_pooled_survival_is_reproduced_exactly(c: np.ndarray, spread: float) -> None:
    survival = survival_from_conditional(c)
    mixture = spread_streams(survival, spread)
    np.testing.assert_allclose(mixture.pooled(), survival, rtol=1e-12, atol=1e-15)
    assert np.all((mixture.conditional >= 0) & (mixture.conditional <= 1))


@pytest.mark.parametrize("spread", [0.05, 0.15, 0.25])
def test_the_spread_is_the_asked_one(spread: float) -> None:
    survival = survival_from_conditional(np.array([0.72, 0.68, 0.68, 0.68, 0.68]))
    assert spread_streams(survival, spread).stream_sd() == pytest.approx(spread, rel=1e-6)


def test_flat_streams_pool_to_rising_conditionals() -> None:
    mixture = StreamMixture(np.array([0.5, 0.5]), np.array([[0.5] * 5, [0.9] * 5]).T)
    pooled = conditional_from_survival(mixture.pooled())
    assert np.all(np.diff(pooled) > 0)
    assert pooled[0] == pytest.approx(0.7)
    assert pooled[-1] < 0.9


def test_beta_mixture_is_its_integral() -> None:
    from scipy.special import beta

    a, b = 3.0, 1.7
    np.testing.assert_allclose(beta_streams(a, b, 6), [beta(a + p, b) / beta(a, b) for p in range(1, 7)], rtol=1e-12)
    j = np.arange(1, 7)
    np.testing.assert_allclose(conditional_from_survival(beta_streams(a, b, 6)), (a + j - 1) / (a + b + j - 1))


def test_a_counted_window_with_rising_conditionals_is_explained_by_unlike_streams() -> None:
    window = json.loads((DATA / "rhys101_speculation_c8_window.json").read_text())["delta"]
    counts = Counts(window["num_drafts_total"], tuple(window["accepted_per_position"]))
    found = beta_streams(*fit_beta_streams(counts), 5)
    # 0.785, 0.602, 0.459, 0.393, 0.333; conditionals dip at position 3, which no mixture of flat streams can do
    assert np.abs(found - counts.survival).max() < 0.03
    assert 1 + found.sum() == pytest.approx(1 + counts.survival.sum(), rel=0.005)

    reached = np.array([counts.drafts, *counts.accepted[:-1]])
    kept = np.array(counts.accepted)

    def log_likelihood(conditional: np.ndarray) -> float:
        return float((kept * np.log(conditional) + (reached - kept) * np.log1p(-conditional)).sum())

    alike = np.full(5, kept.sum() / reached.sum())  # the best single conditional for all streams
    assert log_likelihood(conditional_from_survival(found)) - log_likelihood(alike) > 10


def test_streams_keep_their_profile_over_steps() -> None:
    survival = survival_from_conditional(np.full(5, 0.7))
    mixture = spread_streams(survival, 0.2)
    rng = np.random.default_rng(0)
    profiles = mixture.draw_streams(rng, 3000)
    kept = draw_kept(rng, profiles, 200)
    assert kept.shape == (3000, 200)
    assert kept.mean() == pytest.approx(1 + survival.sum(), rel=0.02)
    between = kept.mean(axis=1).std() / kept.mean()
    assert between == pytest.approx(0.2, rel=0.1)


def test_no_spread_is_one_profile_for_all() -> None:
    survival = survival_from_conditional(np.array([0.8, 0.7]))
    mixture = spread_streams(survival, 0.0)
    assert mixture.stream_sd() == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(mixture.pooled(), survival)
