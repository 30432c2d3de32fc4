"""What a sweep covers: axes from text, and designs over them (every combination, random points, Sobol points).

k=0..9                        whole numbers, both ends in
placement.hot=240..384/16     every 16th
streams=1,2,4,8               a list
links.sidecar.latency=4 us,8 us,16 us        a catalogue value with its unit
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from twin.errors import PolicyError, nearest
from twin.planning.requests import MAX_CONCURRENCY, MAX_CONTEXT, MAX_K

MAX_VALUES = 100_000
MAX_POINTS = 100_000_000
RULES = ("token", "block", "greedy")
#: Axes that are no catalogue value -> field of a point. Everything with a dot is a catalogue value.
FIELDS = {
    "k": "k", "streams": "streams", "concurrency": "streams", "c": "streams", "context": "context_tokens",
    "context_tokens": "context_tokens", "traffic": "traffic", "verification": "verification",
}  # fmt: skip
_LIMITS = {"k": (0, MAX_K), "streams": (1, MAX_CONCURRENCY), "context_tokens": (1, MAX_CONTEXT)}
_RANGE = re.compile(
    r"^\s*([-+.\deE]+?)\s*([A-Za-zµ%/]*)\s*\.\.\s*([-+.\deE]+?)\s*([A-Za-zµ%/]*)\s*(?:/\s*([.\deE+-]+))?\s*$"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies: `key` is a field of a point or a dotted catalogue key, `values` as text.

    `low`, `high`, `whole` and `unit` are there when it was given as a range, which designs may fill in between.
    """

    key: str
    values: tuple[str, ...]
    low: float = math.nan
    high: float = math.nan
    whole: bool = True
    unit: str = ""

    def at(self, share: float) -> str:
        """The value at `share` of [0, 1): of the range when there is one, else of the list."""
        if math.isnan(self.low):
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.whole:
            return f"{int(self.low + share * (self.high - self.low + 1))}{self.unit}"
        return f"{self.low + share * (self.high - self.low):.6g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Point:
    """One cell to predict. None: as the lane's policy says. `overrides` are "dotted.key=value"."""

    lane: str
    overrides: tuple[str, ...] = ()
    traffic: str | None = None
    verification: str | None = None
    context_tokens: int = 2048
    k: int | None = None
    streams: int = 1


@dataclass(frozen=True, slots=True)
class Design:
    """Lanes by axes; `kind` grid has every combination, random and sobol have `points` for every lane."""

    lanes: tuple[str, ...]
    axes: tuple[Axis, ...]
    kind: Literal["grid", "random", "sobol"] = "grid"
    points: int = 0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.lanes) * (math.prod(len(a.values) for a in self.axes) if self.kind == "grid" else self.points)

    def __iter__(self) -> Iterator[Point]:
        """Points in a fixed order: lanes first, catalogue values next, so that neighbours share what is costly to set
        up.
        """
        for lane in self.lanes:
            for values in self._rows():
                yield _point(lane, self.axes, values)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        if self.kind == "grid":
            from itertools import product

            yield from product(*(axis.values for axis in self.axes))
            return
        shares = _random(self) if self.kind == "random" else _sobol(self)
        rows = [tuple(a.at(float(u)) for a, u in zip(self.axes, row, strict=True)) for row in shares]
        yield from sorted(rows)


def parse_axis(text: str) -> Axis:
    """An axis from KEY=VALUES. Raises PolicyError saying what was expected."""
    key, equals, body = text.partition("=")
    key = key.strip()
    if not equals or not key or not body.strip():
        raise PolicyError(
            f"--grid {text!r}: expected KEY=VALUES, for example k=0..9, streams=1,2,4 or placement.hot=240..384/16."
        )
    if "." not in key and key not in FIELDS:
        raise PolicyError(
            f"--grid {text!r}: no axis {key!r}; {nearest(key, FIELDS)} A catalogue value has a dotted key, e.g. placement.hot."
        )
    key = FIELDS.get(key, key)
    ranged = _RANGE.match(body) if ".." in body and "," not in body else None
    axis = _ranged(key, ranged, text) if ranged else Axis(key, tuple(_listed(body, text)))
    if key in _LIMITS:
        low, high = _LIMITS[key]
        for value in axis.values:
            if not value.isdecimal() or not low <= int(value) <= high:
                raise PolicyError(f"--grid {text!r}: {value!r} is not a whole number from {low} to {high}.")
    if key == "verification" and (wrong := next((v for v in axis.values if v not in RULES), None)):
        raise PolicyError(f"--grid {text!r}: {wrong!r} is no rule; {nearest(wrong, RULES)}")
    return axis


def _listed(body: str, text: str) -> Iterator[str]:
    seen = set()
    for part in body.split(","):
        value = part.strip().strip('"')
        if not value:
            raise PolicyError(
                f"--grid {text!r}: an empty value; expected a list such as 1,2,4 or a range such as 0..9."
            )
        found = _RANGE.match(value) if ".." in value else None
        for one in _ranged("", found, text).values if found else (value,):
            if one not in seen:
                seen.add(one)
                yield one


def _ranged(key: str, match: re.Match[str], text: str) -> Axis:
    try:
        low, high = float(match[1]), float(match[3])
        step = float(match[5]) if match[5] else 1.0
    except ValueError:
        raise PolicyError(
            f"--grid {text!r}: {match[0].strip()!r} is not a range; expected first..last or first..last/step."
        ) from None
    unit = match[4] or match[2]
    if match[2] and match[2] != unit:
        raise PolicyError(f"--grid {text!r}: the ends have different units ({match[2]} and {unit}); write one.")
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(step)) or step <= 0:
        raise PolicyError(f"--grid {text!r}: expected finite ends and a step above 0.")
    if low > high:
        raise PolicyError(f"--grid {text!r}: the range runs backwards; write {match[3]}..{match[1]}.")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MAX_VALUES:
        raise PolicyError(f"--grid {text!r}: {count} values; at most {MAX_VALUES}. Give a step: first..last/step.")
    whole = all(v == int(v) for v in (low, high, step))
    values = (low + i * step for i in range(count))
    space = f" {unit}" if unit else ""
    return Axis(key, tuple(f"{int(v) if whole else format(v, '.10g')}{space}" for v in values), low, high, whole, space)


def make_design(
    lanes: Sequence[str], axes: Sequence[Axis], *, random: int | None = None, sobol: int | None = None, seed: int = 0
) -> Design:
    """A checked design. Raises PolicyError for axes given twice, two designs, or too many points."""
    keys = [a.key for a in axes]
    if twice := next((k for k in keys if keys.count(k) > 1), None):
        raise PolicyError(f"--grid: {twice!r} is given twice; put all its values into one.")
    if random is not None and sobol is not None:
        raise PolicyError("--random and --sobol both choose the points; give one of them.")
    if (random or sobol) and not axes:
        raise PolicyError("--random and --sobol choose points between axes; give at least one --grid KEY=VALUES.")
    kind: Literal["grid", "random", "sobol"] = "random" if random else "sobol" if sobol else "grid"
    # Dear to set up first (another lane object for every value), cheap last.
    order = {"traffic": 1, "verification": 2, "context_tokens": 3, "k": 4, "streams": 5}
    design = Design(
        tuple(dict.fromkeys(lanes)),
        tuple(sorted(axes, key=lambda a: order.get(a.key, 0))),
        kind,
        random or sobol or 0,
        seed,
    )
    if len(design) > MAX_POINTS:
        raise PolicyError(
            f"{len(design):,} cells; at most {MAX_POINTS:,}. Use --random N or --sobol N over the same axes."
        )
    return design


def _random(design: Design) -> np.ndarray:
    return np.random.default_rng([design.seed, 11]).random((design.points, len(design.axes)))


def _sobol(design: Design) -> np.ndarray:
    from scipy.stats import qmc

    # A power of two keeps the balance of the sequence; what is asked for is its beginning.
    points = qmc.Sobol(len(design.axes), seed=np.random.default_rng([design.seed, 12])).random_base2(
        max(0, math.ceil(math.log2(design.points)))
    )
    return np.asarray(points[: design.points])


def _point(lane: str, axes: Sequence[Axis], values: Sequence[str]) -> Point:
    overrides, found = [], {"lane": lane}
    for axis, value in zip(axes, values, strict=True):
        if "." in axis.key:
            overrides.append(f"{axis.key}={value}")
        else:
            found[axis.key] = int(value) if axis.key in _LIMITS else value  # type: ignore[assignment]
    return Point(overrides=tuple(overrides), **found)  # type: ignore[arg-type]
