"""What a deployment was doing over time, in bins that double when the run gets longer; and the requests' spans.

Memory does not grow with the run. The record becomes a plot, or Chrome trace events that Perfetto opens: counters of
streams, queue and KV, and for the first requests a span each for queueing, prefill and decode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twin.serving.stats import Array

BINS = 1024
#: time-weighted levels, then plain sums
LEVELS = ("busy", "decoding", "prefilling", "waiting", "kv_tokens")
SUMS = ("output_tokens", "prompt_tokens", "steps")
MAX_SPANS = 5000


class Timeline:
    """Per bin: the integral over time of each of LEVELS while replicas step, and the total of each of SUMS."""

    def __init__(self, bin_s: float = 0.02) -> None:
        self.bin_s = bin_s
        self._bins: list[list[float]] = []
        self.kv_peak_tokens = 0

    def add(
        self, end_s: float, duration_s: float, decoding: int, prefilling: int, waiting: int, kv_tokens: int,
        output_tokens: int, prompt_tokens: int,
    ) -> None:  # fmt: skip
        """Count one step of one replica in the bin in which it ended."""
        at = int(end_s / self.bin_s)
        while at >= BINS:
            self._double()
            at = int(end_s / self.bin_s)
        bins = self._bins
        while len(bins) <= at:
            bins.append([0.0] * 8)
        row = bins[at]
        row[0] += duration_s
        row[1] += duration_s * decoding
        row[2] += duration_s * prefilling
        row[3] += duration_s * waiting
        row[4] += duration_s * kv_tokens
        row[5] += output_tokens
        row[6] += prompt_tokens
        row[7] += 1
        if kv_tokens > self.kv_peak_tokens:
            self.kv_peak_tokens = kv_tokens

    def columns(self) -> dict[str, Array]:
        """`time_s` (start of a bin), each of LEVELS as a time average, each of SUMS a second (steps too)."""
        table = np.asarray(self._bins, dtype=float).reshape(-1, 8) / self.bin_s
        columns: dict[str, Array] = {"time_s": np.arange(len(table), dtype=float) * self.bin_s}
        return columns | {name: table[:, i] for i, name in enumerate((*LEVELS, *SUMS))}

    def totals(self, from_s: float, to_s: float) -> dict[str, float]:
        """Averages of LEVELS and rates of SUMS between two times, to whole bins."""
        first = min(math.ceil(from_s / self.bin_s - 1e-9), max(len(self._bins) - 1, 0))
        last = max(math.ceil(to_s / self.bin_s), first + 1)
        table = np.asarray(self._bins[first:last], dtype=float).reshape(-1, 8)
        span_s = max(min(to_s, last * self.bin_s) - first * self.bin_s, 1e-12)
        return dict(zip((*LEVELS, *SUMS), (table.sum(axis=0) / span_s).tolist(), strict=True))

    def _double(self) -> None:
        self.bin_s *= 2.0
        bins = self._bins
        if len(bins) % 2:
            bins.append([0.0] * 8)
        self._bins = [[a + b for a, b in zip(bins[i], bins[i + 1], strict=True)] for i in range(0, len(bins), 2)]


@dataclass(frozen=True, slots=True)
class Span:
    """A request's life for the trace viewer, seconds; nan where it did not happen."""

    index: int
    replica: int
    arrival_s: float
    scheduled_s: float
    first_token_s: float
    end_s: float


def chrome_trace(timeline: Timeline, spans: Iterable[Span], *, name: str) -> dict[str, Any]:
    """Trace events: counters per bin, and an asynchronous span for each phase of each request."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}]
    columns = timeline.columns()
    groups = {
        "streams": ("decoding", "prefilling", "waiting"),
        "KV tokens": ("kv_tokens",),
        "tokens/s": ("output_tokens", "prompt_tokens"),
    }
    for i, time_s in enumerate(columns["time_s"].tolist()):
        for group, names in groups.items():
            values = {n: round(float(columns[n][i]), 3) for n in names}
            events.append({"ph": "C", "pid": 0, "tid": 0, "ts": round(time_s * 1e6, 3), "name": group, "args": values})
    shown = set()
    for n, span in enumerate(spans):
        if n >= MAX_SPANS:
            break
        shown.add(span.replica)
        phases = (
            ("queued", span.arrival_s, span.scheduled_s),
            ("prefill", span.scheduled_s, span.first_token_s),
            ("decode", span.first_token_s, span.end_s),
        )
        for phase, start_s, end_s in phases:
            if not math.isfinite(start_s):
                continue
            if not math.isfinite(end_s):
                end_s = span.end_s  # it ended in this phase
            common = {"cat": "request", "id": span.index, "pid": 1 + max(span.replica, 0), "tid": 0, "name": phase}
            events.append({"ph": "b", "ts": round(start_s * 1e6, 3), **common, "args": {"request": span.index}})
            events.append({"ph": "e", "ts": round(max(end_s, start_s) * 1e6, 3), **common})
    for replica in sorted(shown):
        label = f"requests of replica {replica}" if replica >= 0 else "requests at the router"
        events.append(
            {"ph": "M", "pid": 1 + max(replica, 0), "tid": 0, "name": "process_name", "args": {"name": label}}
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def trace_text(timeline: Timeline, spans: Iterable[Span], *, name: str) -> str:
    """`chrome_trace` as JSON text."""
    return json.dumps(chrome_trace(timeline, spans, name=name), separators=(",", ":"), allow_nan=False)


def plot_timeline(timeline: Timeline, path: Path, *, title: str, kv_capacity_tokens: int = 0) -> None:
    """Streams, queue, tokens/s and KV over time, as SVG or PNG by the suffix of `path`. Needs matplotlib."""
    from matplotlib.figure import Figure

    columns = timeline.columns()
    time_s = columns["time_s"]
    figure = Figure(figsize=(9, 7), layout="constrained")
    streams, tokens, memory = figure.subplots(3, 1, sharex=True)
    streams.step(time_s, columns["decoding"], where="post", label="decoding")
    streams.step(time_s, columns["prefilling"], where="post", label="in prefill")
    streams.step(time_s, columns["waiting"], where="post", label="waiting")
    streams.set_ylabel("requests")
    streams.legend(loc="upper right")
    tokens.step(time_s, columns["output_tokens"], where="post", label="output")
    tokens.step(time_s, columns["prompt_tokens"], where="post", label="prompt")
    tokens.set_ylabel("tokens/s")
    tokens.set_yscale("symlog", linthresh=10)
    tokens.legend(loc="upper right")
    share = 100.0 / kv_capacity_tokens if kv_capacity_tokens else 1.0
    memory.step(time_s, columns["kv_tokens"] * share, where="post", color="tab:green", label="KV")
    memory.step(time_s, columns["busy"] * 100.0, where="post", color="tab:gray", alpha=0.6, label="busy, %")
    memory.set_ylabel("KV, % of capacity" if kv_capacity_tokens else "KV tokens")
    memory.set_xlabel("seconds")
    memory.legend(loc="upper right")
    figure.suptitle(title)
    figure.savefig(path)
