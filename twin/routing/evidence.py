"""Measured unions and hit rates: the table calibration/routing/union.csv, one row a measurement.

Kinds: `stream` (consecutive tokens of one stream), `layer` (the same, of one layer), `streams` (one token each of
several streams), `shuffled`, `computed` (somebody's formula, kept to check ours), `static` and `lru` (hit rate of a
cache of `slots` experts a layer), `excluded` (with a reason).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from twin.errors import IngestError
from twin.lane.sourced import Strict

MAX_ROWS = 100_000
Kind = Literal["stream", "layer", "streams", "shuffled", "computed", "static", "lru", "excluded"]
_WHOLE = {"experts", "top_k", "layer", "streams", "tokens", "windows"}
_REAL = {"unique", "slots", "hit_rate"}


class UnionRow(Strict):
    """One measured point. `unique` is experts a layer; `slots` the experts a layer that a cache holds."""

    id: str
    source: str
    model: str
    experts: int | None = None
    top_k: int | None = None
    kind: Kind
    workload: str = ""
    layer: int | None = None
    streams: int = 1
    tokens: int | None = None
    unique: float | None = None
    slots: float | None = None
    hit_rate: float | None = None
    windows: int | None = None
    reason: str = ""
    notes: str = ""

    @property
    def series(self) -> tuple[str, str]:
        """Rows that one locality parameter explains: model and workload."""
        return self.model, self.workload


def read_union(path: Path) -> list[UnionRow]:
    """Read the table. Raises IngestError naming file, line and column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = []
            for number, cells in enumerate(reader, start=2):
                if number > MAX_ROWS:
                    raise IngestError(f"{path}: more than {MAX_ROWS} rows; split the table.")
                rows.append(_row(cells, f"{path}, line {number}"))
            return rows
    except OSError as error:
        raise IngestError(f"{path}: cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise IngestError(f"{path}: not a UTF-8 CSV table ({error}).") from None


def measured_series(rows: Iterable[UnionRow], *, points: int = 3) -> dict[tuple[str, str], list[UnionRow]]:
    """Series of one stream with at least `points` lengths beyond one token, shortest first."""
    series: dict[tuple[str, str], list[UnionRow]] = {}
    for row in rows:
        if row.kind == "stream" and row.experts and row.top_k and row.tokens and row.tokens > 1 and row.unique:
            series.setdefault(row.series, []).append(row)
    return {
        key: sorted(found, key=lambda r: r.tokens or 0)
        for key, found in series.items()
        if len({r.tokens for r in found}) >= points
    }


def shipped_union() -> Path:
    """The table that comes with the package."""
    from twin.lane.catalogue import shipped_root

    return shipped_root() / "calibration" / "routing" / "union.csv"


def _row(cells: dict[str, str | None], where: str) -> UnionRow:
    values: dict[str, object] = {}
    for name, cell in cells.items():
        text = (cell or "").strip()
        if text == "":
            continue
        try:
            values[name] = int(text) if name in _WHOLE else float(text) if name in _REAL else text
        except ValueError:
            raise IngestError(f"{where}, column {name!r}: {text!r} is not a number.") from None
    try:
        return UnionRow(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise IngestError(f"{where}, column {place!r}: {first['msg']} (got {first.get('input')!r}).") from None
