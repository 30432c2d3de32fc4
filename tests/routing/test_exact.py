"""Uniform routing: closed forms, brute force on small routers, no overflow on large ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.routing import exact

SMALL = [(5, 2, 3), (6, 2, 3), (6, 3, 2), (4, 1, 5), (5, 5, 2), (7, 2, 2)]


def every_batch(experts: int, top_k: int, tokens: int) -> list[list[tuple[int, ...]]]:
    """Every way of `tokens` tokens to choose `top_k` experts, all equally likely."""
    subsets = list(itertools.combinations(range(experts), top_k))
    return [list(batch) for batch in itertools.product(subsets, repeat=tokens)]


@pytest.mark.parametrize(("experts", "top_k", "tokens"), SMALL)
def test_moments_and_distribution_by_brute_force(experts: int, top_k: int, tokens: int) -> None:
    unions = np.asarray([len(set().union(*b)) for b in every_batch(experts, top_k, tokens)])
    law = exact.distribution(experts, top_k, tokens)
    assert np.abs(law - np.bincount(unions, minlength=experts + 1) / unions.size).max() < 1e-9
    assert exact.mean_unique(experts, top_k, tokens) == pytest.approx(unions.mean(), abs=1e-9)
    assert exact.variance_unique(experts, top_k, tokens) == pytest.approx(unions.var(), abs=1e-9)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), SMALL)
@pytest.mark.parametrize("cold", [0, 1, 3])
def test_hot_and_cold_by_brute_force(experts: int, top_k: int, tokens: int, cold: int) -> None:
    batches = every_batch(experts, top_k, tokens)
    joint = np.zeros((experts - cold + 1, cold + 1))
    for batch in batches:
        union = set().union(*batch)
        inside = sum(1 for e in union if e < cold)
        joint[len(union) - inside, inside] += 1 / len(batches)
    law = exact.split_distribution(experts, top_k, tokens, cold)
    assert np.abs(law - joint).max() < 1e-9
    assert np.abs(law.sum(axis=0) - exact.distribution(experts, top_k, tokens, within=cold)).max() < 1e-9


@pytest.mark.parametrize(("experts", "top_k", "tokens"), SMALL)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_busiest_rank_by_brute_force(experts: int, top_k: int, tokens: int, ranks: int) -> None:
    sizes = exact.rank_sizes(experts, ranks)
    rank_of = np.repeat(np.arange(ranks), sizes)
    busiest = [
        np.bincount(rank_of[list(set().union(*b))], minlength=ranks).max() for b in every_batch(experts, top_k, tokens)
    ]
    law = exact.largest_rank_distribution(experts, top_k, tokens, ranks)
    assert np.abs(law - np.bincount(busiest, minlength=law.size) / len(busiest)).max() < 1e-9
    assert exact.mean_largest_rank(experts, top_k, tokens, ranks) == pytest.approx(np.mean(busiest), abs=1e-9)


@given(st.integers(2, 512), st.integers(1, 12), st.integers(0, 64))
def test_distribution_has_the_closed_moments(experts: int, top_k: int, tokens: int) -> None:
    top_k = min(top_k, experts)
    law, u = exact.distribution(experts, top_k, tokens), np.arange(experts + 1)
    assert law.min() >= 0.0 and law.sum() == pytest.approx(1.0, abs=1e-9)
    mean = float(law @ u)
    assert mean == pytest.approx(exact.mean_unique(experts, top_k, tokens), abs=1e-9 * experts)
    variance = float(law @ (u - mean) ** 2)
    assert variance == pytest.approx(exact.variance_unique(experts, top_k, tokens), abs=1e-9 * experts)


@pytest.mark.parametrize("tokens", [1, 2, 64, 4096])
def test_no_overflow_at_512_experts(tokens: int) -> None:
    law = exact.distribution(512, 10, tokens)
    assert np.isfinite(law).all() and law.sum() == pytest.approx(1.0, abs=1e-9)
    assert law @ np.arange(513) == pytest.approx(exact.mean_unique(512, 10, tokens), abs=1e-9)
    busiest = exact.largest_rank_distribution(512, 10, tokens, 8)
    assert np.isfinite(busiest).all() and busiest.sum() == pytest.approx(1.0, abs=1e-9)
    assert exact.variance_unique(512, 10, tokens) >= 0.0


def test_one_token_is_top_k_and_no_token_is_nothing() -> None:
    assert exact.mean_unique(384, 6, 1) == pytest.approx(6.0, abs=1e-12)
    assert exact.variance_unique(384, 6, 1) == pytest.approx(0.0, abs=1e-9)
    assert exact.mean_unique(384, 6, 0) == 0.0
    assert exact.distribution(384, 6, 0)[0] == 1.0


def test_known_figures() -> None:
    # Independent uniform routing at 6 tokens of 384/6: 34.6; 22 experts placed at random among 384 with 89 cold have
    # none of them cold with 0.25 % (hypergeometric).
    assert exact.mean_unique(384, 6, 6) == pytest.approx(34.6, abs=0.05)
    law = exact.split_distribution(384, 22, 1, 89)
    assert law[22, 0] == pytest.approx(0.0025, abs=0.0003)
    assert float(law.sum(axis=0) @ np.arange(90)) == pytest.approx(5.1, abs=0.05)


@pytest.mark.parametrize("call", [(3, 4, 1), (3, 0, 1), (3, 1, -1)])
def test_impossible_shapes_are_refused(call: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        exact.distribution(*call)


def test_bad_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks"):
        exact.rank_sizes(8, 9)
    with pytest.raises(ValueError, match="add up"):
        exact.rank_sizes(8, (3, 4))
    with pytest.raises(ValueError, match="within"):
        exact.distribution(8, 2, 1, within=9)
