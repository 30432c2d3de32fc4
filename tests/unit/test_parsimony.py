"""The limit on fitted parameters: analytic cases, and optimality against other shares with the same sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.fitting.parsimony import Directions, within


def _diagonal(s: list[float]) -> np.ndarray:
    return np.diag(s)


def test_no_limit_is_the_laplace_posterior() -> None:
    whitened = np.random.default_rng(0).standard_normal((9, 4)) * 3.0
    every = Directions.every(4)
    assert every.covariance(whitened) == pytest.approx(np.linalg.inv(np.eye(4) + whitened.T @ whitened))
    assert every.covariance(whitened, 4.0) == pytest.approx(np.linalg.inv(np.eye(4) + whitened.T @ whitened / 4.0))
    assert every.resolution(whitened) == pytest.approx(1.0 - np.diag(every.covariance(whitened)))


def test_below_the_limit_nothing_is_held_back() -> None:
    assert within(_diagonal([3.0, 1.0]), 1.5).basis == pytest.approx(np.eye(2))


def test_shares_of_two_directions_by_hand() -> None:
    """s^2 = 9 and 1, limit 1: (9 - m)/10 + (1 - m)/2 = 1 gives m = 2/3, shares 5/6 and 1/6."""
    whitened = _diagonal([3.0, 1.0])
    assert within(whitened, 1.0).resolution(whitened) == pytest.approx([5 / 6, 1 / 6])
    # A limit that only the first can use: (9 - m)/10 = 0.5 with m = 4 > 1.
    assert within(whitened, 0.5).resolution(whitened) == pytest.approx([0.5, 0.0])


def test_what_is_held_back_stays_in_doubt() -> None:
    """A share w of a direction leaves (1 - w)^2 of its prior variance and takes w^2 / s^2 of noise."""
    whitened = _diagonal([3.0, 1.0])
    shares, s2 = np.array([5 / 6, 1 / 6]), np.array([9.0, 1.0])
    assert np.diag(within(whitened, 1.0).covariance(whitened)) == pytest.approx((1 - shares) ** 2 + shares**2 / s2)


@given(
    st.lists(st.floats(0.05, 20.0), min_size=1, max_size=6),
    st.floats(0.05, 0.95),
    st.integers(0, 2**32 - 1),
)
def test_no_other_shares_with_that_sum_predict_better(s: list[float], part: float, seed: int) -> None:
    s2 = np.array(sorted(s, reverse=True)) ** 2
    full = s2 / (1.0 + s2)
    limit = float(part * np.sum(full))
    whitened = _diagonal(list(np.sqrt(s2)))
    shares = within(whitened, limit).resolution(whitened)
    assert float(np.sum(shares)) == pytest.approx(limit, rel=1e-6)
    assert np.all(shares <= full + 1e-9)

    def loss(w: np.ndarray) -> float:
        return float(np.sum(s2 * (1.0 - w) ** 2 + w**2))

    rng = np.random.default_rng(seed)
    other = shares + 0.1 * rng.standard_normal(len(shares)) * full
    other = np.clip(other, 0.0, full)
    other *= limit / max(float(np.sum(other)), 1e-12)
    if np.all(other <= full):
        assert loss(shares) <= loss(other) + 1e-9
