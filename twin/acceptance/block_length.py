"""Any block length k from measured ones: how the conditionals of a block drafter move with k.

A block drafter makes its k guesses in one pass, so a k = 9 block is not a k = 5 block with four more guesses. Two effects,
both on the logit of the conditionals (additive there, so chances stay between 0 and 1):

1. *Dilution*. Every guess of a longer block is a little worse, the first included. The shift is `-dilution` for each
   draft of the block and `-overreach` more for each draft beyond the trained block T:
       shift(k) = -dilution * (k - 1) - overreach * max(0, k - T)
2. *Reversion*. A position beyond T was never trained. Its conditional falls back towards one value that does not depend
   on how easy the text is, with weight exp(-(p - T) / reach) left for the class's own level:
       logit c_p = w * own + (1 - w) * logit(fallback)

An autoregressive head (EAGLE, MTP) drafts nested blocks: its conditionals do not move with k, and neither effect applies
but a slow decline with position, which the measured profile already carries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.acceptance.profile import Array, conditional_from_survival, expit, logit, survival_from_conditional
from twin.errors import TrafficError


@dataclass(frozen=True)
class Mechanism:
    """The parameters, in logit units unless said otherwise."""

    dilution: float  # logit per draft of block length
    overreach: float  # logit per draft of block length beyond the trained block
    fallback: float  # conditional far beyond the trained block, a chance
    reach: float  # positions over which the class's own level is forgotten beyond the trained block
    within_sd: float  # relative error of tokens per step for each draft of distance inside the trained block
    beyond_sd: float  # the same for each draft of distance beyond it

    def shift(self, k: int, trained_block: int | None) -> float:
        """Logit shift of every position of a block of k against a block of 1."""
        beyond = 0 if trained_block is None else max(0, k - trained_block)
        return -self.dilution * (k - 1) - self.overreach * beyond

    def own_weight(self, k: int, trained_block: int | None) -> Array:
        """Weight of the class's own level at positions 1..k, shape (k,); 1 inside the trained block."""
        if trained_block is None:
            return np.ones(k)
        beyond = np.maximum(0, np.arange(1, k + 1) - trained_block)
        return np.exp(-beyond / self.reach)

    def widening(self, k_from: int, k_to: int, trained_block: int | None) -> float:
        """Relative standard deviation added when a profile of `k_from` is carried to `k_to`."""
        low, high = sorted((k_from, k_to))
        edge = high if trained_block is None else min(max(trained_block, low), high)
        return self.within_sd * (edge - low) + self.beyond_sd * (high - edge)


#: Fitted in tests/acceptance on the published sweeps of block length and the measured k = 3, 5, 9 of one lane.
MECHANISM = Mechanism(dilution=0.06, overreach=0.04, fallback=0.57, reach=1.0, within_sd=0.012, beyond_sd=0.02)
#: A nested (autoregressive) head does not move with k.
NESTED = Mechanism(dilution=0.0, overreach=0.0, fallback=0.57, reach=1e9, within_sd=0.01, beyond_sd=0.01)


def carry(survival: Array, k: int, *, trained_block: int | None, mechanism: Mechanism = MECHANISM) -> Array:
    """Survival (k,) of a block of `k` predicted from the survival (k0,) of a measured block of another length.

    Positions that the measured block does not have continue with the own level of its last position.
    """
    known = len(survival)
    if known == 0:
        raise TrafficError("a profile without draft positions says nothing about longer blocks.")
    weight = mechanism.own_weight(known, trained_block)
    pull = (1 - weight) * float(logit(mechanism.fallback))
    # A position deep beyond the trained block carries almost no trace of its own level; read it from the trained part.
    inside = weight > 0.5
    level = np.where(inside, (logit(conditional_from_survival(survival)) - pull) / np.maximum(weight, 0.5), np.nan)
    level = np.where(np.isnan(level), level[inside][-1], level) if inside.any() else np.full(known, float(level[0]))
    level = np.append(level[:k], np.full(max(0, k - known), level[-1]))
    level = level + mechanism.shift(k, trained_block) - mechanism.shift(known, trained_block)
    weight = mechanism.own_weight(k, trained_block)
    return survival_from_conditional(expit(weight * level + (1 - weight) * float(logit(mechanism.fallback))))


def shape_from_mean(
    k: int, mean: float, *, trained_block: int | None, first: float | None = None, mechanism: Mechanism = MECHANISM
) -> Array:
    """Survival (k,) with exactly this mean tokens per step, when nothing but the mean (and position 1) is known.

    All positions share one own level, found by bisection; `first` pins the chance of position 1. The shape is derived.
    """
    if not 1.0 < mean < k + 1:
        raise TrafficError(f"tokens per step {mean:g} at k = {k}: with the bonus token it lies between 1 and {k + 1}.")
    weight = mechanism.own_weight(k, trained_block)

    def survival(level: float) -> Array:
        c = expit(weight * level + (1 - weight) * float(logit(mechanism.fallback)))
        if first is not None:
            c[0] = first
        return survival_from_conditional(c)

    low, high = -20.0, 20.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 + survival(middle).sum() < mean else (low, middle)
    found = survival((low + high) / 2)
    if abs(1 + found.sum() - mean) > 1e-6:
        raise TrafficError(f"tokens per step {mean:g} at k = {k} cannot be reached with position 1 at {first}.")
    return found
