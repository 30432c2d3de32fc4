"""Acceptance profiles: survival and conditional, counts, posteriors.

A draft block of k tokens is accepted up to its first rejection. `survival[p-1]` is the chance that the first p drafts
are all accepted (vLLM's per-position rate); `conditional[p-1]` that draft p is accepted given that p-1 were.

    survival_p = prod_{j <= p} conditional_j        tokens per step = 1 + sum_p survival_p    (the 1 is the bonus token)

Positions are the FIRST axis here, samples the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twin.errors import TrafficError

Array = NDArray[np.float64]
_TINY = 1e-12


def survival_from_conditional(conditional: ArrayLike) -> Array:
    """Survival of each position from conditionals, shape (k, ...)."""
    out: Array = np.cumprod(np.asarray(conditional, dtype=float), axis=0)
    return out


def conditional_from_survival(survival: ArrayLike) -> Array:
    """Conditionals from survival, shape (k, ...); 0 where nothing survives to the position before."""
    s = np.asarray(survival, dtype=float)
    if s.shape[0] == 0:
        return s
    before = np.concatenate([np.ones_like(s[:1]), s[:-1]])
    out: Array = np.divide(s, before, out=np.zeros_like(s), where=before > 0)
    return out


def tokens_per_step(survival: ArrayLike) -> Array:
    """1 + sum of survival over positions, bonus token included; shape (...)."""
    total: Array = 1.0 + np.asarray(survival, dtype=float).sum(axis=0)
    return total


def kept_distribution(survival: ArrayLike) -> Array:
    """P(tokens kept = 1, ..., k+1) of one step, shape (k+1,)."""
    s = np.concatenate([[1.0], np.asarray(survival, dtype=float), [0.0]])
    out: Array = s[:-1] - s[1:]
    return out


def kept_variance(survival: ArrayLike) -> float:
    """Variance of the tokens kept in one step (tokens^2)."""
    s = np.asarray(survival, dtype=float)
    # sum over p of (2p - 1) survival_p is the second moment of the accepted drafts
    second = float(((2 * np.arange(1, len(s) + 1) - 1) * s).sum())
    return max(second - float(s.sum()) ** 2, 0.0)


def check_survival(values: Sequence[float], where: str) -> None:
    """Raise TrafficError unless 1 >= survival_1 >= ... >= survival_k >= 0."""
    previous = 1.0
    for position, value in enumerate(values, start=1):
        if not 0.0 <= value <= 1.0:
            raise TrafficError(f"{where}: position {position} is {value:g}; a chance lies between 0 and 1.")
        if value > previous + 1e-9:
            raise TrafficError(
                f"{where}: survival rises from {previous:g} to {value:g} at position {position}; survival cannot rise. "
                f'If these are chances given the position before, write kind = "conditional".'
            )
        previous = value


@dataclass(frozen=True)
class Counts:
    """What a server counted: `drafts` blocks were drafted, `accepted[p-1]` of them kept at least p drafts."""

    drafts: int
    accepted: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.drafts < 1:
            raise TrafficError(f"counts: {self.drafts} drafts; at least one draft block is needed.")
        check_survival([a / self.drafts for a in self.accepted], "counts")

    @property
    def survival(self) -> Array:
        """Observed survival, shape (k,)."""
        return np.asarray(self.accepted, dtype=float) / self.drafts

    def posterior(self, prior: tuple[float, float] = (0.5, 0.5)) -> tuple[Array, Array]:
        """Beta parameters (a, b) of each conditional, shape (k,). Jeffreys prior: a short run stays wide.

        Trials at position p are the blocks that reached it, so the posteriors of the positions are independent.
        """
        reached = np.concatenate([[self.drafts], np.asarray(self.accepted[:-1], dtype=float)])
        kept = np.asarray(self.accepted, dtype=float)
        return prior[0] + kept, prior[1] + reached - kept

    def draw(self, rng: np.random.Generator, samples: int) -> Array:
        """Posterior draws of survival, shape (k, samples)."""
        a, b = self.posterior()
        return survival_from_conditional(rng.beta(a[:, None], b[:, None], size=(len(a), samples)))

    def relative_sd(self) -> float:
        """Posterior standard deviation of tokens per step over its mean, by error propagation through the posteriors.

        d(tokens)/d(c_j) = sum_{p >= j} survival_p / c_j, and the conditionals are independent.
        """
        a, b = self.posterior()
        c = a / (a + b)
        s = np.cumprod(c)
        slope = np.cumsum(s[::-1])[::-1] / np.maximum(c, _TINY)
        variance = float((slope**2 * a * b / ((a + b) ** 2 * (a + b + 1))).sum())
        return math.sqrt(variance) / (1.0 + float(s.sum()))


def logit(chance: ArrayLike) -> Array:
    """log(c / (1 - c)), kept finite at 0 and 1."""
    c = np.clip(np.asarray(chance, dtype=float), _TINY, 1 - _TINY)
    out: Array = np.log(c) - np.log1p(-c)
    return out


def expit(value: ArrayLike) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    x = np.clip(np.asarray(value, dtype=float), -60.0, 60.0)
    out: Array = 1.0 / (1.0 + np.exp(-x))
    return out
