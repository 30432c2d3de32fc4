"""Means and deviations a draw rescales its normals with: the law itself, or its series where samples are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from twin.routing.chebyshev import Series, series
from twin.routing.law import (
    Array,
    RoutingParameters,
    RoutingShape,
    Union,
    Value,
    cold_mean,
    cold_touched,
    uniform_variance,
)

#: Layers x samples of a block: the arrays of a draw then stay in a second-level cache of 1 MiB (measured).
BLOCK_ELEMENTS = 16_384
#: Samples from which a series costs less than the law (measured).
MANY = 512
Part: TypeAlias = Callable[[slice], Array]


@dataclass(frozen=True)
class Moments:
    """Of a layer's union: `mean` and `deviation` of its unique experts, and the `cold_fraction` of them.

    Each is a function of a block of the samples and gives (layers, 1 or samples of the block). `most` is the largest
    union there can be, a float or (samples,); `columns` the samples of a block at most.
    """

    shape: RoutingShape
    cold_experts: int
    most: Value
    columns: int
    mean: Part
    deviation: Part
    cold_fraction: Part

    def parts(self, samples: int) -> Iterator[slice]:
        """Blocks of the samples."""
        for start in range(0, samples, self.columns):
            yield slice(start, min(start + self.columns, samples))


def draw_moments(
    shape: RoutingShape, parameters: RoutingParameters, streams: int, accepted: Value, rejected: Value, cold: int
) -> Moments:
    """The moments of `cold` cold experts (0: no fraction). Law and series agree to a relative 1e-11."""
    rows = np.asarray(accepted, dtype=float) + rejected
    largest = np.maximum(np.minimum(float(shape.experts), shape.top_k * rows * streams), float(shape.top_k))
    most: Value = float(largest.item()) if largest.size == 1 else largest
    columns = max(1, BLOCK_ELEMENTS // shape.layers)

    def law(p: RoutingParameters) -> list[Array]:
        union = Union(shape, p, streams, accepted, rejected)
        deviation = uniform_variance(shape.experts, shape.top_k, union.tokens)
        found = [union.mean, np.sqrt(deviation, out=deviation)]
        if cold > 0:
            # A share with samples of its own is no function of the rows: what it multiplies is.
            found.append(
                union.cold_rows() if np.ndim(p.cold_share) else np.minimum(cold_mean(union, cold) / union.mean, 1.0)
            )
        return found

    if _union_varies_by_rows_alone(parameters, accepted, rejected):
        summed = _series(law, parameters, shape.layers, float(accepted), float(rejected))
        if summed is not None:
            columns = min(columns, summed.columns(shape.layers))
            mean, deviation, third = (_of(summed, slice(i * shape.layers, (i + 1) * shape.layers)) for i in range(3))
            fraction = _cold_fraction(shape, parameters, cold, mean, third) if np.ndim(parameters.cold_share) else third
            return Moments(shape, cold, most, columns, mean, deviation, fraction)
    given = [_part(array) for array in law(parameters)]
    if len(given) == 3 and np.ndim(parameters.cold_share):
        given[2] = _cold_fraction(shape, parameters, cold, given[0], given[2])
    return Moments(shape, cold, most, columns, given[0], given[1], given[-1])


def _union_varies_by_rows_alone(parameters: RoutingParameters, accepted: Value, rejected: Value) -> bool:
    """Whether the weight of a rejected row is the only number of the union with samples, and many of them."""
    p = parameters
    others = (p.beta, p.diversity, p.cold_skew, p.stream_skew, p.layer_spread, accepted, rejected)
    return np.size(p.rejected_weight) >= MANY and all(np.ndim(value) == 0 for value in others) and float(rejected) > 0


def _series(
    law: Callable[[RoutingParameters], list[Array]],
    parameters: RoutingParameters,
    layers: int,
    accepted: float,
    rejected: float,
) -> Series | None:
    """All moments as functions of the logarithm of a stream's rows, in which they are smoothest."""

    def values(log_rows: Array) -> Array:
        weight = (np.exp(log_rows) - accepted) / rejected
        return np.concatenate(law(replace(parameters, rejected_weight=weight)))

    def size(values: Array) -> Array:
        largest: Array = np.max(np.abs(values), axis=1, keepdims=True)
        # A deviation is added to its mean: what counts is what an error is of the mean.
        largest[layers : 2 * layers] = np.maximum(largest[:layers], largest[layers : 2 * layers])
        return largest

    return series(values, size, np.log(np.maximum(accepted + np.asarray(parameters.rejected_weight) * rejected, 1.0)))


def _cold_fraction(shape: RoutingShape, parameters: RoutingParameters, cold: int, mean: Part, rows: Part) -> Part:
    """The cold fraction for a cold share with samples."""
    share = np.asarray(parameters.cold_share)

    def fraction(part: slice) -> Array:
        p = replace(parameters, cold_share=share if share.size == 1 else share[part])
        found = cold_touched(shape, p, rows(part), cold)
        found /= mean(part)
        return np.minimum(found, 1.0, out=found)

    return fraction


def _of(found: Series, rows: slice) -> Part:
    return lambda part: found.at(rows, part)


def _part(array: Array) -> Part:
    return (lambda part: array) if array.shape[-1] == 1 else (lambda part: array[:, part])
