"""The experts a verify step touches, drawn for a whole batch: what the step model asks of routing.

The means and spreads are those of `twin.routing.law`. Draws rescale fixed standard normals (common random numbers),
never branch, and are smooth in every parameter, so a fit can differentiate through them. They are floats: half an
expert in one layer of one sample means nothing, the average over layers and samples does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from twin.routing.law import (
    SHARED_PROMPT_EXPONENT,
    SPREAD_ROWS,
    Array,
    RoutingParameters,
    RoutingShape,
    Value,
    layer_profile,
    mean_cold,
    mean_unique,
    uniform_variance,
)
from twin.routing.moments import Moments, draw_moments

__all__ = [
    "SHARED_PROMPT_EXPONENT", "SPREAD_ROWS", "Array", "ExpertDraw", "RoutingNoise", "RoutingParameters", "RoutingShape", "Value",
    "draw_busiest_rank", "draw_experts", "layer_profile", "mean_cold", "mean_unique", "uniform_variance",
]  # fmt: skip


@dataclass(frozen=True)
class RoutingNoise:
    """Common random numbers, standard normals of shape (layers, samples), drawn once and rescaled by every draw."""

    union: Array
    cold: Array
    rank: Array

    @classmethod
    def draw(cls, seed: int, layers: int, samples: int) -> RoutingNoise:
        """Draw the noise of `samples` steps; the same seed gives the same noise."""
        rng = np.random.default_rng(seed)
        return cls(*(rng.standard_normal((layers, samples)) for _ in range(3)))

    @property
    def samples(self) -> int:
        """Steps the noise is for."""
        return int(self.union.shape[-1])

    def part(self, samples: slice) -> RoutingNoise:
        """The noise of some of the samples."""
        return RoutingNoise(self.union[:, samples], self.cold[:, samples], self.rank[:, samples])


@dataclass(frozen=True)
class ExpertDraw:
    """Experts touched per layer and sample, shape (layers, samples); hot + cold == unique."""

    unique: Array
    hot: Array
    cold: Array


def draw_experts(
    shape: RoutingShape, parameters: RoutingParameters, *, streams: int, accepted_rows: Value, rejected_rows: Value,
    cold_experts: int, noise: RoutingNoise, unique: bool = True,
) -> ExpertDraw:  # fmt: skip
    """Draw the experts touched by one step, per layer and sample.

    `accepted_rows` (bonus row included) and `rejected_rows` are per stream and step: their sum is the verified rows
    of a stream. The variance is that of uniform routing at the same number of independent tokens (`uniform_variance`).
    Who reads hot and cold alone asks without `unique` and saves the time to write it: it is nan then.
    """
    moments = draw_moments(shape, parameters, streams, accepted_rows, rejected_rows, cold_experts)
    hot = np.empty_like(noise.union)
    if cold_experts <= 0:
        for part in moments.parts(noise.samples):
            _draw_union(moments, noise, part, out=hot[:, part])
        return ExpertDraw(hot, hot, np.broadcast_to(0.0, hot.shape))
    cold = np.empty_like(hot)
    whole = np.empty_like(hot) if unique else None
    for part in moments.parts(noise.samples):
        drawn = _draw_union(moments, noise, part)
        some = _draw_cold(moments, drawn, noise, part)
        cold[:, part] = some
        np.subtract(drawn, some, out=hot[:, part])
        if whole is not None:
            whole[:, part] = drawn
    return ExpertDraw(np.broadcast_to(np.nan, hot.shape) if whole is None else whole, hot, cold)


def draw_busiest_rank(
    shape: RoutingShape, parameters: RoutingParameters, *, streams: int, accepted_rows: Value, rejected_rows: Value,
    ranks: int, noise: RoutingNoise,
) -> Array:  # fmt: skip
    """Experts on the busiest of `ranks` expert-parallel ranks, shape (layers, samples).

    A rank's load is hypergeometric, variance U (1/R)(1 - 1/R)(E - U)/(E - 1); loads of ranks have correlation
    -1/(R - 1), so their maximum is U/R plus sqrt(R/(R-1)) times the maximum of R independent normals.
    """
    moments = draw_moments(shape, parameters, streams, accepted_rows, rejected_rows, 0)
    unique = np.empty_like(noise.union)
    for part in moments.parts(noise.samples):
        _draw_union(moments, noise, part, out=unique[:, part])
    if ranks <= 1:
        return unique
    variance = unique / ranks * (1.0 - unique / shape.experts) * (shape.experts / max(shape.experts - 1, 1))
    grid, quantile = _largest_of(ranks)
    busiest = unique / ranks + np.sqrt(variance) * np.interp(noise.rank, grid, quantile)
    return np.clip(busiest, unique / ranks, np.minimum(unique, -(-shape.experts // ranks)))


def _draw_union(moments: Moments, noise: RoutingNoise, part: slice, out: Array | None = None) -> Array:
    least, most = float(moments.shape.top_k), moments.most
    drawn = moments.deviation(part) * noise.union[:, part]
    drawn += moments.mean(part)
    np.maximum(drawn, least, out=drawn)
    return np.minimum(drawn, most if isinstance(most, float) else most[part], out=drawn if out is None else out)


def _draw_cold(moments: Moments, unique: Array, noise: RoutingNoise, part: slice) -> Array:
    """Cold experts among the `unique` ones.

    Experts of the union fall on the cold set like draws without replacement; a lognormal keeps them above zero.
    """
    experts, cold_experts = moments.shape.experts, moments.cold_experts
    fraction = moments.cold_fraction(part)
    mean = fraction * unique
    # log(1 + variance / mean^2), variance = mean (1 - fraction) (1 - unique / E)
    log_variance = unique * (-1.0 / experts)
    log_variance += 1.0
    log_variance *= 1.0 - fraction
    cold = np.maximum(mean, 1e-12)
    log_variance /= cold
    np.log1p(log_variance, out=log_variance)
    np.sqrt(log_variance, out=cold)
    cold *= noise.cold[:, part]
    log_variance *= 0.5
    cold -= log_variance
    np.exp(cold, out=cold)
    cold *= mean
    largest = float(np.max(unique))
    if largest > experts - cold_experts:
        np.maximum(cold, np.maximum(unique - (experts - cold_experts), 0.0), out=cold)
    np.minimum(cold, unique, out=cold)
    return np.minimum(cold, float(cold_experts), out=cold) if largest > cold_experts else cold


@lru_cache(maxsize=64)
def _largest_of(ranks: int) -> tuple[Array, Array]:
    """(z, the value the largest of `ranks` correlated rank loads has at the quantile of z), as a table."""
    normal = NormalDist()
    grid = np.linspace(-5.0, 5.0, 401)
    largest = [normal.inv_cdf(normal.cdf(z) ** (1.0 / ranks)) for z in grid]
    # The factor sqrt(1 - 1/R) of a rank's deviation and the sqrt(R / (R - 1)) of the correlation cancel.
    return grid, np.asarray(largest)
