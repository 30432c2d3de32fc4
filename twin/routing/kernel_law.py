"""Time of an expert kernel over its whole range: a floor and the slowest of memory, cache and arithmetic.

`kernels.KernelLaw` is a straight line, and holds where reading weights binds. This law holds beyond: few experts stay in
the cache between calls, many tokens are bound by arithmetic, and in between every tile of tokens fetches its expert's
weights from the cache again. With E experts touched by m tokens, K picks each, b bytes and w weights an expert, a bytes
of activations a token, and T tiles of R rows,

    memory  = (E b [E b > cache] + m a) / memory bandwidth
    cache   = T b / cache bandwidth                             T = E ceil(m K / (E R))
    compute = 2 T R w / flops
    time    = floor + max(memory, cache, compute)

The three run side by side, so the slowest is the time (the roofline of Williams, Waterman and Patterson, 2009, with a
second level of memory). Weights stay in the cache when all of them fit, and none do otherwise: least-recently-used
replacement under reads in a fixed order. Tokens are spread evenly over the experts touched, and the engine chooses R by
the batch. Four numbers are fitted; bytes, weights and tiles follow from the shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from twin.routing.batch import Array

Bound = Literal["memory", "cache", "compute"]


@dataclass(frozen=True)
class ExpertShape:
    """What one expert is and how many a token picks; bytes are per weight and per activation."""

    hidden: int
    intermediate: int
    top_k: int
    weight_bytes: float
    activation_bytes: float = 2.0

    @property
    def weights(self) -> float:
        """Weights of an expert: gate, up and down."""
        return 3.0 * self.hidden * self.intermediate

    @property
    def expert_bytes(self) -> float:
        return self.weights * self.weight_bytes

    @property
    def token_bytes(self) -> float:
        """Activations written and read for a token: its row in and out; gate and up, their product and down a pick."""
        pick = 2 * (2 * self.intermediate) + 2 * self.intermediate + 2 * self.hidden
        return self.activation_bytes * (2 * self.hidden + self.top_k * pick)


@dataclass(frozen=True)
class TileRule:
    """Rows of a tile by batch: `rows[i]` up to `limits[i]` tokens, the last of `rows` beyond all limits."""

    limits: tuple[int, ...]
    rows: tuple[int, ...]

    def rows_of(self, tokens: ArrayLike) -> Array:
        return np.asarray(self.rows, dtype=float)[np.searchsorted(np.asarray(self.limits), np.asarray(tokens))]


#: Rows by batch in vLLM's fused Triton kernel, 16-bit weights, for a card and shape it has no tuned file for.
VLLM_TILES = TileRule((32, 96, 512), (16, 32, 64, 128))


@dataclass(frozen=True)
class RooflineLaw:
    """Seconds of a call that moves nothing, bytes/s of memory and cache, flop/s; and the bytes the cache holds."""

    floor_s: float
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    flops: float
    cache_bytes: float

    def legs_s(self, shape: ExpertShape, tiles: TileRule, experts: ArrayLike, tokens: ArrayLike) -> dict[Bound, Array]:
        """Seconds that memory, cache and arithmetic take, each alone."""
        e, m = np.asarray(experts, dtype=float), np.asarray(tokens, dtype=float)
        rows = tiles.rows_of(m)
        count = e * np.ceil(m * shape.top_k / (e * rows))
        weights = e * shape.expert_bytes
        missed = np.where(weights > self.cache_bytes, weights, 0.0)
        return {
            "memory": np.asarray((missed + m * shape.token_bytes) / self.memory_bytes_per_s),
            "cache": np.asarray(count * shape.expert_bytes / self.cache_bytes_per_s),
            "compute": np.asarray(2.0 * count * rows * shape.weights / self.flops),
        }

    def time_s(self, shape: ExpertShape, tiles: TileRule, experts: ArrayLike, tokens: ArrayLike) -> Array:
        """Kernel time for experts touched and tokens of the batch (arrays broadcast)."""
        slowest = np.maximum.reduce(list(self.legs_s(shape, tiles, experts, tokens).values()))
        return np.asarray(self.floor_s + slowest)

    def bound(self, shape: ExpertShape, tiles: TileRule, experts: float, tokens: float) -> Bound:
        """Which of the three the time is."""
        legs = self.legs_s(shape, tiles, experts, tokens)
        return max(legs, key=lambda name: float(legs[name]))


def fit_roofline(
    start: RooflineLaw, shape: ExpertShape, tiles: TileRule, experts: Array, tokens: Array, time_s: Array
) -> RooflineLaw:
    """Least squares of log(time) over floor, both bandwidths and flop/s.

    `start` holds data-sheet rates, which are ceilings: a leg that binds nowhere has no gradient, so the search begins at
    the whole, a half and a quarter of cache and arithmetic rates and keeps the best. The cache's size is kept: any size
    between two measured numbers of experts fits alike. Raises ValueError with fewer than five measurements.
    """
    from scipy.optimize import least_squares

    if time_s.size < 5:
        raise ValueError(f"four numbers need at least five measurements; got {time_s.size}")

    def law(logs: Array) -> RooflineLaw:
        floor, memory, cache, flops = (float(x) for x in np.exp(logs))
        return RooflineLaw(floor, memory, cache, flops, start.cache_bytes)

    def residual(logs: Array) -> Array:
        return np.asarray(np.log(law(logs).time_s(shape, tiles, experts, tokens) / time_s))

    first = np.log([start.floor_s, start.memory_bytes_per_s, start.cache_bytes_per_s, start.flops])
    shares = [np.log([1.0, 1.0, cache, flops]) for cache in (1.0, 0.5, 0.25) for flops in (1.0, 0.5, 0.25)]
    return law(min((least_squares(residual, first + share) for share in shares), key=lambda fit: float(fit.cost)).x)
