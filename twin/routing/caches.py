"""Caches of experts that move, as against a fixed hot set: their hit rates have formulas of their own.

A *static* set hits with the share of routes its experts carry; a *perfect LFU* ends up as the static set of the
traffic it sees. An *LRU* cache of C experts a layer holds what was used last, so a route hits when its expert was
touched within the last T tokens, where the stream touches C experts in T tokens. By the working-set identity
(Denning 1968) the misses of a token are the growth of the union:

    U(T) = C        misses a token = U(T + 1) - U(T)        hit rate = 1 - misses / K

so LRU hits measure the union law at T, far beyond any verify block. A block of m tokens is served like m tokens one
after the other: misses grow with tokens, not with the union of the block,

    misses a block = m (U(T + 1) - U(T))        hit rate of its distinct experts = 1 - misses / U(m)

(measured on 36 topics, 6 tokens: 14.4 by block and 14.2 token by token at 25 slots, 1.48 and 1.42 at 200).

Under independent references (no locality) Che's approximation holds instead: sum_i 1 - e^{-p_i t} = C, hits =
sum_i p_i (1 - e^{-p_i t}) / sum_i p_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

#: Unique experts of a stream against its tokens (any real number of them).
UnionLaw = Callable[[float], float]
_LONGEST = 1e7


@dataclass(frozen=True)
class LruHits:
    """An LRU cache of `slots` experts a layer serving blocks of `block` tokens.

    window_tokens: how far back the cache remembers. misses_per_block: experts to fetch, a layer. token_hit_rate: of
    all routes; block_hit_rate: of the block's distinct experts.
    """

    slots: float
    block: int
    window_tokens: float
    misses_per_block: float
    token_hit_rate: float
    block_hit_rate: float


def lru_hits(union: UnionLaw, top_k: int, slots: float, *, block: int = 1) -> LruHits:
    """Hit rates of an LRU cache under a union law. A cache that holds all a stream ever touches never misses."""
    if slots < top_k or block < 1:
        raise ValueError(f"an LRU cache needs slots >= top_k = {top_k} and block >= 1, got {slots} and {block}")
    window = _window(union, slots)
    misses = 0.0 if math.isinf(window) else block * max(union(window + 1.0) - union(window), 0.0)
    return LruHits(
        slots=slots, block=block, window_tokens=window, misses_per_block=misses,
        token_hit_rate=max(1.0 - misses / (block * top_k), 0.0), block_hit_rate=max(1.0 - misses / union(block), 0.0),
    )  # fmt: skip


def static_hits(popularity: ArrayLike, slots: int) -> float:
    """Hit rate of the `slots` most popular experts of one layer, which is also where a perfect LFU ends up."""
    p = np.sort(np.asarray(popularity, dtype=float))[::-1]
    return float(p[:slots].sum() / p.sum())


def independent_lru_hits(popularity: ArrayLike, slots: int) -> float:
    """Hit rate of an LRU cache when references are independent draws by popularity (Che, Tung and Wang 2002)."""
    p = np.asarray(popularity, dtype=float) / np.sum(popularity)
    if slots >= np.count_nonzero(p):
        return 1.0
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(-np.expm1(-p * middle).sum()) < slots else (low, middle)
    return float(-(p * np.expm1(-p * low)).sum())


def stretched_union(experts: int, top_k: int, beta: float, skew: float = 0.0) -> UnionLaw:
    """The stretched law with popularity of squared coefficient of variation `skew`, for any real number of tokens.

    U(m) = E (1 - (1 + m^beta ((1 - K/E)^-v - 1))^(-1/v)): K at one token, the stretched law as v -> 0.
    """
    hit = -math.log1p(-top_k / experts)

    def union(tokens: float) -> float:
        n = tokens**beta if tokens > 0 else 0.0
        if skew < 1e-9:
            return -experts * math.expm1(-hit * n)
        return -experts * math.expm1(-math.log1p(n * math.expm1(skew * hit)) / skew)

    return union


def _window(union: UnionLaw, slots: float) -> float:
    if union(_LONGEST) <= slots:
        return math.inf
    low, high = 0.0, _LONGEST
    for _ in range(100):
        middle = math.sqrt(max(low, 1e-3) * high)
        low, high = (middle, high) if union(middle) < slots else (low, middle)
    return 0.5 * (low + high)
