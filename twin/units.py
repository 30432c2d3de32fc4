"""Quantities as people write them, parsed once at the edge into seconds, bytes, tokens, watts and flops.

GB (10^9) and GiB (2^30), bits and bytes are never guessed: the unit text decides, and its letter case counts.
"""

from __future__ import annotations

import math
import re

from twin.errors import QuantityError, nearest

_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
    "bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9,
}  # fmt: skip
_FLOPS = {"FLOPS": 1.0, "GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15}

#: dimension -> unit text -> factor to the internal unit
DIMENSIONS: dict[str, dict[str, float]] = {
    "time": _TIME,
    "bytes": _BYTES,
    "bandwidth": {f"{unit}/s": factor for unit, factor in _BYTES.items()} | {"Gbps": 125e6, "Mbps": 125e3},
    "time_per_byte": {
        f"{t}/{b}": _TIME[t] / _BYTES[b] for t in ("s", "ms", "us", "ns") for b in ("B", "KB", "KiB", "MB", "GB")
    },
    "flops": _FLOPS,
    "power": {"W": 1.0, "kW": 1e3, "mW": 1e-3},
    "money": {"USD": 1.0, "EUR": 1.0},
    "number": {"": 1.0, "%": 0.01},
}

_PATTERN = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%/]*)\s*$")


def parse_quantity(text: str | int | float, dimension: str, *, where: str = "value") -> float:
    """Return `text` ("6481 GB/s", "15.1 us") in the internal unit of `dimension` (a key of DIMENSIONS).

    A bare number is accepted only for the dimension "number". Raises QuantityError with the unit that was expected.
    """
    units = DIMENSIONS[dimension]
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise QuantityError(f"{where}: expected a {dimension} text such as {_example(dimension)}, got {text!r}.")
    if isinstance(text, (int, float)):
        if dimension != "number":
            raise QuantityError(f"{where}: {text!r} has no unit; write it with one, for example {_example(dimension)}.")
        return _finite(float(text), where)
    if len(text) > 80:
        raise QuantityError(
            f"{where}: a quantity of {len(text)} characters; expected something like {_example(dimension)}."
        )
    match = _PATTERN.match(text)
    if match is None:
        raise QuantityError(
            f"{where}: {text!r} is not a number with a unit; expected something like {_example(dimension)}."
        )
    unit = match[2]
    if unit not in units:
        if not unit:
            raise QuantityError(f"{where}: {text!r} has no unit; write it with one, for example {_example(dimension)}.")
        hint = nearest(unit, [u for u in units if u])
        raise QuantityError(f"{where}: {text!r} is not a {dimension}; {hint} For example {_example(dimension)}.")
    return _finite(float(match[1].replace("_", "")) * units[unit], where)


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise QuantityError(f"{where}: the number is not finite.")
    return value


def _example(dimension: str) -> str:
    return {
        "time": '"15.1 us"', "bytes": '"18.8 MB"', "bandwidth": '"6481 GB/s"', "time_per_byte": '"0.0874 us/KB"',
        "flops": '"15 PFLOPS"', "power": '"325 W"', "money": '"95000 USD"', "number": "0.95 or \"95 %\"",
    }[dimension]  # fmt: skip
