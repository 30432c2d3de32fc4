"""Tables as people keep them: CSV (comma, semicolon, tab) and Markdown, as rows of named cells.

Cells may carry a spread ("34.2 ± 0.4"), thousands commas, a unit, or a dash for "not measured".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple

from twin.errors import IngestError
from twin.ingest.numbers import LARGEST, SMALLEST
from twin.ingest.source import Source

#: rows of one table; readers keep only what becomes a cell, and bound that themselves
MAX_ROWS = 200_000_000
MAX_COLUMNS = 500
_RULE = re.compile(r"^\|?\s*:?-{1,}:?\s*(\|\s*:?-{1,}:?\s*)+\|?\s*$")
_VALUE = re.compile(
    r"^[~≈<>*`\s]*(-?[0-9][0-9,_ ]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*([kKM](?![a-zA-Z])|[KM]i(?!\w))?\s*"
    r"(?:(?:±|\+/-|\+-)\s*([0-9][0-9,]*(?:\.[0-9]+)?))?\s*([^0-9]{0,16})[*`\s]*$"
)
_EMPTY = frozenset(("", "-", "--", "—", "–", "n/a", "na", "none", "null", "nan", "?", "tbd", "x"))


class Row(NamedTuple):
    """One row: cells by lower-case column name, the line in the file, and which table of the file it is of."""

    cells: dict[str, str]
    line: int
    table: int


def rows(source: Source, most: int = MAX_ROWS) -> Iterator[Row]:
    """Rows of every table of a Markdown file, or of the one table of a CSV file, read line by line.

    Raises IngestError after `most` rows.
    """
    head = source.head.decode("utf-8", errors="replace")
    for count, row in enumerate(_markdown(source) if markdown(head) else _csv(source), start=1):
        if count > most:
            raise IngestError(f"{source.where}: more than {most:,} rows; split the table.")
        yield row


def markdown(head: str) -> bool:
    """Whether the text has a Markdown table: a line of dashes and bars under a line with bars."""
    lines = head.splitlines()
    return any("|" in above and _RULE.match(line.strip()) for above, line in pairwise(lines))


def header(head: str) -> list[str]:
    """Column names of the first table in the text, lower case; empty when there is none."""
    lines = head.removeprefix("\ufeff").splitlines()
    for above, line in pairwise(lines):
        if "|" in above and _RULE.match(line.strip()):
            return [name(c) for c in split_bars(above)]
    for line in lines[:20]:
        if not line.strip() or line.startswith("#"):
            continue
        found = [name(c) for c in re.split(r"[,;\t]", line)]
        return found if len(found) > 1 else []
    return []


def name(cell: str) -> str:
    """A column name made comparable: lower case, without Markdown marks and doubled spaces."""
    return re.sub(r"\s+", " ", cell.strip().strip('*`"').strip()).lower()


def split_bars(line: str) -> list[str]:
    """Cells of a Markdown row; an escaped bar stays in its cell."""
    return [
        c.replace("\\|", "|").strip() for c in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    ]


def quantity(cell: str, kilo: float = 1000.0) -> tuple[float, float | None, str] | None:
    """Value, spread and unit of a cell, or None when it is empty, a dash or no number.

    `kilo` is what "k" and "K" mean in this column: 1000 for rates, 1024 for prompt sizes ("16K" is 16,384 tokens).
    """
    text = cell.strip()
    # Most cells of a long table are plain numbers.
    if text[:1].isdigit() and text[-1:].isdigit() and len(text) <= 20:
        try:
            plain = float(text)
        except ValueError:
            plain = 0.0
        if SMALLEST <= plain <= LARGEST:
            return plain, None, ""
    if text.lower().strip("*` ") in _EMPTY:
        return None
    match = _VALUE.match(text) if len(text) <= 80 else None
    if match is None:
        return None
    try:
        value = float(match[1].replace(",", "").replace("_", "").replace(" ", ""))
    except ValueError:
        return None
    scale = {"k": kilo, "K": kilo, "M": kilo**2, "Ki": 1024.0, "Mi": 1024.0**2}.get(match[2] or "", 1.0)
    if abs(value) > LARGEST or 0 < abs(value) < SMALLEST:
        return None
    spread = float(match[3].replace(",", "")) * scale if match[3] else None
    return value * scale, spread, match[4].strip().lower()


def _markdown(source: Source) -> Iterator[Row]:
    columns: list[str] | None = None
    above, table = "", 0
    for number, line in enumerate(source.lines(), start=1):
        stripped = line.strip()
        if _RULE.match(stripped) and "|" in above:
            columns = _unique([name(c) for c in split_bars(above)], source.where, number - 1)
            table += 1
        elif columns is not None and "|" in stripped:
            values = split_bars(stripped)
            if len(values) > len(columns):
                raise IngestError(
                    f"{source.where}, line {number}: {len(values)} cells in a table of {len(columns)} columns."
                )
            yield Row(dict(zip(columns, values + [""] * (len(columns) - len(values)), strict=True)), number, table)
        elif not stripped:
            columns = None
        above = stripped


def _csv(source: Source) -> Iterator[Row]:
    columns: list[str] = []
    lines = source.strict_lines()
    skipped, first = 0, ""
    for first in lines:
        if first.strip() and not first.startswith("#"):
            break
        skipped += 1
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter)
    try:
        for values in reader:
            line = skipped + reader.line_num
            if not "".join(values).strip():
                continue
            if not columns:
                columns = _unique([name(v) for v in values], source.where, line)
                continue
            if len(values) > len(columns):
                raise IngestError(
                    f"{source.where}, line {line}: {len(values)} cells in a table of {len(columns)} columns; quote "
                    f"cells that hold a {delimiter!r}."
                )
            if len(values) < len(columns):
                values = values + [""] * (len(columns) - len(values))
            yield Row(dict(zip(columns, values, strict=True)), line, 1)
    except csv.Error as error:
        raise IngestError(f"{source.where}: not a CSV table ({error}).") from None


def _unique(columns: list[str], where: str, line: int) -> list[str]:
    if len(columns) > MAX_COLUMNS:
        raise IngestError(f"{where}, line {line}: {len(columns)} columns; expected at most {MAX_COLUMNS}.")
    named = [c for c in columns if c]
    for column in named:
        if named.count(column) > 1:
            raise IngestError(f"{where}, line {line}: two columns are named {column!r}; rename one.")
    return [c or f"column {i + 1}" for i, c in enumerate(columns)]
