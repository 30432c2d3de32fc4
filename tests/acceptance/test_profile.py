"""Profiles: conversions both ways, kept tokens, Beta posteriors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from acceptance_support import DATA, conditionals
from hypothesis import given

from twin.acceptance.profile import (
    Counts,
    check_survival,
    conditional_from_survival,
    kept_distribution,
    kept_variance,
    survival_from_conditional,
    tokens_per_step,
)
from twin.errors import TrafficError


@given(conditionals)
def test_conversion_and_back(c: np.ndarray) -> None:
    np.testing.assert_allclose(conditional_from_survival(survival_from_conditional(c)), c, rtol=1e-9)


@given(conditionals)
def test_moments_of_kept_tokens_agree_with_their_distribution(c: np.ndarray) -> None:
    s = survival_from_conditional(c)
    chance, kept = kept_distribution(s), np.arange(1, len(s) + 2)
    assert chance.sum() == pytest.approx(1.0)
    assert chance @ kept == pytest.approx(float(tokens_per_step(s)))
    assert chance @ kept**2 - (chance @ kept) ** 2 == pytest.approx(kept_variance(s), abs=1e-9)


def test_nothing_survives_after_a_certain_rejection() -> None:
    np.testing.assert_array_equal(conditional_from_survival([0.5, 0.0, 0.0]), [0.5, 0.0, 0.0])


def test_survival_that_rises_is_refused_with_the_likely_reason() -> None:
    with pytest.raises(TrafficError, match="conditional"):
        check_survival([0.6, 0.7], "values")


def test_vllm_counter_window_has_the_published_mean() -> None:
    delta = json.loads((DATA / "rhys101_speculation_c8_window.json").read_text())
    counts = Counts(delta["delta"]["num_drafts_total"], tuple(delta["delta"]["accepted_per_position"]))
    # the file states mean accepted drafts 2.5717860494 and its position fractions
    assert float(counts.survival.sum()) == pytest.approx(delta["mean_accepted_per_draft"], abs=1e-9)
    np.testing.assert_allclose(counts.survival, delta["position_acceptance_fraction"], atol=1e-12)


def test_posterior_is_the_binomial_limit_for_long_runs_and_wide_for_short_ones() -> None:
    survival = np.array([0.7, 0.5, 0.3])
    long = Counts(1_000_000, tuple(int(1_000_000 * s) for s in survival))
    short = Counts(20, tuple(int(20 * s) for s in survival))
    # Drafts are independent in this limit: sd of the mean = sd(kept) / sqrt(drafts).
    limit = np.sqrt(kept_variance(survival) / 1_000_000) / (1 + survival.sum())
    assert long.relative_sd() == pytest.approx(limit, rel=0.01)
    assert short.relative_sd() > 50 * long.relative_sd()


def test_posterior_draws_spread_as_the_error_propagation_says() -> None:
    counts = Counts(400, (300, 200, 150, 90))
    kept = 1 + counts.draw(np.random.default_rng(0), 20_000).sum(axis=0)
    assert kept.std() / kept.mean() == pytest.approx(counts.relative_sd(), rel=0.05)


def test_no_counts_is_refused() -> None:
    with pytest.raises(TrafficError, match="at least one"):
        Counts(0, (0,))
