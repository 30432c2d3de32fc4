"""Readers of public request traces, recognised by content.

    azure      TIMESTAMP,ContextTokens,GeneratedTokens            dates; Azure LLM inference traces of 2023 and 2024
    burstgpt   Timestamp,[Session ID,..]Request tokens,Response tokens,..   seconds; failed calls have 0 response tokens
    mooncake   {"timestamp": ms, "input_length":, "output_length":, "hash_ids": [..]}   512-token prefix blocks
    plain      arrival_s,prompt_tokens,output_tokens[,session]    seconds

A broken row stops the reading with its line and what was expected; rows of 0 tokens (calls that failed) are left out
and counted. Files are streamed, gzip is accepted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any

from twin.errors import TrafficError, nearest
from twin.serving.trace import Trace, TraceRow

MAX_LINE = 2**20
MAX_TOKENS = 16_000_000
MOONCAKE_BLOCK_TOKENS = 512

#: format -> (time column, prompt column, output column, session column)
CSV_FORMATS: dict[str, tuple[str, str, str, str | None]] = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens", "Session ID"),
    "plain": ("arrival_s", "prompt_tokens", "output_tokens", "session"),
}
_MOONCAKE = ("timestamp", "input_length", "output_length")


def open_trace(path: Path) -> Trace:
    """Recognise a trace file. Raises TrafficError when it cannot be read, is empty, or has no known columns."""
    first = ""
    for first in _lines(path):
        if first.strip():
            break
    if not first.strip():
        raise TrafficError(f"{path}: the file is empty; expected a header or a first request. {_formats()}")
    if first.lstrip().startswith("{"):
        return Trace(path.name, "mooncake", lambda dropped: _mooncake(path, dropped), MOONCAKE_BLOCK_TOKENS)
    header = _header(first)
    name = _csv_format(header, path)
    return Trace(path.name, name, lambda dropped: _csv(path, name, dropped))


def _csv_format(header: Sequence[str], path: Path) -> str:
    known = {h.lower() for h in header}
    scored = [(sum(c.lower() in known for c in CSV_FORMATS[f][:3]), f) for f in CSV_FORMATS]
    found, name = max(scored)
    if found == 3:
        return name
    if found == 0:
        raise TrafficError(f"{path}: no known columns in the header {', '.join(header)[:200]!r}. {_formats()}")
    missing = next(c for c in CSV_FORMATS[name][:3] if c.lower() not in known)
    raise TrafficError(
        f"{path}: looks like a {name} trace but the column {missing!r} is missing; "
        f"{nearest(missing, header)} {_formats()}"
    )


def _formats() -> str:
    described = "; ".join(f"{name}: {', '.join(columns[:3])}" for name, columns in CSV_FORMATS.items())
    return f"Known traces are CSV ({described}) and JSON lines (mooncake: {', '.join(_MOONCAKE)}, hash_ids)."


def _csv(path: Path, name: str, dropped: Counter[str]) -> Iterator[TraceRow]:
    lines = _lines(path)
    number = 0
    header: list[str] = []
    for line in lines:
        number += 1
        if line.strip():
            header = _header(line)
            break
    columns = [h.lower() for h in header]
    time_at, prompt_at, output_at = (columns.index(c.lower()) for c in CSV_FORMATS[name][:3])
    session_column = CSV_FORMATS[name][3]
    session_at = columns.index(session_column.lower()) if session_column and session_column.lower() in columns else -1
    sessions: dict[str, int] = {}
    read_time = _date if name == "azure" else _seconds
    start_s = last_s = math.nan
    width, rows = len(header), 0
    try:
        for cells in csv.reader(lines):
            number += 1
            if not cells:
                continue
            if len(cells) != width:
                raise TrafficError(
                    f"{path}, line {number}: {len(cells)} cells, the header has {width}; the line is broken or cut."
                )
            time_s = read_time(cells[time_at], path, number)
            if time_s < last_s:
                raise _unsorted(path, number, last_s - time_s)
            prompt = _tokens(cells[prompt_at], header[prompt_at], path, number)
            output = _tokens(cells[output_at], header[output_at], path, number)
            if start_s != start_s:
                start_s = time_s
            last_s = time_s
            rows += 1
            if prompt == 0 or output == 0:
                dropped["no prompt or no output tokens"] += 1
                continue
            session = -1
            if session_at >= 0 and cells[session_at]:
                session = sessions.setdefault(cells[session_at], len(sessions))
            yield TraceRow(time_s - start_s, prompt, output, (), session)
    except csv.Error as error:
        raise TrafficError(f"{path}, line {number}: not CSV ({error}).") from None
    if not rows:
        raise TrafficError(f"{path}: a header and no requests.")


def _mooncake(path: Path, dropped: Counter[str]) -> Iterator[TraceRow]:
    start_s = last_s = math.nan
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TrafficError(f"{path}, line {number}: not JSON ({error}); the file may be cut off.") from None
        if not isinstance(row, dict):
            raise TrafficError(f"{path}, line {number}: expected an object with {', '.join(_MOONCAKE)}.")
        for key in _MOONCAKE:
            if key not in row:
                raise TrafficError(f"{path}, line {number}: the key {key!r} is missing; {nearest(key, map(str, row))}")
        time_s = _seconds(row["timestamp"], path, number) / 1000.0
        if time_s < last_s:
            raise _unsorted(path, number, last_s - time_s)
        prompt = _tokens(row["input_length"], "input_length", path, number)
        output = _tokens(row["output_length"], "output_length", path, number)
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or any(type(h) is not int for h in hashes):
            raise TrafficError(f"{path}, line {number}: hash_ids is a list of whole numbers.")
        if start_s != start_s:
            start_s = time_s
        last_s = time_s
        if prompt == 0 or output == 0:
            dropped["no prompt or no output tokens"] += 1
            continue
        # The hash of a last, partial block names a text that no longer prompt shares as a whole block.
        yield TraceRow(time_s - start_s, prompt, output, tuple(hashes[: prompt // MOONCAKE_BLOCK_TOKENS]))


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzip or not, each at most MAX_LINE characters."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        stream: IO[bytes]
        with gzip.open(path) if packed else path.open("rb") as stream:  # type: ignore[assignment]
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            number = 0
            while line := text.readline(MAX_LINE):
                number += 1
                if len(line) >= MAX_LINE:
                    raise TrafficError(f"{path}, line {number}: longer than {MAX_LINE} characters; not a trace.")
                yield line
    except UnicodeDecodeError as error:
        raise TrafficError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except (OSError, EOFError) as error:
        raise TrafficError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def _header(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader(chain([line])), [])]
    except csv.Error:
        return []


def _tokens(cell: Any, name: str, path: Path, number: int) -> int:
    try:
        value = float(cell)
        tokens = int(value)
    except (TypeError, ValueError, OverflowError):
        tokens, value = -1, math.nan
    if isinstance(cell, bool) or tokens != value or not 0 <= tokens <= MAX_TOKENS:
        raise TrafficError(
            f"{path}, line {number}, {name}: {_shown(cell)} is not a number of tokens (0 to {MAX_TOKENS})."
        )
    return tokens


def _seconds(cell: Any, path: Path, number: int) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(cell, bool) or not math.isfinite(value) or value < 0:
        raise TrafficError(f"{path}, line {number}: the time {_shown(cell)} is not a number of at least 0.")
    return value


def _date(cell: str, path: Path, number: int) -> float:
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        raise TrafficError(
            f"{path}, line {number}: the time {_shown(cell)} is not a date such as 2023-11-16 18:15:46.6805900."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(cell: Any) -> str:
    return repr(cell if len(str(cell)) <= 60 else str(cell)[:57] + "...")


def _unsorted(path: Path, number: int, by_s: float) -> TrafficError:
    return TrafficError(
        f"{path}, line {number}: {by_s:g} s earlier than the line before; a trace is in order of time. "
        f"Sort it by its time column."
    )
