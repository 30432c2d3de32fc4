"""Output analysis of one simulation run: summaries, warm-up, batch-means intervals, whether the run is steady.

References: Law, "Simulation Modeling and Analysis", 9.5 (batch means); White, "An effective truncation heuristic for
bias reduction in simulation output", Simulation 69 (1997) (MSER-5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

BATCHES = 20
#: two-sided 95 % points of Student's t for 1 ... 30 degrees of freedom
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """A measured quantity over requests, in its own unit. `ci95` is the half width of the mean's interval, if one is
    known."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    ci95: float | None = None


def t95(degrees: int) -> float:
    """Two-sided 95 % point of Student's t."""
    return _T95[degrees - 1] if degrees <= len(_T95) else 1.96


def summarize(values: Array) -> Summary:
    """Mean, quantiles and maximum of `values` in order of time, with a batch-means interval for the mean."""
    if values.size == 0:
        return Summary(0)
    p50, p90, p95, p99 = np.quantile(values, (0.5, 0.9, 0.95, 0.99)).tolist()
    return Summary(
        int(values.size), float(values.mean()), p50, p90, p95, p99, float(values.max()), batch_means_half_width(values)
    )


def batch_means_half_width(values: Array, batches: int = BATCHES) -> float | None:
    """Half width of the 95 % interval of the mean of an autocorrelated series, from the means of `batches` batches.

    None below two values a batch. The batches must be long against the correlation; `lag_one` of their means tells.
    """
    means = batch_means(values, batches)
    if means is None:
        return None
    return float(t95(batches - 1) * means.std(ddof=1) / math.sqrt(batches))


def batch_means(values: Array, batches: int = BATCHES) -> Array | None:
    """Means of `batches` equal batches, the remainder of the front left out; None below two values a batch."""
    size = values.size // batches
    if size < 2:
        return None
    return np.asarray(values[-size * batches :].reshape(batches, size).mean(axis=1))


def lag_one(means: Array) -> float:
    """Correlation of neighbouring batch means: near 0 when the batches are long enough."""
    centred = means - means.mean()
    total = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum() / total) if total > 0 else 0.0


def replication_half_width(values: Sequence[float]) -> float | None:
    """Half width of the 95 % interval of a mean over independent replications; None for fewer than two."""
    n = len(values)
    if n < 2:
        return None
    return float(t95(n - 1) * np.std(np.asarray(values), ddof=1) / math.sqrt(n))


def mser5(values: Array) -> int | None:
    """How many leading values to drop as warm-up by MSER-5; None when the rule finds no end of it.

    Means of five; the truncation d that minimises sum (y - mean)^2 / (n - d)^2 over what remains, d at most half.
    """
    groups = values.size // 5
    if groups < 10:
        return 0
    y = values[: groups * 5].reshape(groups, 5).mean(axis=1)[::-1]
    n = np.arange(1, groups + 1)
    # Sums over the last n groups; centring first keeps the difference of squares accurate.
    y = y - y.mean()
    variance_sum = np.cumsum(y**2) - np.cumsum(y) ** 2 / n
    score = np.maximum(variance_sum, 0.0) / n**2
    score[:5] = np.inf  # too few to speak of a variance
    kept = int(n[np.argmin(score)])
    dropped = groups - kept
    return None if dropped > groups // 2 else dropped * 5


def number_in_system(arrival_s: Array, end_s: Array, edges_s: Array) -> Array:
    """Time-average number of requests between arrival and end, in each interval between successive `edges_s`."""
    return np.diff(_time_since(arrival_s, edges_s) - _time_since(end_s, edges_s)) / np.diff(edges_s)


def _time_since(events_s: Array, at_s: Array) -> Array:
    """Sum over events before `at` of (at - event)."""
    ordered = np.sort(events_s)
    total = np.concatenate(([0.0], np.cumsum(ordered)))
    before = np.searchsorted(ordered, at_s, side="right")
    return np.asarray(before * at_s - total[before])


def drift(levels: Array) -> tuple[float, float] | None:
    """(mean of the first half, of the second half) when a level clearly drifts upward, else None.

    `levels` are time averages of successive equal intervals. Clearly: by more than three standard errors of the
    difference, more than a quarter of the first half, and more than one request.
    """
    half = levels.size // 2
    if half < 3:
        return None
    first, second = levels[:half], levels[-half:]
    before, after = float(first.mean()), float(second.mean())
    error = math.sqrt(float(first.var(ddof=1) + second.var(ddof=1)) / half)
    if after - before > max(3.0 * error, 0.25 * before, 1.0):
        return before, after
    return None
