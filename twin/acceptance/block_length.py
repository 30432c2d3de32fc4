"""Any block length k from measured ones: how the conditionals of a drafter move with k.

A k = 9 block is not a k = 5 block with four more guesses. Three effects, all on the logit of the conditionals (additive
there, so a chance stays a chance):

1. *Dilution*. Every guess of a longer block is a little worse, also inside the trained block T and also for heads
   that draft one token after another: longer blocks eat up the easy runs, so steps start at hard places more often.
2. *Overreach*. A block longer than T is a layout the drafter never saw; the penalty grows with the excess squared.
       shift(k) = -dilution * (k - 1) - overreach * max(0, k - T)^2,   position 1 takes (1 + early) times as much
3. *Reversion*. Positions beyond T fall back towards one conditional that does not depend on how easy the text is:
       logit c_p = w * own level + (1 - w) * logit(fallback),   w = exp(-max(0, p - T) / reach)

T = None means nothing is known of a trained block (autoregressive heads): only dilution is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from twin.acceptance.profile import Array, conditional_from_survival, expit, logit, survival_from_conditional
from twin.errors import TrafficError

#: Sweeps reach five drafts beyond the trained block (k = 10 for a block of 5). What lies further out is assumed.
LONGEST_EXCESS = 5
UNSEEN_SD = 0.04


@dataclass(frozen=True)
class Mechanism:
    """The parameters. The last three are errors of prediction, the others are the law."""

    dilution: float  # logit per draft of block length
    overreach: float  # logit per squared draft of block length beyond the trained block
    early: float  # extra share of the shift that position 1 takes
    fallback: float  # conditional far beyond the trained block, a chance
    reach: float  # positions over which the class's own level is forgotten beyond the trained block
    within_sd: float = 0.0  # relative error of tokens per step for each draft of distance inside the trained block
    beyond_sd: float = 0.0  # the same for each draft of distance beyond it
    unseen_sd: float = UNSEEN_SD  # added for each draft beyond the longest excess that any sweep measured

    def shift(self, k: int, trained_block: int | None) -> Array:
        """Logit shift of positions 1..k in a block of k, shape (k,)."""
        beyond = 0 if trained_block is None else max(0, k - trained_block)
        shift = np.full(k, -self.dilution * (k - 1) - self.overreach * beyond**2)
        shift[:1] *= 1 + self.early
        return shift

    def own_weight(self, k: int, trained_block: int | None) -> Array:
        """Weight of the class's own level at positions 1..k, shape (k,); 1 inside the trained block."""
        if trained_block is None:
            return np.ones(k)
        return np.exp(-np.maximum(0, np.arange(1, k + 1) - trained_block) / self.reach)

    def conditional(self, level: Array, trained_block: int | None) -> Array:
        """Conditionals (k,) of a block whose positions have this own level (k,), the logit they would have at k = 1."""
        k = len(level)
        weight = self.own_weight(k, trained_block)
        moved = level + self.shift(k, trained_block)
        return expit(weight * moved + (1 - weight) * float(logit(self.fallback)))

    def level(self, conditional: Array, trained_block: int | None) -> Array:
        """Inverse of `conditional`. A position with hardly any own weight takes the level of the last one that has."""
        k = len(conditional)
        weight = self.own_weight(k, trained_block)
        clear = weight > 0.5
        moved = (logit(conditional) - (1 - weight) * float(logit(self.fallback))) / np.maximum(weight, 0.5)
        level = moved - self.shift(k, trained_block)
        last = int(np.flatnonzero(clear)[-1]) if clear.any() else 0
        return np.where(clear, level, level[last])

    def widening(self, k_from: int, k_to: int, trained_block: int | None) -> float:
        """Relative standard deviation added when a profile of `k_from` is carried to `k_to`."""
        low, high = sorted((k_from, k_to))
        edge = high if trained_block is None else min(max(trained_block, low), high)
        known = 16 if trained_block is None else trained_block + LONGEST_EXCESS
        unseen = max(0, k_to - max(known, k_from))
        return self.within_sd * (edge - low) + self.beyond_sd * (high - edge) + self.unseen_sd * unseen


#: `fit_mechanism` on calibration/acceptance/k_sweeps.csv; a test fits again and compares. The two errors hold 68.3 % of
#: the predictions of one block length of a sweep from one other (`with_errors`).
MECHANISM = Mechanism(
    dilution=0.03, overreach=0.0056, early=1.27, fallback=0.54, reach=0.59, within_sd=0.0114, beyond_sd=0.0103
)


def carry(survival: Array, k: int, *, trained_block: int | None, mechanism: Mechanism = MECHANISM) -> Array:
    """Survival (k,) of a block of `k` predicted from the survival (k0,) of a measured block of another length.

    Positions that the measured block does not have continue with the own level of its last position.
    """
    known = len(survival)
    if known == 0:
        raise TrafficError("a profile without draft positions says nothing about longer blocks.")
    level = mechanism.level(conditional_from_survival(survival), trained_block)
    level = np.append(level[:k], np.full(max(0, k - known), level[-1]))
    return survival_from_conditional(mechanism.conditional(level, trained_block))


def shape_from_mean(
    k: int, mean: float, *, trained_block: int | None, first: float | None = None, stream_sd: float = 0.0,
    mechanism: Mechanism = MECHANISM,
) -> Array:  # fmt: skip
    """Survival (k,) with exactly this mean tokens per step, when nothing but the mean (and position 1) is known.

    All positions share one own level, found by bisection; `first` pins the chance of position 1 instead. With
    `stream_sd` the level differs from stream to stream (normal on the logit, Gauss-Hermite nodes) so that tokens per
    step spread by that much, and the pooled profile is returned: its conditionals rise with position, because the
    blocks that get far come from the easy streams. The shape is derived, not measured.
    Raises TrafficError when the mean lies outside 1 to k + 1 or contradicts `first`.
    """
    if not 1.0 < mean < k + 1:
        raise TrafficError(f"tokens per step {mean:g} at k = {k}: with the bonus token it lies between 1 and {k + 1}.")
    nodes, weights = np.polynomial.hermite_e.hermegauss(9 if stream_sd > 0 else 1)
    weights = weights / weights.sum()

    def kinds(level: float, first_level: float | None, width: float) -> Array:
        levels = np.full(k, level)
        c = np.stack([mechanism.conditional(levels + width * node, trained_block) for node in nodes], axis=1)
        if first_level is not None:
            c[0] = expit(first_level + width * nodes)
        return np.asarray(np.cumprod(c, axis=0), dtype=float)

    def solve(width: float) -> Array:
        pinned = None
        if first is not None:
            pinned = _bisect(lambda x: float(expit(x + width * nodes) @ weights) < first)
        level = _bisect(lambda x: 1 + float(kinds(x, pinned, width).sum(axis=0) @ weights) < mean)
        return kinds(level, pinned, width)

    def too_narrow(width: float) -> bool:
        kept = 1 + solve(width).sum(axis=0)
        return float(np.sqrt((kept - mean) ** 2 @ weights)) < stream_sd * mean

    width = _bisect(too_narrow, 0.0, 6.0, steps=24) if stream_sd > 0 else 0.0
    found = np.asarray(solve(width) @ weights, dtype=float)
    if abs(1 + found.sum() - mean) > 1e-6:
        raise TrafficError(f"tokens per step {mean:g} at k = {k} cannot be reached with position 1 at {first}.")
    return found


def _bisect(too_low: Callable[[float], bool], low: float = -40.0, high: float = 40.0, steps: int = 64) -> float:
    """The point where `too_low` turns false."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return (low + high) / 2
