"""Popularity: successive sampling by brute force, by simulation, and at its uniform limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.routing import exact, weighted
from twin.routing.ranks import balanced_map, largest_rank_distribution, mean_largest_rank, mean_loads, positional_map

WEIGHTS = [
    np.asarray([5.0, 1.0, 0.3, 2.0, 0.01, 1.0]),
    np.asarray([100.0, 50.0, 1.0, 1.0, 1.0, 0.001]),
    np.asarray([1.0, 1.0, 1.0, 1.0, 1.0]),
    np.asarray([3.0, 0.0, 2.0, 1.0, 0.5]),
]


def every_token(w: np.ndarray, top_k: int) -> dict[frozenset[int], float]:
    """Probability of every set of `top_k` experts, one pick after the other."""
    found: dict[frozenset[int], float] = {}
    for order in itertools.permutations(range(w.size), top_k):
        probability, left = 1.0, float(w.sum())
        for expert in order:
            probability *= w[expert] / left if left > 0 else 0.0
            left -= w[expert]
        found[frozenset(order)] = found.get(frozenset(order), 0.0) + probability
    return found


@pytest.mark.parametrize("w", WEIGHTS)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_inclusion_and_pairs_by_brute_force(w: np.ndarray, top_k: int) -> None:
    tokens = every_token(w, top_k)
    single = [sum(p for s, p in tokens.items() if i in s) for i in range(w.size)]
    pair = [
        [sum(p for s, p in tokens.items() if i not in s and j not in s) for j in range(w.size)] for i in range(w.size)
    ]
    assert np.abs(weighted.inclusion(w, top_k) - single).max() < 1e-9
    assert np.abs(weighted.both_missed(w, top_k) - pair).max() < 1e-9


@pytest.mark.parametrize("w", WEIGHTS)
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_union_by_brute_force(w: np.ndarray, tokens: int) -> None:
    law = np.zeros(w.size + 1)
    for batch in itertools.product(every_token(w, 2).items(), repeat=tokens):
        law[len(frozenset().union(*(s for s, _ in batch)))] += np.prod([p for _, p in batch])
    got = weighted.distribution(w, 2, tokens)
    u = np.arange(w.size + 1)
    assert np.abs(got - law).max() < 1e-9
    assert weighted.mean_unique(weighted.inclusion(w, 2), tokens) == pytest.approx(law @ u, abs=1e-9)
    assert weighted.variance_unique(w, 2, tokens) == pytest.approx(law @ u**2 - (law @ u) ** 2, abs=1e-9)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(1, 20))
def test_equal_weights_are_uniform(experts: int, top_k: int, tokens: int) -> None:
    top_k = min(top_k, experts)
    w = np.full(experts, 0.7)
    assert np.abs(weighted.inclusion(w, top_k) - top_k / experts).max() < 1e-9
    assert weighted.variance_unique(w, top_k, tokens) == pytest.approx(
        exact.variance_unique(experts, top_k, tokens), abs=1e-8
    )


def test_large_routers_agree_with_simulation() -> None:
    rng = np.random.default_rng(7)
    w = rng.gamma(0.5, size=128)
    ids = weighted.sample_tokens(rng, w, 6, (4000, 6)).reshape(4000, -1)
    unions = np.asarray([np.unique(row).size for row in ids])
    chosen = weighted.inclusion(w, 6)
    assert chosen.sum() == pytest.approx(6.0, abs=1e-9)
    # Standard error of the mean 0.03, of the variance 2 %.
    assert weighted.mean_unique(chosen, 6) == pytest.approx(unions.mean(), abs=0.12)
    assert weighted.variance_unique(w, 6, 6) == pytest.approx(unions.var(), rel=0.1)
    law = weighted.distribution(w, 6, 6)
    counted = np.bincount(unions, minlength=129) / unions.size
    assert 0.5 * np.abs(law - counted).sum() < 0.05  # total variation


def test_weights_are_recovered_from_inclusion() -> None:
    w = np.random.default_rng(1).gamma(1.0, size=64)
    chosen = weighted.inclusion(w, 4)
    found = weighted.weights_for(chosen, 4)
    assert found / found.sum() == pytest.approx(w / w.sum(), rel=1e-6)
    with pytest.raises(ValueError, match="add up"):
        weighted.weights_for(chosen * 0.5, 4)


@pytest.mark.parametrize("w", [[1.0, -1.0], [0.0, 1.0, 0.0], [float("nan"), 1.0]])
def test_impossible_weights_are_refused(w: list[float]) -> None:
    with pytest.raises(ValueError, match=r"weight|top_k"):
        weighted.inclusion(w, 2)


def test_rank_loads_at_the_uniform_limit() -> None:
    chosen, ranks = np.full(384, 6 / 384), positional_map(384, 4)
    assert mean_loads(chosen, 8, ranks) == pytest.approx(np.full(4, exact.mean_unique(384, 6, 8) / 4))
    for tokens in (1, 6, 64):
        assert mean_largest_rank(chosen, tokens, ranks) == pytest.approx(
            exact.mean_largest_rank(384, 6, tokens, 4), rel=0.03
        )


def test_busiest_rank_agrees_with_simulation() -> None:
    rng = np.random.default_rng(3)
    w, ranks = rng.gamma(1.0, size=96), positional_map(96, 4)
    ids = weighted.sample_tokens(rng, w, 4, (3000, 8)).reshape(3000, -1)
    busiest = [np.bincount(ranks[np.unique(row)], minlength=4).max() for row in ids]
    chosen = weighted.inclusion(w, 4)
    assert mean_largest_rank(chosen, 8, ranks) == pytest.approx(np.mean(busiest), rel=0.03)
    assert largest_rank_distribution(chosen, 8, ranks).sum() == pytest.approx(1.0)


@given(st.integers(1, 12), st.integers(12, 60))
def test_maps_keep_every_rank_full(ranks: int, experts: int) -> None:
    popularity = np.random.default_rng(ranks).gamma(0.5, size=experts)
    for rank_of in (positional_map(experts, ranks), balanced_map(popularity, ranks)):
        sizes = np.bincount(rank_of, minlength=ranks)
        assert sizes.sum() == experts and sizes.max() - sizes.min() <= 1


def test_a_balanced_map_lowers_the_busiest_rank() -> None:
    popularity = np.sort(np.random.default_rng(0).gamma(0.3, size=64))[::-1]
    chosen = np.minimum(4 * popularity / popularity.sum(), 1.0)
    worse = mean_largest_rank(chosen, 16, positional_map(64, 4))
    assert mean_largest_rank(chosen, 16, balanced_map(popularity, 4)) < worse
