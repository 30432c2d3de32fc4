"""Replay of recorded arrivals: what a trace row is, and how a trace is scaled, repeated and turned into requests.

The readers of the file formats are in `trace_formats`. Everything streams: a trace of 10^7 rows is never held in
memory.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from twin.errors import TrafficError
from twin.serving.request import Request

#: copies of a request made by rate scaling get their own prefix blocks
COPY_BLOCKS = 1 << 40


class TraceRow(NamedTuple):
    """One recorded request; `time_s` counts from the first row of its file."""

    time_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: int = -1


@dataclass
class Trace:
    """A trace file that can be read any number of times. `dropped` counts, by reason, rows that were left out."""

    name: str
    format: str
    open_rows: Callable[[Counter[str]], Iterator[TraceRow]]
    block_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def rows(self) -> Iterator[TraceRow]:
        """The rows in order of time. Raises TrafficError at the first bad one."""
        self.dropped.clear()
        return self.open_rows(self.dropped)

    def notices(self) -> list[str]:
        """What was left out, in sentences."""
        return [f"{self.name}: {n} rows left out: {reason}." for reason, n in sorted(self.dropped.items())]


def replay(
    trace: Trace, *, time_scale: float = 1.0, rate_scale: float = 1.0, repeat: int = 1, limit: int | None = None,
    until_s: float = math.inf, seed: int = 0,
) -> Iterator[TraceRow]:  # fmt: skip
    """The rows of a trace, scaled.

    `time_scale` stretches the clock (0.5: twice as fast, all requests kept). `rate_scale` keeps the clock and changes
    the number of requests: below 1 each is kept with that probability, above 1 each is copied, the copies up to one
    mean gap later and with prefix blocks of their own. `repeat` plays the trace again, one mean gap after its end.
    """
    for name, value in (("time_scale", time_scale), ("rate_scale", rate_scale)):
        if not (math.isfinite(value) and value > 0):
            raise TrafficError(f"{trace.name}: {name} is {value!r}; expected a positive number.")
    if repeat < 1:
        raise TrafficError(f"{trace.name}: repeat is {repeat}; expected at least 1.")
    rows = _repeated(trace, repeat)
    if rate_scale != 1.0:
        rows = _rescaled(rows, rate_scale, np.random.default_rng([seed, 17]))
    for n, row in enumerate(rows):
        time_s = row.time_s * time_scale
        if time_s >= until_s or (limit is not None and n >= limit):
            return
        yield row if time_scale == 1.0 else row._replace(time_s=time_s)


def trace_requests(rows: Iterator[TraceRow], **request_options: float) -> Iterator[Request]:
    """Rows as requests; `request_options` go to `Request` (priority, timeout_s, first_token_timeout_s)."""
    for index, row in enumerate(rows):
        yield Request(
            index, row.time_s, row.prompt_tokens, row.output_tokens, blocks=row.blocks, session=row.session,
            **request_options,  # type: ignore[arg-type]
        )  # fmt: skip


def _repeated(trace: Trace, repeat: int) -> Iterator[TraceRow]:
    start_s = 0.0
    for _ in range(repeat):
        n, last_s = 0, 0.0
        for row in trace.rows():
            n, last_s = n + 1, row.time_s
            yield row._replace(time_s=row.time_s + start_s) if start_s else row
        start_s += last_s * n / (n - 1) if n > 1 else 1.0


def _rescaled(rows: Iterator[TraceRow], factor: float, rng: np.random.Generator) -> Iterator[TraceRow]:
    whole, fraction = int(factor), factor - int(factor)
    pending: list[tuple[float, int, TraceRow]] = []
    order, gap_s, previous_s = 0, 0.0, 0.0
    for n, row in enumerate(rows):
        gap_s += ((row.time_s - previous_s) - gap_s) / (n + 1)  # running mean gap
        previous_s = row.time_s
        while pending and pending[0][0] <= row.time_s:
            yield heapq.heappop(pending)[2]
        copies = whole + (1 if fraction and rng.random() < fraction else 0)
        for copy in range(copies):
            if copy == 0:
                heapq.heappush(pending, (row.time_s, order, row))
            else:
                time_s = row.time_s + float(rng.random()) * gap_s
                blocks = tuple(b + copy * COPY_BLOCKS for b in row.blocks)
                heapq.heappush(pending, (time_s, order, row._replace(time_s=time_s, blocks=blocks)))
            order += 1
    while pending:
        yield heapq.heappop(pending)[2]
