"""Many functions of one number, evaluated for thousands of numbers at once: Chebyshev interpolation.

The means of a routing draw are, layer by layer, smooth functions of the rows a stream counts for, and a draw asks for
them at every sample. Their series on the interval of the samples ends within some dozen terms at rounding level, and
a sum of a dozen terms is cheaper than five exponentials (Trefethen, Approximation Theory and Approximation Practice,
2013, chapters 3 and 8: coefficients that fall geometrically, cut where they reach the level of rounding).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
#: Terms tried. What needs more is not smooth on this interval: a kink, or a range over orders of magnitude.
NODES = 28
#: Terms below this share of a function's size are left out: rounding of the formulas themselves is about 1e-14.
TOLERANCE = 1e-13
#: A series is taken when its last two terms are below this share: what was left out is then no larger.
RESOLVED = 1e-11
# OpenBLAS computes a product of fewer multiplications than this on one thread: the same bits whatever the threads.
_ONE_THREAD = 1 << 18


@dataclass(frozen=True)
class Series:
    """Functions of one number as Chebyshev series, `coefficients` (functions, terms) and `terms` (terms, samples)."""

    coefficients: Array
    terms: Array

    def columns(self, functions: int) -> int:
        """Samples that `at` should be asked for at most, `functions` at a time."""
        return max(1, _ONE_THREAD // (functions * len(self.terms)))

    def at(self, rows: slice, samples: slice) -> Array:
        """The functions `rows` at some of the samples, (functions, samples)."""
        found: Array = np.matmul(self.coefficients[rows], self.terms[:, samples])
        return found


def series(function: Callable[[Array], Array], size: Callable[[Array], Array], x: Array) -> Series | None:
    """`function` on the interval of `x` (samples,), or None where NODES terms do not resolve it.

    `function` maps (n,) to (functions, n); `size` maps those values to what errors of each function are measured by,
    (functions, 1).
    """
    low, high = float(np.min(x)), float(np.max(x))
    if not high > low:
        return None
    half = 0.5 * (high - low)
    nodes, transform = _nodes()
    values = function(low + half * (nodes + 1.0))
    coefficients = values @ transform
    relative = np.max(np.abs(coefficients) / np.maximum(size(values), np.finfo(float).tiny), axis=0)
    if not np.all(relative[-2:] <= RESOLVED):
        return None
    terms = max(2, 1 + int(np.max(np.flatnonzero(relative > TOLERANCE), initial=0)))
    return Series(np.ascontiguousarray(coefficients[:, :terms]), _terms((x - low) / half - 1.0, terms))


@lru_cache(maxsize=1)
def _nodes() -> tuple[Array, Array]:
    """Chebyshev points of the first kind, (n,), and the matrix from values there to coefficients, (n, n)."""
    angle = np.pi * (np.arange(NODES) + 0.5) / NODES
    transform = np.cos(np.outer(angle, np.arange(NODES))) * (2.0 / NODES)
    transform[:, 0] *= 0.5
    return np.cos(angle), transform


def _terms(t: Array, count: int) -> Array:
    """T_0 to T_(count - 1) at t, (count, samples), by the three-term recurrence."""
    terms = np.empty((count, t.size))
    terms[0], terms[1] = 1.0, t
    twice = 2.0 * t
    for n in range(2, count):
        np.multiply(terms[n - 1], twice, out=terms[n])
        terms[n] -= terms[n - 2]
    return terms
