"""Popularity of experts over a traffic, and what a map made for another traffic leaves outside its hot set.

Route counts of DeepSeek-V4.1-Flash over 36 topics are close to a gamma law over experts, popularity with mean 1 and
squared coefficient of variation v ("skew"): the top half carries 82-85 % of routes and the top three quarters 95-97 %,
as an exponential popularity (v = 1) does. For shape 1/v and scale v,

    share of the most popular fraction f of experts = 1 - P(1/v + 1, x_f),   x_f = P^-1(1/v, 1 - f)

with P the regularised lower incomplete gamma function. A map is made from counts of a calibration traffic; how well
they rank the experts for the traffic served is `agreement`, the correlation rho of normal scores of the two
popularities (a Gaussian copula). rho = 1 is the traffic's own map, rho = 0 a random one:

    cold share = E[p ; z_map < z_c] = integral p(z) Phi((z_c - rho z) / sqrt(1 - rho^2)) phi(z) dz
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twin.routing.batch import Array


@dataclass(frozen=True)
class ColdSet:
    """The routes on experts outside a hot set: their share, and how unequal those experts are.

    share: of all routes. skew: squared coefficient of variation of popularity among the cold experts.
    """

    share: float
    skew: float


def top_share(skew: float, fraction: float) -> float:
    """Share of routes carried by the most popular `fraction` of experts, popularity gamma with this skew."""
    _check(skew, fraction)
    if fraction in (0.0, 1.0) or skew == 0.0:
        return fraction
    from scipy.special import gammainc, gammaincinv

    shape = 1.0 / skew
    return float(1.0 - gammainc(shape + 1.0, gammaincinv(shape, 1.0 - fraction)))


def skew_of(counts: ArrayLike, *, top_k: int = 0) -> float:
    """Squared coefficient of variation of popularity from route counts of one layer, shape (experts,).

    Counting noise (Poisson, 1/mean) is taken off. Raises ValueError for an empty layer.
    """
    n = np.asarray(counts, dtype=float)
    if n.ndim != 1 or n.sum() <= 0:
        raise ValueError("counts must be one row with at least one route")
    mean = n.mean()
    return float(max((n.var() - mean) / mean**2, 0.0))


def cold_set(skew: float, cold_fraction: float, agreement: float) -> ColdSet:
    """Cold share and skew of the cold experts for a map that agrees with the traffic this well (0 .. 1)."""
    _check(skew, cold_fraction)
    if not 0.0 <= agreement <= 1.0:
        raise ValueError(f"agreement must lie in 0 .. 1, got {agreement}")
    if cold_fraction in (0.0, 1.0):
        return ColdSet(cold_fraction, skew)
    popularity, weight, z = _grid(skew)
    z_cold = NormalDist().inv_cdf(cold_fraction)
    if agreement > 0.9999:
        cold = (z < z_cold).astype(float)
    else:
        cold = _phi((z_cold - agreement * z) / (1.0 - agreement**2) ** 0.5)
    first = float(np.sum(weight * popularity * cold))
    second = float(np.sum(weight * popularity**2 * cold))
    return ColdSet(first, max(second * cold_fraction / first**2 - 1.0, 0.0) if first > 0 else skew)


def agreement_for(skew: float, cold_fraction: float, share: float) -> float:
    """The agreement of map and traffic that leaves `share` of routes cold; clipped to 0 .. 1."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if cold_set(skew, cold_fraction, middle).share > share else (low, middle)
    return 0.5 * (low + high)


def _grid(skew: float) -> tuple[Array, Array, Array]:
    """Popularity at a fine grid of normal scores, with the weights of the grid."""
    z = np.linspace(-8.0, 8.0, 4001)
    weight = np.exp(-0.5 * z**2)
    weight /= weight.sum()
    if skew == 0.0:
        return np.ones_like(z), weight, z
    from scipy.special import gammaincinv

    shape = 1.0 / skew
    popularity = np.asarray(gammaincinv(shape, np.clip(_phi(z), 0.0, 1.0 - 1e-15))) * skew
    popularity /= float(np.sum(weight * popularity))
    return popularity, weight, z


def _phi(z: Array) -> Array:
    from scipy.special import ndtr

    normal_cdf: Callable[[Any], Any] = ndtr
    return np.asarray(normal_cdf(z))


def _check(skew: float, fraction: float) -> None:
    if not skew >= 0.0:
        raise ValueError(f"a skew is not negative, got {skew}")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a fraction of experts must lie in 0 .. 1, got {fraction}")
