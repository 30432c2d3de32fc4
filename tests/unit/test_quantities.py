"""Quantities as people write them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from twin.errors import QuantityError
from twin.units import DIMENSIONS, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("6481 GB/s", "bandwidth", 6481e9),
        ("1_630.6GB/s", "bandwidth", 1630.6e9),
        ("200 Gbit/s", "bandwidth", 25e9),
        ("200 Gbps", "bandwidth", 25e9),
        ("15.1 us", "time", 15.1e-6),
        ("15.1 µs", "time", 15.1e-6),
        (" 2 ms ", "time", 2e-3),
        ("3e-3 s", "time", 3e-3),
        (".5 min", "time", 30.0),
        ("18.8 MB", "bytes", 18.8e6),
        ("18.8 MiB", "bytes", 18.8 * 2**20),
        ("8 bit", "bytes", 1.0),
        ("0.0874 us/KB", "time_per_byte", 0.0874e-9),
        ("15 PFLOPS", "flops", 15e15),
        ("325 W", "power", 325.0),
        ("95000 USD", "money", 95000.0),
        ("95 %", "number", 0.95),
        ("295", "number", 295.0),
        (295, "number", 295.0),
        (-0.5, "number", -0.5),
    ],
)
def test_reads(text: str | float, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "says"),
    [
        ("6481", "bandwidth", "has no unit"),
        (6481, "bandwidth", "has no unit"),
        ("6481 GB", "bandwidth", "is not a bandwidth"),
        ("6481 gb/s", "bandwidth", "did you mean 'GB/s'"),
        ("15.1 s/us", "time", "is not a time"),
        ("18.8 mb", "bytes", "is not a bytes"),
        ("many GB", "bytes", "not a number with a unit"),
        ("nan GB", "bytes", "not a number with a unit"),
        ("inf s", "time", "not a number with a unit"),
        ("1e400 s", "time", "not finite"),
        (math.nan, "number", "not finite"),
        (math.inf, "number", "not finite"),
        ("", "time", "not a number with a unit"),
        ("1,5 ms", "time", "not a number with a unit"),
        ("1 ms; rm", "time", "not a number with a unit"),
        (True, "number", "expected a number text"),
        (None, "time", "expected a time text"),
        (["1 ms"], "time", "expected a time text"),
        ("1" * 100, "number", "100 characters"),
    ],
)
def test_refuses_and_says_why(text: object, dimension: str, says: str) -> None:
    with pytest.raises(QuantityError, match=r"lane\.toml: links\.peer\.latency") as refused:
        parse_quantity(text, dimension, where="lane.toml: links.peer.latency")  # type: ignore[arg-type]
    assert says in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@given(st.floats(1e-6, 1e6), st.sampled_from([(d, u) for d, units in DIMENSIONS.items() for u in units]))
def test_every_unit_is_its_factor(number: float, pair: tuple[str, str]) -> None:
    dimension, unit = pair
    expected = number * DIMENSIONS[dimension][unit]
    assert parse_quantity(f"{number!r} {unit}", dimension) == approx(expected, rel=1e-15)


@given(st.text(max_size=20), st.sampled_from(sorted(DIMENSIONS)))
def test_any_text_is_read_or_refused(text: str, dimension: str) -> None:
    with contextlib.suppress(QuantityError):
        assert math.isfinite(parse_quantity(text, dimension))


def test_bytes_of_ten_and_of_two_are_different_things() -> None:
    assert parse_quantity("1 GiB", "bytes") / parse_quantity("1 GB", "bytes") == approx(1.073741824)
    assert parse_quantity("1 kB", "bytes") == parse_quantity("1 KB", "bytes") == 1000.0
