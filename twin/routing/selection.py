"""Which family the measurements prefer, and what all of them say where nobody has measured.

Selection leaves one length out, fits the others and predicts it: the root mean square of the relative errors over all
series. Inside the measured lengths every family is *anchored*: multiplied by the measured/fitted ratio, interpolated
in log tokens, so that all of them pass the data. Beyond, the last ratio is kept and the laws part; the answer is
a mixture of the families with weight 1 / (their own error), each with its fit error. That is wide on purpose: laws
that agree within a few per cent at 8 tokens differ by two at 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twin.routing.batch import Array
from twin.routing.evidence import UnionRow, measured_series
from twin.routing.families import FAMILIES, Family, fit_parameter

#: The family `select` chooses on the shipped table (a test holds it to that).
DEFAULT_FAMILY = "zipf"
#: Relative standard deviation of one measured union that remains when windows are many: classes of one model differ
#: by about 4 % from end to end, a mean over some hundred windows by 0.5 %.
MEASUREMENT_NOISE = 0.005


@dataclass(frozen=True)
class Curve:
    """Measured unions of one stream: lengths in tokens and unique experts a layer, each of shape (points,)."""

    experts: int
    top_k: int
    tokens: Array
    unique: Array

    @classmethod
    def of(cls, rows: Sequence[UnionRow]) -> Curve:
        """The curve of one series of the table; one token is always K experts and left out."""
        first = rows[0]
        assert first.experts is not None and first.top_k is not None
        return cls(
            first.experts, first.top_k,
            np.asarray([float(r.tokens or 0) for r in rows]), np.asarray([float(r.unique or 0.0) for r in rows]),
        )  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """A family fitted to one curve: the member, its largest fit error and its leave-one-out error (both relative)."""

    family: Family
    worst_fit: float
    cross_validated: float


@dataclass(frozen=True)
class Spread:
    """Unique experts of one stream at some length: the chosen family, a 95 % interval, every family by name."""

    tokens: int
    chosen: float
    low: float
    high: float
    families: dict[str, float]


def score(kind: type[Family], curve: Curve) -> Scored:
    """Fit one family to a curve and predict every point from the others (two points at least)."""
    noise = np.full(curve.tokens.size, MEASUREMENT_NOISE)
    fitted = fit_parameter(kind, curve.experts, curve.top_k, curve.tokens, curve.unique, noise)
    worst = max(abs(fitted.mean(int(m)) / u - 1.0) for m, u in zip(curve.tokens, curve.unique, strict=True))
    if curve.tokens.size < 2:
        return Scored(fitted, worst, worst)
    errors = []
    for i in range(curve.tokens.size):
        keep = np.arange(curve.tokens.size) != i
        without = fit_parameter(
            kind, curve.experts, curve.top_k, curve.tokens[keep], curve.unique[keep], noise[keep], start=fitted
        )
        errors.append(without.mean(int(curve.tokens[i])) / curve.unique[i] - 1.0)
    return Scored(fitted, worst, float(np.sqrt(np.mean(np.square(errors)))))


def select(rows: Sequence[UnionRow]) -> dict[str, float]:
    """Cross-validated relative error of each family, mean over the measured series, best first."""
    curves = [Curve.of(found) for found in measured_series(rows).values()]
    errors = {
        name: float(np.mean([score(kind, curve).cross_validated for curve in curves]))
        for name, kind in FAMILIES.items()
    }
    return dict(sorted(errors.items(), key=lambda item: item[1]))


class Extrapolation:
    """All families on one measured curve, anchored to it: means inside its range, honest spread beyond."""

    def __init__(self, curve: Curve, chosen: str = DEFAULT_FAMILY) -> None:
        self.curve, self.chosen = curve, chosen
        self.scored = {name: score(kind, curve) for name, kind in FAMILIES.items()}
        inverse = {name: 1.0 / max(s.cross_validated, MEASUREMENT_NOISE) for name, s in self.scored.items()}
        total = sum(inverse.values())
        #: weight of each family in the mixture
        self.weights = {name: value / total for name, value in inverse.items()}

    def mean(self, name: str, tokens: int) -> float:
        """Unique experts of `tokens` tokens by one family, anchored to the curve."""
        curve, family = self.curve, self.scored[name].family
        if tokens <= 1:
            return family.mean(tokens)
        lengths = np.concatenate(([1.0], curve.tokens))
        ratios = np.concatenate(([0.0], [
            np.log(u / family.mean(int(m))) for m, u in zip(curve.tokens, curve.unique, strict=True)
        ]))  # fmt: skip
        ratio = float(np.exp(np.interp(np.log(tokens), np.log(lengths), ratios)))
        return float(np.clip(family.mean(tokens) * ratio, curve.top_k, min(curve.experts, curve.top_k * tokens)))

    def at(self, tokens: int) -> Spread:
        """What every family says at a length, with the 95 % interval of their mixture."""
        means = {name: self.mean(name, tokens) for name in self.scored}
        if tokens <= 1:
            only = self.scored[self.chosen].family.mean(tokens)
            return Spread(tokens, only, only, only, means)
        beyond = max(float(np.log(tokens / self.curve.tokens.max())), 0.0)
        low, high = _mixture_interval(
            np.asarray([means[n] for n in self.scored]), np.asarray([self.weights[n] for n in self.scored]),
            MEASUREMENT_NOISE * (1.0 + beyond),
        )  # fmt: skip
        ceiling = float(min(self.curve.experts, self.curve.top_k * tokens))
        return Spread(tokens, means[self.chosen], max(low, self.curve.top_k), min(high, ceiling), means)


def _mixture_interval(means: Array, weights: Array, relative: float) -> tuple[float, float]:
    """2.5 and 97.5 % points of a mixture of lognormals around `means`."""
    from statistics import NormalDist

    normal = NormalDist()

    def below(x: float) -> float:
        return float(sum(w * normal.cdf(float(np.log(x / m)) / relative) for w, m in zip(weights, means, strict=True)))

    return _root(below, 0.025, means), _root(below, 0.975, means)


def _root(below: Callable[[float], float], level: float, means: Array) -> float:
    low, high = float(means.min()) * 0.5, float(means.max()) * 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < level else (low, middle)
    return 0.5 * (low + high)
