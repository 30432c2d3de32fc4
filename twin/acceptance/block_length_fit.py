"""Fit the block-length mechanism to published sweeps of k, and leave one out.

Unknowns: the shared law (dilution, overreach, early, fallback, reach) and one level a sweep, two where position 1 was
measured. Residuals are relative errors in per cent of tokens per step (and of position 1). SciPy is imported here only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twin.acceptance.block_length import MECHANISM, Mechanism, carry, shape_from_mean
from twin.acceptance.profile import Array, conditional_from_survival, expit, logit, survival_from_conditional
from twin.acceptance.uplift import block_to_token, token_to_block
from twin.errors import CalibrationError

#: Prior of the fallback: conditionals beyond the trained block were measured between 0.51 and 0.63 over classes.
_FALLBACK, _FALLBACK_SD = float(logit(0.57)), 0.08
#: Prior of the reach: one position, known within a third. Nothing but the mean of long blocks speaks of it.
_REACH_SD = 0.3
_EARLY_SD = 2.0


@dataclass(frozen=True)
class Point:
    """One measured block length; `position_1` is its first conditional where it was measured."""

    k: int
    verification: str
    temperature: float
    tokens_per_step: float
    position_1: float | None


@dataclass(frozen=True)
class Sweep:
    """Block lengths of one model, head and traffic."""

    name: str
    drafter: str
    trained_block: int | None
    points: tuple[Point, ...]

    @property
    def pins_first(self) -> bool:
        """Whether position 1 was measured, so that it gets a level of its own."""
        return any(p.position_1 is not None for p in self.points)


@dataclass(frozen=True)
class MechanismFit:
    """`sd` are one-sigma errors of (dilution, overreach, early, logit fallback, log reach); `rms` in per cent."""

    mechanism: Mechanism
    sd: tuple[float, ...]
    rms_percent: float
    levels: dict[str, tuple[float, float]]


def read_sweeps(text: str) -> list[Sweep]:
    """Parse the table calibration/acceptance/k_sweeps.csv."""
    points: dict[str, list[Point]] = {}
    head: dict[str, tuple[str, int | None]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        try:
            first = float(row["position_1"]) if row["position_1"] else None
            tokens = float(row["tokens_per_step"])
            point = Point(int(row["k"]), row["verification"], float(row["temperature"]), tokens, first)
            block = int(row["trained_block"]) if row["trained_block"] else None
            points.setdefault(row["sweep"], []).append(point)
            head[row["sweep"]] = (row["drafter"], block)
        except (KeyError, TypeError, ValueError) as error:
            message = f"sweep table, line {number}: {error}; expected the columns of k_sweeps.csv."
            raise CalibrationError(message) from None
    return [Sweep(name, *head[name], tuple(p)) for name, p in points.items()]


def predict_point(
    law: Mechanism, level: float, first: float, point: Point, trained_block: int | None
) -> tuple[float, float]:
    """Tokens per step and position 1 of a sweep with these levels at one block length and rule."""
    levels = np.full(point.k, level)
    levels[0] = first
    survival = survival_from_conditional(law.conditional(levels, trained_block))
    if point.verification == "block":
        survival = token_to_block(survival, temperature=point.temperature)
    return 1.0 + float(survival.sum()), float(survival[0])


def fit_mechanism(sweeps: Sequence[Sweep]) -> MechanismFit:
    """Least squares over all sweeps but those of a single layer run again and again, whose decline is another law."""
    from scipy.optimize import least_squares

    used = [s for s in sweeps if s.drafter != "single-layer" and len(s.points) > 1]
    if not used:
        raise CalibrationError("no sweep has two block lengths; the mechanism cannot be fitted.")
    slots: list[tuple[int, int]] = []
    size = 5
    for sweep in used:
        slots.append((size, size + 1 if sweep.pins_first else size))
        size += 2 if sweep.pins_first else 1
    batch = _Batch(used, slots)
    start = np.full(size, 1.5)
    start[:5] = [0.03, 0.005, 1.0, _FALLBACK, 0.0]
    found = least_squares(batch.residuals, start, x_scale="jac")
    x = found.x
    degrees = max(1, len(found.fun) - size)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * float((found.fun**2).sum()) / degrees
    law = Mechanism(float(x[0]), float(x[1]), float(x[2]), float(expit(x[3])), float(np.exp(x[4])))
    levels = {s.name: (float(x[a]), float(x[b])) for s, (a, b) in zip(used, slots, strict=True)}
    data = found.fun[:-3]
    sd = tuple(float(v) for v in np.sqrt(np.diag(covariance)[:5]))
    return MechanismFit(law, sd, float(np.sqrt((data**2).mean())), levels)


class _Batch:
    """All points of all sweeps as arrays (points, longest k), so that one evaluation is a few NumPy calls."""

    def __init__(self, sweeps: Sequence[Sweep], slots: Sequence[tuple[int, int]]) -> None:
        rows = [(s, slot, p) for s, slot in zip(sweeps, slots, strict=True) for p in s.points]
        self.k = np.array([p.k for _, _, p in rows])
        self.level = np.array([slot[0] for _, slot, _ in rows])
        self.first = np.array([slot[1] for _, slot, _ in rows])
        block = np.array([np.inf if s.trained_block is None else s.trained_block for s, _, _ in rows])
        position = np.arange(1, int(self.k.max()) + 1)
        self.beyond_k = np.maximum(0.0, self.k - block)
        self.beyond_p = np.maximum(0.0, position - block[:, None])
        self.inside = position <= self.k[:, None]
        self.mean = np.array([p.tokens_per_step for _, _, p in rows])
        self.position_1 = np.array([np.nan if p.position_1 is None else p.position_1 for _, _, p in rows])
        # Block verification is a constant logit on positions 2.. (see uplift); read it off once.
        probe = token_to_block(np.array([0.5, 0.25]), temperature=1.0)
        gain = float(logit(probe[1] / probe[0]))
        is_block = np.array([p.verification == "block" and p.temperature > 0 for _, _, p in rows])
        self.gain = np.where(is_block[:, None] & (position > 1), gain, 0.0)

    def residuals(self, x: Array) -> Array:
        """Per cent errors of means and first positions, then the three priors."""
        shift = -x[0] * (self.k - 1) - x[1] * self.beyond_k**2
        level = np.repeat((x[self.level] + shift)[:, None], self.inside.shape[1], axis=1)
        level[:, 0] = x[self.first] + shift * (1 + x[2])
        weight = np.exp(-self.beyond_p / np.exp(x[4]))
        c = expit(weight * level + (1 - weight) * x[3] + self.gain)
        mean = 1.0 + (np.cumprod(c, axis=1) * self.inside).sum(axis=1)
        first = 100 * (c[:, 0] / self.position_1 - 1)
        priors = [(x[3] - _FALLBACK) / _FALLBACK_SD, x[4] / _REACH_SD, x[2] / _EARLY_SD]
        return np.concatenate([100 * (mean / self.mean - 1), first[~np.isnan(first)], priors])


@dataclass(frozen=True)
class Holdout:
    """One block length predicted without having been seen."""

    sweep: str
    k: int
    used: tuple[int, ...]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted / self.measured - 1.0


def from_means(sweep: Sweep, given: Sequence[Point], wanted: Point, law: Mechanism) -> float:
    """Tokens per step at `wanted`, carried from the nearest given block lengths by mean (and position 1) only."""
    below = sorted((p for p in given if p.k < wanted.k), key=lambda p: p.k)
    above = sorted((p for p in given if p.k > wanted.k), key=lambda p: p.k)
    near = below[-1:] + above[:1]
    levels = []
    for point in near:
        mean, first = point.tokens_per_step, point.position_1
        shape = shape_from_mean(point.k, mean, trained_block=sweep.trained_block, first=first, mechanism=law)
        if point.verification == "block":
            shape = block_to_token(shape, temperature=point.temperature)
        carried = carry(shape, wanted.k, trained_block=sweep.trained_block, mechanism=law)
        levels.append(logit(conditional_from_survival(carried)))
    share = 0.0 if len(near) == 1 else (wanted.k - near[0].k) / (near[1].k - near[0].k)
    level = levels[0] if len(near) == 1 else (1 - share) * levels[0] + share * levels[1]
    survival = survival_from_conditional(expit(level))
    if wanted.verification == "block":
        survival = token_to_block(survival, temperature=wanted.temperature)
    return 1.0 + float(survival.sum())


def leave_one_out(sweeps: Sequence[Sweep], *, refit: bool = True) -> list[Holdout]:
    """Every point of every sweep predicted from the rest of its sweep, the law fitted without that sweep."""
    out = []
    for sweep in sweeps:
        others = [s for s in sweeps if s is not sweep]
        law = fit_mechanism(others).mechanism if refit else MECHANISM
        for point in sweep.points:
            given = [p for p in sweep.points if p.k != point.k]
            if given:
                predicted = from_means(sweep, given, point, law)
                out.append(Holdout(sweep.name, point.k, tuple(p.k for p in given), point.tokens_per_step, predicted))
    return out


def one_anchor(sweeps: Sequence[Sweep], *, law: Mechanism = MECHANISM) -> list[Holdout]:
    """Every point of every sweep predicted from each single other point of it: the hard case of one measured k."""
    return [
        Holdout(s.name, wanted.k, (given.k,), wanted.tokens_per_step, from_means(s, [given], wanted, law))
        for s in sweeps for wanted in s.points for given in s.points if given.k != wanted.k
    ]  # fmt: skip


def with_errors(law: Mechanism, sweeps: Sequence[Sweep]) -> Mechanism:
    """The law with `within_sd` and `beyond_sd`: of the errors of `one_anchor` a draft of distance, 68.3 % are smaller.

    Pairs inside the trained block give the first, pairs that reach beyond it the second.
    """
    within: list[float] = []
    beyond: list[float] = []
    block = {s.name: s.trained_block for s in sweeps}
    for held in one_anchor([s for s in sweeps if s.drafter != "single-layer"], law=law):
        trained = block[held.sweep]
        inside = trained is None or max(held.k, *held.used) <= trained
        (within if inside else beyond).append(abs(held.error) / abs(held.k - held.used[0]))
    return replace(law, within_sd=float(np.quantile(within, 0.683)), beyond_sd=float(np.quantile(beyond, 0.683)))
