"""Numbers taken from other people's files: finite, in range, with a message that names the file and the key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from twin.errors import IngestError

#: no count, time or rate of a run is beyond these; keeps products and quotients of such numbers finite
LARGEST, SMALLEST = 1e18, 1e-18


def number(value: Any, where: str, key: str, *, minimum: float = 0.0, above: bool = False) -> float | None:
    """`value` as a float, or None when it is null or an empty text.

    Raises IngestError when it is not a number, not finite, or below `minimum` (`above`: not above it).
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise IngestError(f"{where}: {key} should be a number, got {str(value)[:60]!r}.")
    try:
        found = float(value)
    except (ValueError, OverflowError):
        raise IngestError(f"{where}: {key} should be a number, got {str(value)[:60]!r}.") from None
    if not math.isfinite(found):
        raise IngestError(f"{where}: {key} is {found}; the run did not measure it (all requests failed?).")
    if abs(found) > LARGEST or 0 < abs(found) < SMALLEST:
        raise IngestError(f"{where}: {key} is {found:g}; no run measures that, the file is damaged.")
    if found < minimum or (above and found == minimum):
        raise IngestError(
            f"{where}: {key} is {found:g}, expected {'more than' if above else 'at least'} {minimum:g}; the file is "
            "damaged."
        )
    return found


def positive(value: Any, where: str, key: str) -> float | None:
    """A number above zero, or None when it is missing or exactly zero (how bench tools write "not measured")."""
    found = number(value, where, key)
    return found if found else None


def whole(value: Any, where: str, key: str, *, minimum: int = 0) -> int | None:
    """A whole number at least `minimum`, or None when it is null."""
    found = number(value, where, key, minimum=minimum)
    if found is None:
        return None
    if found != int(found):
        raise IngestError(f"{where}: {key} should be a whole number, got {found:g}.")
    return int(found)


def milli(value: Any, where: str, key: str) -> float | None:
    """Milliseconds in the file as seconds; None when missing or zero."""
    found = positive(value, where, key)
    return None if found is None else found / 1000.0


def numbers(value: Any, where: str, key: str, *, minimum: float = 0.0) -> list[float]:
    """A list of finite numbers at least `minimum`; raises IngestError for anything else in it."""
    if not isinstance(value, list):
        raise IngestError(f"{where}: {key} should be a list of numbers, got {str(value)[:60]!r}.")
    if set(map(type, value)) <= {float, int}:
        # The usual list, checked without a Python loop: chunk intervals come by the million.
        try:
            array = np.array(value, dtype=np.float64)
        except OverflowError:
            array = np.array([np.inf])
        size = np.abs(array)
        if np.all((size <= LARGEST) & ((size >= SMALLEST) | (array == 0)) & (array >= minimum)):
            plain: list[float] = array.tolist()
            return plain
    found = []
    for index, item in enumerate(value):
        one = number(item, where, f"{key}[{index}]", minimum=minimum)
        if one is None:
            raise IngestError(f"{where}: {key}[{index}] is empty.")
        found.append(one)
    return found
