"""Unique experts of independent uniform tokens, exactly: moments, full distribution, subsets, ranks.

Each of m tokens picks K of E experts, every K-subset equally likely and independently of the other tokens. The number
of experts touched is then the classical occupancy problem with groups of K (the "committee" problem):

    P(one expert missed)  q1 = (1 - K/E)^m
    P(two missed)         q2 = ((E-K)(E-K-1) / (E(E-1)))^m
    mean = E (1 - q1)     variance = E q1 (1 - q1) + E (E-1) (q2 - q1^2)

The distribution is a Markov chain over tokens: with u of a set touched, a token adds a hypergeometric number of new
ones. All its terms are positive, so nothing cancels and nothing overflows: transition probabilities are ratios of
Python integers. Given its size, the union is a uniformly random subset by symmetry; that gives the hot/cold split
(hypergeometric) and the loads of expert-parallel ranks (multivariate hypergeometric) without another chain.

Functions raise ValueError for shapes that cannot be (top_k > experts, a negative number of tokens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from twin.routing.batch import Array, uniform_variance


def mean_unique(experts: int, top_k: int, tokens: float) -> float:
    """Expected unique experts of `tokens` tokens (any real number >= 0 of them)."""
    _check(experts, top_k, tokens)
    if top_k == experts:
        return float(experts if tokens > 0 else 0)
    return -experts * math.expm1(tokens * math.log1p(-top_k / experts))


def variance_unique(experts: int, top_k: int, tokens: float) -> float:
    """Variance of unique experts of `tokens` tokens."""
    _check(experts, top_k, tokens)
    return float(uniform_variance(experts, top_k, float(tokens)))


def distribution(experts: int, top_k: int, tokens: int, *, within: int | None = None) -> Array:
    """P(u experts touched) for u = 0 .. n, shape (n + 1,), counting only a fixed set of `within` = n experts.

    `within` is the size of a cold set, of a hot set, or of one rank's experts; all experts when left out.
    """
    _check(experts, top_k, tokens)
    size = experts if within is None else within
    if not 0 <= size <= experts:
        raise ValueError(f"within must lie in 0 .. {experts}, got {size}")
    steps = _new_in_set(experts, top_k, size)
    state = np.zeros(size + 1)
    state[0] = 1.0
    for _ in range(int(tokens)):
        after = state * steps[0]
        for new in range(1, min(top_k, size) + 1):
            after[new:] += state[:-new] * steps[new][:-new]
        state = after
    return state


def split_distribution(experts: int, top_k: int, tokens: int, cold: int) -> Array:
    """Joint P(hot = h, cold = c) of the experts touched, shape (experts - cold + 1, cold + 1)."""
    unique = distribution(experts, top_k, tokens)
    hot = experts - cold
    joint = np.zeros((hot + 1, cold + 1))
    for u, probability in enumerate(unique):
        if probability > 0.0:
            whole = math.comb(experts, u)
            for c in range(max(0, u - hot), min(u, cold) + 1):
                joint[u - c, c] = probability * (math.comb(cold, c) * math.comb(hot, u - c) / whole)
    return joint


def largest_rank_distribution(experts: int, top_k: int, tokens: int, ranks: int | Sequence[int]) -> Array:
    """P(the busiest rank touches t of its experts), t = 0 .. largest rank size.

    `ranks` is their number (experts are dealt out as evenly as can be) or the number of experts of each rank.
    """
    sizes = rank_sizes(experts, ranks)
    unique = distribution(experts, top_k, tokens)
    most = max(sizes)
    below = np.empty(most + 1)
    # P(all loads <= t | u) = [x^u] prod_r sum_{l<=t} C(n_r, l) x^l / C(E, u); C(n, l) 2^-n keeps every term below one.
    whole = _binomial_row(experts)
    for t in range(most + 1):
        product = np.ones(1)
        for size in sizes:
            product = np.convolve(product, _binomial_row(size)[: t + 1])
        # Coefficients beyond the degree of the product are zero: that many experts do not fit under t a rank.
        below[t] = float(np.sum(unique[: product.size] * product / whole[: product.size]))
    return np.diff(np.concatenate(([0.0], np.minimum(below, 1.0))))


def mean_largest_rank(experts: int, top_k: int, tokens: int, ranks: int | Sequence[int]) -> float:
    """Expected number of experts touched on the busiest rank."""
    weights = largest_rank_distribution(experts, top_k, tokens, ranks)
    return float(np.arange(weights.size) @ weights)


def rank_sizes(experts: int, ranks: int | Sequence[int]) -> tuple[int, ...]:
    """Experts of each rank; raises ValueError when they do not add up to `experts`."""
    if isinstance(ranks, int):
        if not 1 <= ranks <= experts:
            raise ValueError(f"ranks must lie in 1 .. {experts}, got {ranks}")
        return tuple(experts // ranks + (1 if r < experts % ranks else 0) for r in range(ranks))
    sizes = tuple(ranks)
    if sum(sizes) != experts or min(sizes) < 0:
        raise ValueError(f"rank sizes must add up to {experts}, got {sizes}")
    return sizes


@lru_cache(maxsize=32)
def _new_in_set(experts: int, top_k: int, size: int) -> Array:
    """[j, c]: probability that a token adds j new experts to a set of `size` of which c are touched."""
    whole = math.comb(experts, top_k)
    steps = np.zeros((min(top_k, size) + 1, size + 1))
    for c in range(size + 1):
        free = size - c
        for new in range(min(top_k, free) + 1):
            steps[new, c] = math.comb(free, new) * math.comb(experts - free, top_k - new) / whole
    return steps


@lru_cache(maxsize=256)
def _binomial_row(n: int) -> Array:
    whole = 1 << n
    return np.asarray([math.comb(n, k) / whole for k in range(n + 1)])


def _check(experts: int, top_k: int, tokens: float) -> None:
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k must lie in 1 .. experts = {experts}, got {top_k}")
    if not tokens >= 0:
        raise ValueError(f"tokens must not be negative, got {tokens}")
