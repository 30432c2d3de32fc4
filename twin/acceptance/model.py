"""Acceptance resolved for one traffic class, block length and rule: what the step keeps, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from twin.acceptance.block_length import MECHANISM, Mechanism, carry
from twin.acceptance.profile import (
    Array,
    conditional_from_survival,
    expit,
    kept_variance,
    logit,
    survival_from_conditional,
)
from twin.acceptance.traffic import MAX_K, Profile, TrafficClass
from twin.acceptance.uplift import BLOCK_SD, block_to_token, token_to_block
from twin.errors import PolicyError, nearest

RULES = ("token", "block", "greedy")
#: Relative error of carrying a profile between temperature 0 and a sampled rule, where no measurement links the two.
TEMPERATURE_SD = 0.05


@dataclass(frozen=True)
class Acceptance:
    """Resolved for one (traffic, k, verification).

    `survival[p-1]` is P(first p drafts all accepted); `tokens_per_step` = 1 + its sum, bonus included, in [1, k+1];
    `relative_sd` the uncertainty of that mean (counts, extrapolation, conversion of the rule); `stream_sd` the relative
    spread from stream to stream.
    """

    k: int
    survival: Array
    tokens_per_step: float
    relative_sd: float
    stream_sd: float
    warnings: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def conditional(self) -> Array:
        """P(draft p accepted | p-1 accepted), shape (k,)."""
        return conditional_from_survival(self.survival)

    @property
    def step_sd(self) -> float:
        """Standard deviation of the tokens kept in one step of one stream (tokens)."""
        return math.sqrt(kept_variance(self.survival))

    def draw_mean(self, normals: Array, *, streams: int, steps: int) -> Array:
        """Tokens per step averaged over a run of `steps` steps by `streams` streams, one draw a sample.

        `normals` are standard normals of shape (2, samples): row 0 moves the class mean (`relative_sd`), row 1 the run
        (`stream_sd` over the streams, the step's own scatter over all steps). With shape (samples,) one normal carries
        both. The draws are moved on the logit of the accepted share, so they stay inside [1, k+1]; 0 gives the mean.
        """
        z = np.asarray(normals, dtype=float)
        samples = z.shape[-1]
        if self.k == 0:
            return np.ones(samples)
        run_sd = math.sqrt(self.stream_sd**2 / streams + (self.step_sd / self.tokens_per_step) ** 2 / (streams * steps))
        moved = math.hypot(self.relative_sd, run_sd) * z if z.ndim == 1 else self.relative_sd * z[0] + run_sd * z[1]
        share = (self.tokens_per_step - 1.0) / self.k
        if not 0.0 < share < 1.0:
            return np.full(samples, self.tokens_per_step)
        slope = self.tokens_per_step / (self.k * share * (1.0 - share))  # d logit(share) / d log(tokens per step)
        drawn: Array = 1.0 + self.k * expit(logit(share) + slope * moved)
        return drawn

    def draw_step(self, rng: np.random.Generator, streams: int, samples: int) -> Array:
        """Tokens kept (1..k+1) in single steps, shape (streams, samples), integers as floats."""
        u = rng.random((streams, samples))
        # survival falls with p, so the number of positions above u is the number of accepted drafts
        below = np.searchsorted(self.survival[::-1], u, side="right")
        return np.asarray(1.0 + self.k - below, dtype=float)


def resolve_acceptance(
    traffic: TrafficClass, k: int, verification: str, *, trained_block: int | None, mechanism: Mechanism = MECHANISM
) -> Acceptance:
    """Acceptance of a class at block length `k` under `verification`; raises PolicyError for an impossible policy.

    A (k, rule) that the class measured is returned as it is. Otherwise the nearest measured block lengths are carried
    to `k` (one from below and one from above when both exist, mixed by distance), and rules are converted.
    """
    if verification not in RULES:
        raise PolicyError(f"verification {verification!r}: {nearest(verification, RULES)}")
    if not 0 <= k <= MAX_K:
        raise PolicyError(f"k = {k}: a draft block has 0 to {MAX_K} tokens.")
    spread = traffic.stream_sd.value
    if k == 0:
        return Acceptance(0, np.zeros(0), 1.0, 0.0, 0.0, (), ())
    if k == 1 and verification == "block":
        # A block of one token is verified like a token (Sun et al. 2024, section 4).
        verification = "token"
    warnings: list[str] = []
    if trained_block is not None and k > trained_block:
        warnings.append(f"k = {k} is longer than the block of {trained_block} that the draft head was trained on.")
    for profile in traffic.profiles:
        if profile.k == k and _same_rule(profile, verification):
            return _result(profile.survival, profile.relative_sd_of_mean(spread), spread, warnings, [profile])
    used = _neighbours(traffic, k, verification)
    levels, sds, weights = [], [], []
    for profile in used:
        survival, rule_sd, note = _to_rule(profile, verification)
        if note and note not in warnings:
            warnings.append(note)
        # Carrying to the same k is not lossless beyond the trained block: a measured block stays as it was measured.
        same = profile.k == k
        carried = survival if same else carry(survival, k, trained_block=trained_block, mechanism=mechanism)
        levels.append(logit(conditional_from_survival(carried)))
        far = mechanism.widening(profile.k, k, trained_block)
        sds.append(math.sqrt(profile.relative_sd_of_mean(spread) ** 2 + rule_sd**2 + far**2))
        weights.append(1.0 if len(used) == 1 else 1.0 - abs(profile.k - k) / abs(used[0].k - used[1].k))
    survival = survival_from_conditional(expit(sum(w * level for w, level in zip(weights, levels, strict=True))))
    if any(profile.k != k for profile in used):
        measured = ", ".join(str(p.k) for p in used)
        warnings.append(f"{traffic.name}: k = {k} was not measured; carried from k = {measured}.")
    # The neighbours share the mechanism, so their errors are not independent: the weighted sum, no root of squares.
    return _result(survival, sum(w * sd for w, sd in zip(weights, sds, strict=True)), spread, warnings, used)


def _same_rule(profile: Profile, verification: str) -> bool:
    # At temperature 0 the target is one token, and every rule accepts exactly the drafts that match it.
    return (
        profile.verification == verification
        or (profile.temperature == 0 and verification != "greedy")
        or (profile.temperature == 0 and profile.verification == "greedy")
    )


def _neighbours(traffic: TrafficClass, k: int, verification: str) -> list[Profile]:
    def best(profiles: list[Profile]) -> Profile:
        return min(profiles, key=lambda p: (abs(p.k - k), not _same_rule(p, verification), p.evidence != "measured"))

    exact = [p for p in traffic.profiles if p.k == k]
    if exact:
        return [best(exact)]
    below = [p for p in traffic.profiles if p.k < k]
    above = [p for p in traffic.profiles if p.k > k]
    return [best(side) for side in (below, above) if side]


def _to_rule(profile: Profile, verification: str) -> tuple[Array, float, str]:
    """Survival under the asked rule, the relative error of the conversion, and what to warn of."""
    if _same_rule(profile, verification):
        return profile.survival, 0.0, ""
    if "greedy" in (profile.verification, verification):
        note = f"k = {profile.k} was measured under the {profile.verification} rule; taken as it is for {verification}."
        return profile.survival, TEMPERATURE_SD, note
    convert = token_to_block if verification == "block" else block_to_token
    return convert(profile.survival, temperature=profile.temperature), 0.0 if profile.k == 1 else BLOCK_SD, ""


def _result(survival: Array, sd: float, spread: float, warnings: list[str], used: list[Profile]) -> Acceptance:
    sources = tuple(dict.fromkeys(p.source for p in used))
    return Acceptance(len(survival), survival, 1.0 + float(survival.sum()), sd, spread, tuple(warnings), sources)
