"""The measured facts of the two lanes, and predictions to hold against them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import twin
from twin import Cell

F = TypeVar("F", bound=Callable[..., object])

DATA = Path(__file__).resolve().parent / "data" / "seed_receipts.csv"
with DATA.open(encoding="utf-8", newline="") as _file:
    ROWS = {row["id"]: row for row in csv.DictReader(_file)}

#: Rows that some test holds the program against.
HELD: set[str] = set()


def holds(*ids: str) -> Callable[[F], F]:
    """Say which rows a test holds the program against."""
    unknown = set(ids) - set(ROWS)
    assert not unknown, f"no such rows: {sorted(unknown)}"
    HELD.update(ids)
    return lambda test: test


def value(fact: str) -> float:
    """The one number of a row."""
    return float(ROWS[fact]["value"])


def span(fact: str) -> tuple[float, float]:
    """Both ends of a row that is a range."""
    low, high = ROWS[fact]["value"].split("-")
    return float(low), float(high)


@lru_cache(maxsize=256)
def cell(
    lane: str,
    k: int | None,
    *,
    streams: int = 1,
    traffic: str = "codegen-padded",
    context: int = 2048,
    verification: str | None = None,
) -> Cell:
    """One cell as a user is answered; k = None is the lane's own policy."""
    answer = twin.predict(
        lane, k=k, concurrency=(streams,), traffic=traffic, context_tokens=context, verification=verification
    )
    return answer.cells[0]
