"""Everything the twin refuses, in one tree.

    TwinError                 a person can act on it; the command line prints it and exits 1
    +-- CatalogueError        a catalogue file is missing, broken, or says something impossible
    +-- QuantityError         a quantity text has no unit, the wrong unit, or no number
    +-- PolicyError           a decode policy or schedule does not make sense
    +-- CapacityError         a placement does not fit into the memory of the box
    +-- ReceiptError          a receipt table is broken
    +-- CalibrationError      a calibration is missing, broken, or does not belong to the lane
    +-- TrafficError          a traffic class is missing or broken
    +-- IngestError           a file of somebody's run could not be read
    +-- GateFailed            a check that was asked for did not pass; exit 3

A message says what, where, what was expected, the nearest valid names and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TwinError(Exception):
    """A refusal with a reason. `exit_code` is what the command line returns for it."""

    exit_code = 1


class CatalogueError(TwinError):
    """A catalogue file is missing, broken, or says something impossible."""


class QuantityError(TwinError):
    """A quantity text has no unit, the wrong unit, or no number."""


class PolicyError(TwinError):
    """A decode policy or schedule does not make sense."""


class CapacityError(TwinError):
    """A placement does not fit into the memory of the box."""


class ReceiptError(TwinError):
    """A receipt table is broken."""


class CalibrationError(TwinError):
    """A calibration is missing, broken, or does not belong to the lane."""


class TrafficError(TwinError):
    """A traffic class is missing or broken."""


class IngestError(TwinError):
    """A file of somebody's run could not be read."""


class GateFailed(TwinError):
    """A check that was asked for did not pass."""

    exit_code = 3


def nearest(name: str, valid: Iterable[str], most: int = 3) -> str:
    """A clause naming the closest valid names, closest first, or all of them when none is close."""
    names = sorted(valid)
    by_lower = {n.lower(): n for n in reversed(names)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=0.5)
    if name.lower() in by_lower:
        close = [name.lower()]  # only the letter case was wrong
    chosen = [by_lower[n] for n in close]
    if chosen:
        return "did you mean " + " or ".join(repr(n) for n in chosen) + "?"
    if not names:
        return "there are none."
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"valid names: {shown}."
