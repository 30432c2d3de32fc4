"""The Shapley value against its axioms and against games whose value is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from twin.planning.explain import shapley

players = st.integers(0, 5)


def game(n: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(float, (1 << n, 3), elements=st.floats(-10, 10))


def by_orders(values: np.ndarray, n: int) -> np.ndarray:
    """The definition: what a player adds, averaged over all orders of arrival."""
    total = np.zeros((n, values.shape[1]))
    orders = list(permutations(range(n)))
    for order in orders:
        mask = 0
        for player in order:
            total[player] += values[mask | 1 << player] - values[mask]
            mask |= 1 << player
    return total / len(orders)


@given(players.flatmap(lambda n: st.tuples(st.just(n), game(n))))
def test_equals_the_mean_over_orders_and_adds_up(case: tuple[int, np.ndarray]) -> None:
    n, values = case
    found = shapley(list(values), n)
    assert found.shape == (n, 3)
    np.testing.assert_allclose(found, by_orders(values, n), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=0), values[-1] - values[0], atol=1e-12)


@given(players.flatmap(lambda n: st.tuples(st.just(n), game(n))))
def test_the_game_played_backwards_has_the_other_sign(case: tuple[int, np.ndarray]) -> None:
    n, values = case
    full = (1 << n) - 1
    backwards = [values[full ^ mask] for mask in range(1 << n)]
    np.testing.assert_allclose(shapley(backwards, n), -shapley(list(values), n), atol=1e-12)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5))
def test_an_additive_game_gives_everyone_their_own(worth: list[float]) -> None:
    n = len(worth)
    values = [np.array([sum(w for i, w in enumerate(worth) if mask >> i & 1)]) for mask in range(1 << n)]
    np.testing.assert_allclose(shapley(values, n)[:, 0], worth, atol=1e-12)


def test_the_glove_game() -> None:
    # Player 0 has a left glove, 1 and 2 a right one each; a pair is worth 1. Known: 2/3, 1/6, 1/6.
    values = [np.array([float(bool(m & 1) and bool(m & 6))]) for m in range(8)]
    np.testing.assert_allclose(shapley(values, 3)[:, 0], [2 / 3, 1 / 6, 1 / 6])


def test_a_game_with_missing_sets_is_refused() -> None:
    with pytest.raises(ValueError, match="3 players has 8 values, got 7"):
        shapley([np.zeros(1)] * 7, 3)
