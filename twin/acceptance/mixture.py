"""Acceptance from stream to stream: one profile a stream, not one average for all.

Pooled conditionals of a mixture rise with position even when every stream's own are flat, because the blocks that get
far come from the easy streams. For a Beta(a, b) mixture of flat streams:

    survival_p = E[c^p] = prod_{j < p} (a + j) / (a + b + j),   conditional_p = (a + p - 1) / (a + b + p - 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from twin.acceptance.profile import (
    Array,
    Counts,
    conditional_from_survival,
    expit,
    logit,
    survival_from_conditional,
)

_NODES = 9


@dataclass(frozen=True)
class StreamMixture:
    """Kinds of streams: `weights` (kinds,), `conditional` (k, kinds). Each kind is one context with its own profile."""

    weights: Array
    conditional: Array

    @property
    def survival(self) -> Array:
        """Survival of each kind, shape (k, kinds)."""
        return survival_from_conditional(self.conditional)

    def pooled(self) -> Array:
        """Survival over all draft blocks, shape (k,): what a server's counters show when kinds draft equally often."""
        return self.survival @ self.weights

    def stream_sd(self) -> float:
        """Relative standard deviation of tokens per step between streams."""
        kept = 1.0 + self.survival.sum(axis=0)
        mean = float(kept @ self.weights)
        return math.sqrt(max(float((kept - mean) ** 2 @ self.weights), 0.0)) / mean

    def draw_streams(self, rng: np.random.Generator, streams: int) -> Array:
        """A profile for each stream: survival of shape (k, streams)."""
        kind = rng.choice(len(self.weights), size=streams, p=self.weights / self.weights.sum())
        drawn: Array = self.survival[:, kind]
        return drawn


def draw_kept(rng: np.random.Generator, survival: Array, steps: int) -> Array:
    """Tokens kept (1..k+1) by streams that keep their own profile over many steps, shape (streams, steps)."""
    u = rng.random((survival.shape[1], steps))
    kept = np.ones_like(u)
    for row in survival:
        kept += u < row[:, None]
    return kept


def spread_streams(survival: Array, stream_sd: float, *, kinds: int = _NODES) -> StreamMixture:
    """A mixture whose pooled survival is `survival` (k,) and whose streams spread by `stream_sd` (relative).

    Kinds are Gauss-Hermite nodes of a normal shift of all logits. Position by position one common logit is solved so
    that the pooled survival comes out exactly; the width of the shift is solved for the spread. A spread that the
    profile cannot carry (kept tokens are bounded) is given as far as it goes.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(kinds)
    weights = weights / weights.sum()
    if stream_sd <= 0 or len(survival) == 0 or not 0 < survival[0] < 1:
        flat = np.repeat(conditional_from_survival(survival)[:, None], kinds, axis=1)
        return StreamMixture(weights, flat)
    low, high = 0.0, 8.0
    for _ in range(40):
        width = (low + high) / 2
        found = _with_width(survival, width * nodes, weights)
        low, high = (width, high) if found.stream_sd() < stream_sd else (low, width)
    return _with_width(survival, (low + high) / 2 * nodes, weights)


def _with_width(survival: Array, shift: Array, weights: Array) -> StreamMixture:
    reached = np.ones_like(shift)
    rows = []
    for pooled, conditional in zip(survival, conditional_from_survival(survival), strict=True):
        if not 0 < conditional < 1:
            row = np.full_like(shift, conditional)
        else:
            # A mean over kinds lies between its smallest and largest, so the common logit is within the shifts.
            middle, most = float(logit(conditional)), float(np.abs(shift).max())
            low, high = middle - most, middle + most
            for _ in range(52):
                middle = (low + high) / 2
                low, high = (middle, high) if weights @ (reached * expit(middle + shift)) < pooled else (low, middle)
            row = expit((low + high) / 2 + shift)
            row = np.minimum(1.0, row * (pooled / (weights @ (reached * row))))  # the last digits
        rows.append(row)
        reached = reached * row
    return StreamMixture(weights, np.array(rows))


def beta_streams(a: float, b: float, k: int) -> Array:
    """Pooled survival (k,) of streams with flat conditionals drawn from Beta(a, b)."""
    j = np.arange(k, dtype=float)
    return np.asarray(np.cumprod((a + j) / (a + b + j)), dtype=float)


def fit_beta_streams(counts: Counts) -> tuple[float, float]:
    """Beta(a, b) of flat streams most likely behind pooled counts; a profile without rise gives a narrow Beta.

    Likelihood: of the blocks that reached position p, accepted_p were kept. SciPy is imported here only.
    """
    from scipy.optimize import minimize

    kept = np.asarray(counts.accepted, dtype=float)
    reached = np.concatenate([[counts.drafts], kept[:-1]])
    j = np.arange(len(kept))

    def loss(x: Array) -> float:
        mean, size = float(expit(x[0])), math.exp(min(x[1], 12.0))
        c = np.clip((mean * size + j) / (size + j), 1e-12, 1 - 1e-12)
        return -float((kept * np.log(c) + (reached - kept) * np.log1p(-c)).sum())

    start = np.array([float(logit(kept[0] / reached[0])), 2.0])
    found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000})
    mean, size = float(expit(found.x[0])), math.exp(min(float(found.x[1]), 12.0))
    return mean * size, (1 - mean) * size
