"""Four laws for the locality of routing inside one stream, behind one interface.

Consecutive tokens of a text share experts. How many they share decides how many experts a verify step reads, and the
laws that agree on the short blocks people have measured (2 to 8 tokens) differ by a factor of two at 64:

    stretched   U = E (1 - (1 - K/E)^(m^beta))                       beta -> 1 is uniform
    beta_bernoulli  a token's pick is new with probability c / (c + t - 1): U = E (1 - prod_t (1 - (K/E) c/(c+t-1)))
                    c -> infinity is uniform (finite Indian buffet process, Griffiths & Ghahramani 2011, eq. 14 ff)
    zipf        a stream's experts have weights rank^-s, tokens sample K without replacement; s -> 0 is uniform
    sticky      each expert of the token before is kept with probability rho, the rest drawn anew; rho -> 0 is uniform

The first, second and fourth are one process, `FreshPicks`: token t draws a_t of its K experts anew and uniformly and
takes the others from what the stream has touched. Every untouched expert (and pair) then survives a token with a known
factor, so mean and variance are closed products and sampling is exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from twin.routing import weighted
from twin.routing.batch import Array


@dataclass(frozen=True)
class Family(ABC):
    """A law of unique experts against tokens of one stream, with one parameter of locality.

    experts, top_k: the router. parameter: the locality; its name, range and uniform limit are class attributes.
    """

    experts: int
    top_k: int
    parameter: float

    name = ""
    symbol = ""
    lower = 0.0
    upper = 1.0
    uniform_limit = 1.0
    formula = ""

    @abstractmethod
    def mean(self, tokens: int) -> float:
        """Expected unique experts of `tokens` consecutive tokens."""

    @abstractmethod
    def variance(self, tokens: int) -> float:
        """Variance of the unique experts of `tokens` consecutive tokens."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, tokens: int, size: int) -> Array:
        """`size` independent draws of the unique experts, whole numbers in shape (size,)."""


class FreshPicks(Family):
    """Families in which token t draws a random number of its experts anew: `fresh` says how many, on average.

    The number is binomial; `pool` is what fresh experts are drawn from besides: all experts.
    """

    @abstractmethod
    def fresh(self, tokens: int) -> Array:
        """Probability that a pick of token t = 1 .. tokens is drawn anew; the first is always 1."""

    def mean(self, tokens: int) -> float:
        if self.top_k == self.experts:
            return float(self.experts if tokens else 0)
        missed = np.log1p(-self.top_k / self.experts * self.fresh(tokens))
        return -self.experts * math.expm1(float(missed.sum()))

    def variance(self, tokens: int) -> float:
        # v untouched experts: E[v] and E[v (v - 1)] are multiplied by a token's chance to miss one, and to miss two.
        n, k, p = self.experts, self.top_k, self.fresh(tokens)
        mean_a, pairs_a = k * p, k * (k - 1) * p**2
        one = float(np.prod(1.0 - mean_a / n))
        # E[(n - a)(n - a - 1)] = n (n - 1) - 2 (n - 1) E[a] + E[a (a - 1)]
        two = float(np.prod(1.0 - 2.0 * mean_a / n + pairs_a / (n * (n - 1.0)))) if n > 1 else 0.0
        return max(n * (n - 1.0) * two + n * one - (n * one) ** 2, 0.0)

    def sample(self, rng: np.random.Generator, tokens: int, size: int) -> Array:
        untouched = np.full(size, self.experts, dtype=np.int64)
        for probability in self.fresh(tokens):
            picks = rng.binomial(self.top_k, probability, size=size)
            untouched -= rng.hypergeometric(untouched, self.experts - untouched, picks)
        return np.asarray(self.experts - untouched, dtype=float)


class Stretched(FreshPicks):
    """m tokens count as m^beta independent ones."""

    name, symbol, lower, upper, uniform_limit = "stretched", "beta", 0.2, 1.0, 1.0
    formula = "E (1 - (1 - K/E)^(m^beta))"

    def fresh(self, tokens: int) -> Array:
        t = np.arange(tokens + 1.0)
        gained = np.diff(t**self.parameter)
        share = self.top_k / self.experts
        return np.asarray(-np.expm1(gained * math.log1p(-share)) / share) if share < 1 else np.ones(tokens)


class BetaBernoulli(FreshPicks):
    """Each expert has a Beta-distributed chance in a stream: a pick is new with probability c / (c + t - 1)."""

    name, symbol, lower, upper, uniform_limit = "beta_bernoulli", "c", 0.05, 1e6, math.inf
    formula = "E (1 - prod_t (1 - (K/E) c / (c + t - 1)))"

    def fresh(self, tokens: int) -> Array:
        if math.isinf(self.parameter):
            return np.ones(tokens)
        return np.asarray(self.parameter / (self.parameter + np.arange(tokens)))


class Sticky(Family):
    """Each expert of the token before stays with probability rho; the others are drawn anew from all that did not."""

    name, symbol, lower, upper, uniform_limit = "sticky", "rho", 0.0, 0.99, 0.0
    formula = "E - (E - K) (1 - E[a / (E - K + a)])^(m-1), a ~ Binomial(K, 1 - rho)"

    def _survival(self) -> tuple[float, float]:
        """Chance of an untouched expert, and of two, to survive one token after the first."""
        n, k, rho = self.experts, self.top_k, self.parameter
        one = two = 0.0
        for a in range(k + 1):
            weight = math.comb(k, a) * (1.0 - rho) ** a * rho ** (k - a)
            pool = n - k + a
            one += weight * (1.0 - a / pool) if pool else 0.0
            two += weight * (1.0 - a / pool) * (1.0 - a / (pool - 1)) if pool > 1 else 0.0
        return one, two

    def mean(self, tokens: int) -> float:
        if tokens == 0:
            return 0.0
        return self.experts - (self.experts - self.top_k) * self._survival()[0] ** (tokens - 1)

    def variance(self, tokens: int) -> float:
        if tokens == 0:
            return 0.0
        left = self.experts - self.top_k
        one, two = (s ** (tokens - 1) for s in self._survival())
        return max(left * (left - 1) * two + left * one - (left * one) ** 2, 0.0)

    def sample(self, rng: np.random.Generator, tokens: int, size: int) -> Array:
        if tokens == 0:
            return np.zeros(size)
        untouched = np.full(size, self.experts - self.top_k, dtype=np.int64)
        for _ in range(tokens - 1):
            picks = rng.binomial(self.top_k, 1.0 - self.parameter, size=size)
            pool = self.experts - self.top_k + picks
            untouched -= rng.hypergeometric(untouched, pool - untouched, picks)
        return np.asarray(self.experts - untouched, dtype=float)


class Zipf(Family):
    """A stream's own popularity: weights rank^-s, tokens independent given them (`twin.routing.weighted`)."""

    name, symbol, lower, upper, uniform_limit = "zipf", "s", 0.0, 4.0, 0.0
    formula = "sum_r 1 - (1 - pi_r)^m, pi = inclusion(r^-s, K)"

    def _weights(self) -> Array:
        return np.asarray(np.arange(1.0, self.experts + 1.0) ** -self.parameter)

    def mean(self, tokens: int) -> float:
        return weighted.mean_unique(_zipf_inclusion(self.experts, self.top_k, self.parameter), tokens)

    def variance(self, tokens: int) -> float:
        return weighted.variance_unique(self._weights(), self.top_k, tokens)

    def sample(self, rng: np.random.Generator, tokens: int, size: int) -> Array:
        drawn = np.empty(size)
        for start in range(0, size, 256):
            stop = min(size, start + 256)
            ids = weighted.sample_tokens(rng, self._weights(), self.top_k, (stop - start, tokens))
            seen = np.zeros((stop - start, self.experts), dtype=bool)
            seen[np.arange(stop - start)[:, None], ids.reshape(stop - start, -1)] = True
            drawn[start:stop] = seen.sum(axis=1)
        return drawn


@lru_cache(maxsize=256)
def _zipf_inclusion(experts: int, top_k: int, exponent: float) -> Array:
    return weighted.inclusion(np.arange(1.0, experts + 1.0) ** -exponent, top_k)


#: Every family by name; the first is the default (see docs/routing.md for how it was chosen).
FAMILIES: dict[str, type[Family]] = {kind.name: kind for kind in (Stretched, BetaBernoulli, Zipf, Sticky)}


def fit_parameter(
    kind: type[Family], experts: int, top_k: int, tokens: Array, unique: Array, noise: Array, *,
    start: Family | None = None,
) -> Family:  # fmt: skip
    """The member of a family nearest to measured unions: weighted least squares in log unique experts.

    tokens, unique, noise (relative standard deviation): shape (points,). One parameter and smooth residuals: a grid of
    the range for a start (or `start`), then Gauss-Newton, in log for families whose range has no end.
    """
    log_scale = kind.upper > 100
    low, high = (math.log(kind.lower), math.log(1e5)) if log_scale else (kind.lower, kind.upper)

    def member(x: float) -> Family:
        return kind(experts, top_k, math.exp(x) if log_scale else x)

    def residuals(x: float) -> Array:
        family = member(x)
        return np.asarray([math.log(family.mean(int(m)) / u) for m, u in zip(tokens, unique, strict=True)]) / noise

    def error(x: float) -> float:
        return float(np.sum(residuals(x) ** 2))

    if start is None:
        x = min((float(g) for g in np.linspace(low, high, 17)), key=error)
    else:
        x = math.log(start.parameter) if log_scale else start.parameter
    best = error(x)
    for _ in range(12):
        here = residuals(x)
        delta = 1e-4 if x + 1e-4 <= high else -1e-4
        slope = (residuals(x + delta) - here) / delta
        curvature = float(np.sum(slope**2))
        if curvature == 0.0:
            break
        step = -float(np.sum(slope * here)) / curvature
        # A step that makes it worse is halved: the residuals are smooth, but their range is not endless.
        for _ in range(6):
            there = float(np.clip(x + step, low, high))
            found = error(there)
            if found <= best:
                break
            step *= 0.5
        else:
            break
        moved = abs(there - x)
        x, best = there, found
        if moved < 1e-6:
            break
    return member(x)
