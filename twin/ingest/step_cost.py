"""Step-cost tables: the tokens of a verification batch against the time of a pass.

Read are CSV or Markdown tables with a column of tokens and one of ms (or s, us, steps per second), JSON objects
{"8": 21.3, ...} and lists of pairs (milliseconds), and SGLang's cost table and profiling rounds
(`sample_batch_tokens` / `sample_steps_per_sec`, lines with `batch_tokens` and `steps_per_sec`). A batch of m tokens is
m = streams x (k + 1): --k gives the streams, --concurrency gives k. Rows are folded while they are read: a log with a
row a step becomes one cell for each number of tokens, the mean of its rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream, documents
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import number, numbers, whole
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.source import Source
from twin.ingest.table import header, quantity, rows

TITLE = "a step-cost table (tokens in a batch against time)"
_TOKENS = re.compile(
    r"^(batch[ _]?tokens|tokens( in (a )?batch)?|num_tokens|batch size \(tokens\)|sum_query_len|m|rows|verify[ "
    r"_]tokens)$"
)
_TIME = re.compile(
    r"^(?:(?:step|pass|cost|itl|latency|time|verify|median|mean)[ _]?(?:time|cost)?[ "
    r"_]?)?\(?(ms|s|us|seconds|milliseconds)\)?$|^ms/step$|^cost_(ms)$"
)
_RATE = re.compile(r"^(steps[ _/](per[ _])?s(ec(ond)?)?|sps)$")
_STREAMS = re.compile(r"^(batch[ _]?size(_per_rank)?|bs|num_reqs|requests|streams|concurrency)$")
_SECONDS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "seconds": 1.0, "us": 1e-6}
_PLAIN = re.compile(r'^\s*\{\s*"[0-9]{1,6}"\s*:\s*[0-9]')
_PAIRS = re.compile(r"^\s*\[\s*\[\s*[0-9]{1,6}\s*,\s*[0-9.eE+-]{1,30}\s*\]")


def score(head: Head) -> float:
    if head.binary:
        return 0.0
    if head.json:
        if {"sample_batch_tokens", "sample_steps_per_sec"} <= head.keys or {
            "batch_tokens",
            "steps_per_sec",
        } <= head.keys:
            return 0.95
        return 0.8 if _PLAIN.match(head.text) or _PAIRS.match(head.text) else 0.0
    columns = header(head.text)
    tokens, time = any(_TOKENS.match(c) for c in columns), any(_TIME.match(c) or _RATE.match(c) for c in columns)
    return 0.85 if tokens and time else 0.3 if tokens or time else 0.0


#: different numbers of tokens (and streams); a table of a box has a few hundred
MAX_CELLS = 20_000


def read(source: Source) -> Found:
    """One cell for each number of tokens; k and concurrency come from the flags."""
    found = Found(FORMAT.name, source.where, source.sha256())
    costs = _Costs(source.where)
    if source.head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"["):
        with JsonStream(source) as stream:
            _json(stream, costs, found)
    else:
        _table(source, costs, found)
    found.cells = costs.cells()
    if not found.cells:
        raise nothing_inside(source, TITLE, "no row of tokens and time")
    _check(found)
    return found


class _Costs:
    """Running mean and scatter of the time, by tokens of the batch and its streams where the row says them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._sums: dict[tuple[int, int], tuple[str, int, float, float]] = {}

    def add(self, tokens: int, seconds: float, label: str, streams: float | None = None) -> None:
        """One row. Raises IngestError for a time no pass takes."""
        if tokens < 1 or not 1e-7 <= seconds <= 1e4:
            raise IngestError(f"{self.where}, {label}: {tokens} tokens in {seconds:g} s; check the unit.")
        whole_streams = streams and streams == int(streams) and tokens % int(streams) == 0
        key = tokens, int(streams) if streams and whole_streams else 0
        first, count, mean, squares = self._sums.get(key, (label, 0, 0.0, 0.0))
        # Welford's update keeps the scatter of millions of equal rows exact.
        change = seconds - mean
        mean += change / (count + 1)
        self._sums[key] = first, count + 1, mean, squares + change * (seconds - mean)
        if len(self._sums) > MAX_CELLS:
            raise IngestError(f"{self.where}: more than {MAX_CELLS:,} different batches; is this a step-cost table?")

    def cells(self) -> list[Cell]:
        """One cell a batch, in the order of first appearance."""
        found = []
        for (tokens, streams), (label, count, mean, squares) in self._sums.items():
            cell = Cell(label, batch_tokens=tokens, step_s=mean, step_definition="pass_time")
            if streams:
                cell.concurrency_asked, cell.k = float(streams), tokens // streams - 1
            if count > 1:
                scatter = (squares / (count - 1)) ** 0.5 / mean
                cell.notes.append(f"mean of {count:,} rows that scatter by {scatter:.1%}")
            found.append(cell)
        return found


def _json(stream: JsonStream, costs: _Costs, found: Found) -> None:
    where = found.where
    if stream.peek() == "[":
        for index in stream.elements():
            _entry(stream.value(), f"row {index + 1}", costs, found)
        return
    for index in documents(stream):
        raw = stream.value()
        if not isinstance(raw, dict):
            raise IngestError(f"{where}, line {index + 1}: expected an object, got {str(raw)[:40]!r}.")
        if "sample_batch_tokens" in raw:
            tokens = numbers(raw["sample_batch_tokens"], where, "sample_batch_tokens", minimum=1)
            rates = numbers(raw.get("sample_steps_per_sec"), where, "sample_steps_per_sec")
            if len(tokens) != len(rates):
                raise IngestError(f"{where}: {len(tokens)} sample_batch_tokens but {len(rates)} sample_steps_per_sec.")
            for m, rate in zip(tokens, rates, strict=True):
                if rate <= 0 or m != int(m):
                    raise IngestError(f"{where}: {m:g} tokens at {rate:g} steps per second cannot be.")
                costs.add(int(m), 1.0 / rate, f"{m:g} tokens")
            for key in raw.keys() - {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}:
                found.keep(key, raw[key])
        elif "batch_tokens" in raw:
            _entry(raw, f"line {index + 1}", costs, found)
        else:
            for key, value in raw.items():
                if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 6):
                    raise IngestError(f"{where}: the key {key[:30]!r} is no number of tokens.")
                _entry([int(key), value], f"{key} tokens", costs, found)


def _entry(raw: Any, label: str, costs: _Costs, found: Found) -> None:
    here = f"{found.where}, {label}"
    if isinstance(raw, dict):
        tokens, rate = (
            whole(raw.get("batch_tokens"), here, "batch_tokens", minimum=1),
            number(raw.get("steps_per_sec"), here, "steps_per_sec", above=True),
        )
        if tokens is None or rate is None:
            raise IngestError(f"{here}: expected batch_tokens and steps_per_sec.")
        costs.add(tokens, 1.0 / rate, label, number(raw.get("batch_size_per_rank"), here, "batch_size_per_rank"))
        for key in raw.keys() - {"batch_tokens", "steps_per_sec", "batch_size_per_rank", "batch_size"}:
            found.keep(key, raw[key])
    elif isinstance(raw, list) and len(raw) == 2:
        tokens, value = whole(raw[0], here, "tokens", minimum=1), number(raw[1], here, "ms", above=True)
        if tokens is None or value is None:
            raise IngestError(f"{here}: expected [tokens, milliseconds].")
        costs.add(tokens, value / 1e3, label)
    else:
        raise IngestError(f"{here}: expected [tokens, milliseconds], got {str(raw)[:40]!r}.")


@dataclass(frozen=True)
class _Columns:
    tokens: str
    time: str
    streams: str | None
    others: list[str]
    #: seconds of one unit of the time column; None where it holds steps per second
    unit_s: float | None = None


def _columns(cells: dict[str, str]) -> _Columns:
    """Which columns of a table hold tokens, time and streams; empty texts where there is none."""
    tokens = next((c for c in cells if _TOKENS.match(c)), "")
    time = next((c for c in cells if _TIME.match(c)), "") or next((c for c in cells if _RATE.match(c)), "")
    streams = next((c for c in cells if _STREAMS.match(c)), None)
    match = _TIME.match(time)
    unit_s = _SECONDS[match[1] or match[2] or "ms"] if match else None
    others = [c for c in cells if tokens and time and c not in (tokens, time, streams)]
    return _Columns(tokens, time, streams, others, unit_s)


def _table(source: Source, costs: _Costs, found: Found) -> None:
    passed, first = 0, 0
    table, columns = 0, _Columns("", "", None, [])
    for row in rows(source):
        if row.table != table:
            table, columns = row.table, _columns(row.cells)
            for column in columns.others:
                found.keep(f"column {column!r}", row.cells[column])
        if not columns.tokens or not columns.time:
            continue
        tokens_at, time_at, streams_at = columns.tokens, columns.time, columns.streams
        tokens, time = quantity(row.cells[tokens_at]), quantity(row.cells[time_at])
        if tokens is None or time is None:
            passed, first = passed + 1, first or row.line
            continue
        if tokens[0] != int(tokens[0]) or time[0] <= 0:
            raise IngestError(
                f"{source.where}, line {row.line}: {row.cells[tokens_at][:20]!r} tokens in "
                f"{row.cells[time_at][:20]!r}; expected a whole number and a time above zero."
            )
        seconds = time[0] * columns.unit_s if columns.unit_s else 1.0 / time[0]
        streams = quantity(row.cells[streams_at]) if streams_at else None
        costs.add(int(tokens[0]), seconds, f"line {row.line}", streams[0] if streams and streams[0] >= 1 else None)
    if passed:
        found.notes.append(f"{passed} rows without a number left out, the first in line {first}")


def _check(found: Found) -> None:
    """A step with more tokens that is much faster points at buckets or at swapped columns; say it."""
    ordered = sorted((c.batch_tokens or 0, c.step_s or 0.0) for c in found.cells)
    drops = [(a, b) for a, b in pairwise(ordered) if b[0] > a[0] and b[1] < 0.9 * a[1]]
    if drops:
        (m1, t1), (m2, t2) = drops[0]
        found.notes.append(
            f"{m2} tokens take {t2 * 1e3:.2f} ms, {m1} take {t1 * 1e3:.2f} ms: a token-count bucket, or noise"
        )


FORMAT = Reader("step-cost", TITLE, score, read)
