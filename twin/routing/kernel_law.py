"""Time of an expert kernel over its whole range: a floor and the slowest of memory, cache and arithmetic.

`kernels.KernelLaw` is a straight line, and holds where reading weights binds. This law holds beyond: few experts stay in
the cache between calls, many tokens are bound by arithmetic, and in between every tile of tokens fetches its expert's
weights from the cache again. With E experts touched by m tokens, b bytes and w weights an expert, a bytes of activations
a token, and T tiles of R rows,

    memory  = (E b [E b > cache] + m a) / memory bandwidth
    cache   = T b / cache bandwidth
    compute = 2 T R w / flops
    time    = floor + max(memory, cache, compute)

The three run side by side, so the slowest is the time (the roofline of Williams, Waterman and Patterson, 2009, with a
second level of memory). Weights stay in the cache when all of them fit, and none do otherwise: least-recently-used
replacement under reads in a fixed order. An expert of n tokens is ceil(n / R) tiles, the last one padded, and the engine
chooses R by the batch. Four numbers are fitted; bytes, weights and tiles follow from shape and routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twin.routing.batch import Array

Bound = Literal["memory", "cache", "compute"]


@dataclass(frozen=True)
class ExpertShape:
    """What one expert is, and how many a token picks (of one rank's experts: its share of the picks)."""

    hidden: int
    intermediate: int
    top_k: float
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


#: What vLLM's fused Triton kernel uses for a card and shape it has no tuned file for: 16-bit weights, FP8 in blocks.
VLLM_TILES = TileRule((32, 96, 512), (16, 32, 64, 128))
VLLM_FP8_BLOCK_TILES = TileRule((64,), (16, 64))


@dataclass(frozen=True)
class Work:
    """What calls do: tokens of the batch, experts touched, tiles and rows of a tile; arrays of one shape (calls,)."""

    tokens: Array
    experts: Array
    tiles: Array
    rows: Array


def even_work(rule: TileRule, top_k: float, experts: ArrayLike, tokens: ArrayLike) -> Work:
    """Calls whose picks are spread evenly over the experts touched: E ceil(m K / (E R)) tiles."""
    e, m = np.broadcast_arrays(np.asarray(experts, dtype=float), np.asarray(tokens, dtype=float))
    rows = rule.rows_of(m)
    return Work(m, e, np.asarray(e * np.ceil(m * top_k / (e * rows))), rows)


def work_of_loads(rule: TileRule, tokens: ArrayLike, loads: Sequence[Sequence[NDArray[np.int64]]]) -> Work:
    """Calls with known loads: for each batch, several draws of tokens an expert; experts and tiles are their means."""
    m = np.atleast_1d(np.asarray(tokens, dtype=float))
    rows = rule.rows_of(m)
    experts = [np.mean([np.count_nonzero(load) for load in draws]) for draws in loads]
    tiles = [np.mean([np.ceil(load / r).sum() for load in draws]) for draws, r in zip(loads, rows, strict=True)]
    return Work(m, np.asarray(experts), np.asarray(tiles), rows)


@dataclass(frozen=True)
class RooflineLaw:
    """Seconds of a call that moves nothing, bytes/s of memory and cache, flop/s; and the bytes the cache holds."""

    floor_s: float
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    flops: float
    cache_bytes: float

    def legs_s(self, shape: ExpertShape, work: Work) -> dict[Bound, Array]:
        """Seconds that memory, cache and arithmetic take, each alone, shape (calls,)."""
        weights = work.experts * shape.expert_bytes
        missed = np.where(weights > self.cache_bytes, weights, 0.0)
        return {
            "memory": np.asarray((missed + work.tokens * shape.token_bytes) / self.memory_bytes_per_s),
            "cache": np.asarray(work.tiles * shape.expert_bytes / self.cache_bytes_per_s),
            "compute": np.asarray(2.0 * work.tiles * work.rows * shape.weights / self.flops),
        }

    def time_s(self, shape: ExpertShape, work: Work) -> Array:
        """Kernel time of each call."""
        return np.asarray(self.floor_s + np.maximum.reduce(list(self.legs_s(shape, work).values())))

    def bound(self, shape: ExpertShape, work: Work) -> list[Bound]:
        """Which of the three each call's time is."""
        legs = self.legs_s(shape, work)
        names = list(legs)
        return [names[i] for i in np.argmax([np.atleast_1d(legs[name]) for name in names], axis=0)]


def fit_roofline(start: RooflineLaw, shape: ExpertShape, work: Work, time_s: Array) -> RooflineLaw:
    """Least squares of log(time) over floor, both bandwidths and flop/s.

    `start` holds the data sheet: memory and arithmetic rates are ceilings, and the cache is no slower than memory. A leg
    that binds nowhere has no gradient, so the search begins with several cache and arithmetic rates and keeps the best;
    such a leg's rate means nothing but a lower bound. The cache's size is kept: any size between two measured numbers
    of experts fits alike. Raises ValueError with fewer than five measurements.
    """
    from scipy.optimize import least_squares

    if time_s.size < 5:
        raise ValueError(f"four numbers need at least five measurements; got {time_s.size}")

    def law(logs: Array) -> RooflineLaw:
        floor, memory, faster, flops = (float(x) for x in np.exp(logs))
        return RooflineLaw(floor, memory, memory * faster, flops, start.cache_bytes)

    def residual(logs: Array) -> Array:
        return np.asarray(np.log(law(logs).time_s(shape, work) / time_s))

    ceilings = np.log([np.inf, start.memory_bytes_per_s, np.inf, start.flops])
    found = [
        least_squares(
            residual,
            np.log([start.floor_s, 0.8 * start.memory_bytes_per_s, faster, share * start.flops]),
            bounds=([-np.inf, -np.inf, 0.0, -np.inf], ceilings),
            method="dogbox",
            max_nfev=200,
        )
        for faster in (1.5, 3.0, 6.0)
        for share in (0.8, 0.5, 0.25)
    ]
    return law(min(found, key=lambda fit: float(fit.cost)).x)
