"""Families of locality: their limits, their moments against their own samples, the measured points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.routing import exact
from twin.routing.families import FAMILIES, Family, fit_parameter

#: A member of each family near DeepSeek-V4.1-Flash.
MEMBERS = {"stretched": 0.75, "beta_bernoulli": 3.4, "zipf": 1.3, "sticky": 0.42}
NEAR_UNIFORM = {"stretched": 1 - 1e-7, "beta_bernoulli": 1e9, "zipf": 1e-8, "sticky": 1e-8}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 2, 6, 40])
def test_every_family_reduces_to_uniform(name: str, tokens: int) -> None:
    kind = FAMILIES[name]
    mean, variance = exact.mean_unique(48, 4, tokens), exact.variance_unique(48, 4, tokens)
    for parameter in (kind.uniform_limit, NEAR_UNIFORM[name]):
        family = kind(48, 4, parameter)
        assert family.mean(tokens) == pytest.approx(mean, rel=1e-5)
        assert family.variance(tokens) == pytest.approx(variance, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_samples_have_the_moments(name: str, tokens: int) -> None:
    family = FAMILIES[name](96, 4, MEMBERS[name])
    drawn = family.sample(np.random.default_rng(5), tokens, 6000)
    assert drawn.shape == (6000,) and np.array_equal(drawn, np.rint(drawn))
    error = math.sqrt(family.variance(tokens) / 6000)
    assert drawn.mean() == pytest.approx(family.mean(tokens), abs=4 * error + 1e-9)
    assert drawn.var() == pytest.approx(family.variance(tokens), rel=0.12, abs=1e-9)


@given(st.sampled_from(sorted(FAMILIES)), st.floats(0.05, 0.95), st.integers(1, 60))
def test_unions_grow_and_stay_possible(name: str, where: float, tokens: int) -> None:
    kind = FAMILIES[name]
    top = min(kind.upper, 60.0)
    family = kind(40, 3, kind.lower + where * (top - kind.lower))
    here, longer = family.mean(tokens), family.mean(tokens + 1)
    assert 3 - 1e-9 <= here <= min(40, 3 * tokens) + 1e-9
    assert here <= longer + 1e-9 and longer - here <= 3 + 1e-9
    if name != "zipf":
        assert 0 <= family.variance(tokens) <= 400


def test_formulas_as_documented() -> None:
    stretched = FAMILIES["stretched"](384, 6, 0.747)
    assert stretched.mean(6) == pytest.approx(384 * (1 - (1 - 6 / 384) ** (6**0.747)), rel=1e-12)
    c, product = 3.6, 1.0
    for t in range(1, 9):
        product *= 1 - 6 / 384 * c / (c + t - 1)
    assert FAMILIES["beta_bernoulli"](384, 6, c).mean(8) == pytest.approx(384 * (1 - product), rel=1e-12)
    # rho of K = 1: an untouched expert is picked with (1 - rho) / E a token.
    assert FAMILIES["sticky"](10, 1, 0.5).mean(3) == pytest.approx(10 - 9 * (1 - 0.5 * 1 / 10) ** 2)


def test_a_fit_finds_the_member_it_was_made_from() -> None:
    tokens = np.asarray([2.0, 4.0, 8.0])
    for name, kind in FAMILIES.items():
        truth = kind(64, 4, MEMBERS[name])
        unique = np.asarray([truth.mean(int(m)) for m in tokens])
        found: Family = fit_parameter(kind, 64, 4, tokens, unique, np.full(3, 0.01))
        assert found.parameter == pytest.approx(MEMBERS[name], rel=1e-3)


def test_documented_names() -> None:
    for name, kind in FAMILIES.items():
        assert kind.name == name and kind.symbol and kind.formula and kind.__doc__
