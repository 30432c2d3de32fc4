"""Locality from measurements: unions of one stream, by class and layer, and ordered traces.

A trace is cut into blocks of m consecutive tokens (never across streams); the mean number of distinct experts over
blocks and its standard error (by the scatter between passages of text) are the measured union. beta is the weighted least-squares exponent of the stretched law,

    log(-log(1 - U(m)/E) / -log(1 - K/E)) = beta log m + error,

a straight line through the origin, so it has a closed form and a standard error. Where one exponent does not pass the
points, `MeasuredUnion` does: it interpolates that same transform of the measured points in log m, and goes on with
the slope of the last two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin.routing.batch import Array
from twin.routing.counts import RoutingTrace

#: Block lengths a trace is measured at; enough that lengths between them interpolate within the noise.
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
#: Tokens of a passage, whose blocks tell of one text together; a multiple of every length.
PASSAGE_TOKENS = 480
#: Passages from which their scatter is the error; of fewer, the blocks are taken as independent.
MIN_PASSAGES = 8


@dataclass(frozen=True)
class Exponent:
    """beta with its standard error and the 95 % interval, from `points` measured lengths."""

    beta: float
    standard_error: float
    points: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.beta - 1.96 * self.standard_error, self.beta + 1.96 * self.standard_error


@dataclass(frozen=True)
class MeasuredUnion:
    """A union law that passes measured points: tokens and unique experts, both of shape (points,)."""

    experts: int
    top_k: int
    tokens: Array
    unique: Array

    def mean(self, tokens: float) -> float:
        """Unique experts of any number of tokens; beyond the last point with the exponent of the last two."""
        hit = -np.log1p(-self.top_k / self.experts)
        x = np.log(np.concatenate(([1.0], self.tokens[self.tokens > 1])))
        y = np.concatenate(([0.0], np.log(_independent(self.unique[self.tokens > 1], self.experts) / hit)))
        at = float(np.log(max(tokens, 1e-9)))
        if at <= 0.0 or x.size == 1:
            value = at
        elif at <= x[-1]:
            value = float(np.interp(at, x, y))
        else:
            value = float(y[-1] + (at - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
        return float(-self.experts * np.expm1(-hit * np.exp(value)))


@dataclass(frozen=True)
class LayerFit:
    """One layer of a trace: measured unions with standard errors, the exponent, and the law that passes the points."""

    layer: int
    unique: Array
    standard_error: Array
    exponent: Exponent
    law: MeasuredUnion


def fit_exponent(
    experts: int, top_k: int, tokens: Array, unique: Array, standard_error: Array | None = None
) -> Exponent:
    """beta from measured unions of one stream; points of one token carry nothing and are left out.

    Without standard errors the residuals give the interval. Raises ValueError when no point has more than one token.
    """
    use = (tokens > 1) & (unique < experts)
    if not use.any():
        raise ValueError("an exponent needs at least one measured union of more than one token")
    x, u = np.log(tokens[use]), unique[use]
    y = np.log(_independent(u, experts) / -np.log1p(-top_k / experts))
    if standard_error is None:
        weight = np.ones_like(x)
    else:
        # dy/dU = 1 / ((E - U) (-log(1 - U/E)))
        noise = standard_error[use] / ((experts - u) * _independent(u, experts))
        weight = 1.0 / np.maximum(noise, 1e-4) ** 2
    information = float(np.sum(weight * x**2))
    beta = float(np.sum(weight * x * y) / information)
    residual = float(np.sum(weight * (y - beta * x) ** 2)) / max(int(use.sum()) - 1, 1)
    # Misfit of the law widens the interval; with known errors it never narrows it.
    scale = residual if standard_error is None else max(residual, 1.0)
    return Exponent(beta, float(np.sqrt(scale / information)), int(use.sum()))


def measured_unions(
    trace: RoutingTrace, layer: int, lengths: Sequence[int] = LENGTHS
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Mean distinct experts of blocks of each length, their standard errors (by passages), and the number of blocks."""
    ids = trace.experts[:, layer]
    means, errors, blocks = [], [], []
    for m in lengths:
        parts = [_distinct(ids[part], m) for part in _streams(trace)]
        counts = np.concatenate(parts)
        if counts.size == 0:
            raise ValueError(f"no stream of the trace has {m} consecutive tokens")
        width = PASSAGE_TOKENS // m
        passages = [part[i : i + width] for part in parts for i in range(0, part.size, width)]
        sums, sizes = (np.asarray([f(passage) for passage in passages], dtype=float) for f in (np.sum, np.size))
        means.append(counts.mean())
        if counts.size < 2:
            errors.append(counts.mean())
        elif len(passages) < MIN_PASSAGES:
            errors.append(counts.std(ddof=1) / np.sqrt(counts.size))
        else:
            deviations = (sums**2).sum(), (sums * sizes).sum(), (sizes**2).sum()
            errors.append(passage_error(counts.mean(), counts.size, len(passages), *deviations))
        blocks.append(counts.size)
    return np.asarray(means), np.asarray(errors), np.asarray(blocks, dtype=np.int64)


def passage_error(mean: Any, blocks: Any, passages: Any, squares: Any, cross: Any, sizes: Any) -> Any:
    """Standard error of a mean over blocks that come in passages of text. Blocks of one passage tell of its text
    together, so passages and not blocks count as independent: the cluster-robust variance, with G / (G - 1).

    `squares`, `cross` and `sizes` are the sums over passages of S^2, S n and n^2, S the sum of n blocks.
    """
    spread = np.maximum(squares - 2.0 * mean * cross + mean**2 * sizes, 0.0)
    return np.sqrt(spread * passages / (passages - 1.0)) / blocks


def fit_trace(trace: RoutingTrace, experts: int, lengths: Sequence[int] = LENGTHS) -> list[LayerFit]:
    """Every layer of a trace; lengths that no stream reaches are left out."""
    longest = max(part.size for part in _streams(trace))
    usable = [m for m in lengths if m <= longest]
    tokens = np.asarray(usable, dtype=float)
    fits = []
    for layer in range(trace.experts.shape[1]):
        unique, error, _ = measured_unions(trace, layer, usable)
        top_k = trace.experts.shape[2]
        exponent = fit_exponent(experts, top_k, tokens, unique, error)
        fits.append(LayerFit(layer, unique, error, exponent, MeasuredUnion(experts, top_k, tokens, unique)))
    return fits


def layer_spread(fits: Sequence[LayerFit], tokens: float = 6.0) -> float:
    """Standard deviation over layers of log unique experts at `tokens`, the sampling error taken off."""
    values = np.asarray([fit.law.mean(tokens) for fit in fits])
    index = [int(np.argmin(np.abs(fit.law.tokens - tokens))) for fit in fits]
    noise = np.asarray([fit.standard_error[i] / fit.unique[i] for fit, i in zip(fits, index, strict=True)])
    return float(np.sqrt(max(np.log(values).var(ddof=1) - np.mean(noise**2), 0.0))) if len(fits) > 1 else 0.0


def _independent(unique: Array, experts: int) -> Array:
    return np.asarray(-np.log1p(-np.minimum(unique, experts - 1e-9) / experts))


def _streams(trace: RoutingTrace) -> list[NDArray[np.intp]]:
    """Positions of each stream's tokens, in order."""
    return [np.flatnonzero(trace.stream == s) for s in np.unique(trace.stream)]


def _distinct(ids: NDArray[np.int64], m: int) -> Array:
    """Distinct experts of each whole block of m tokens; ids has shape (tokens, K)."""
    blocks = ids.shape[0] // m
    if blocks == 0:
        return np.empty(0)
    flat = np.sort(ids[: blocks * m].reshape(blocks, -1), axis=1)
    return np.asarray(1.0 + (np.diff(flat, axis=1) != 0).sum(axis=1))
