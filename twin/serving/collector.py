"""Listens to a cluster and keeps what a result needs: a row for each request, gaps counted, levels binned."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

import numpy as np

from twin.serving.cluster import Replica
from twin.serving.histogram import GapHistogram
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.request import STATUS_NAMES, UNFINISHED, Request
from twin.serving.stats import Array
from twin.serving.timeline import Span, Timeline

_FLOATS = ("arrival_s", "first_scheduled_s", "first_token_s", "last_token_s", "finish_s")
_INTS = (
    "index", "prompt_tokens", "output_tokens", "left", "traffic", "status", "replica", "preemptions", "cached_tokens",
    "prefilled_tokens",
)  # fmt: skip
#: columns of the table of requests, in this order
REQUEST_COLUMNS = (
    "index", "traffic", "replica", "status", "arrival_s", "queue_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens",
    "output_tokens", "emitted_tokens", "cached_tokens", "prefilled_tokens", "preemptions",
)  # fmt: skip


class RequestTable:
    """Ended requests in the order they ended, as columns: about 80 bytes each."""

    def __init__(self) -> None:
        self._columns = {n: array("d") for n in _FLOATS} | {n: array("q" if n == "index" else "i") for n in _INTS}
        self._appends = [(name, column.append) for name, column in self._columns.items()]

    def __len__(self) -> int:
        return len(self._columns["index"])

    def add(self, request: Request) -> None:
        """Append one ended request."""
        for name, append in self._appends:
            append(getattr(request, name))

    def column(self, name: str) -> Array:
        """A stored column as float64, shape (requests,)."""
        return np.asarray(self._columns[name], dtype=float)

    def measures(self) -> dict[str, Array]:
        """Stored columns and what follows from them, in order of arrival; nan where a request never got that far.

        queue = first scheduled - arrival; TTFT = first token - arrival; TPOT = (last - first token) / (tokens - 1);
        end to end = end - arrival.
        """
        columns = {name: self.column(name) for name in (*_FLOATS, *_INTS)}
        columns["emitted_tokens"] = columns["output_tokens"] - columns["left"]
        columns["queue_s"] = columns["first_scheduled_s"] - columns["arrival_s"]
        columns["ttft_s"] = columns["first_token_s"] - columns["arrival_s"]
        columns["e2e_s"] = columns["finish_s"] - columns["arrival_s"]
        more = columns["emitted_tokens"] - 1.0
        spread_s = columns["last_token_s"] - columns["first_token_s"]
        columns["tpot_s"] = np.where(more > 0, spread_s / np.maximum(more, 1.0), np.nan)
        order = np.lexsort((columns["index"], columns["arrival_s"]))
        return {name: values[order] for name, values in columns.items()}

    def rows(self, class_names: list[str]) -> Iterator[list[object]]:
        """Rows of REQUEST_COLUMNS in order of arrival; None where a time is missing."""
        columns = self.measures()
        for i in range(len(self)):
            row: list[object] = []
            for name in REQUEST_COLUMNS:
                value = float(columns[name][i])
                if name == "traffic":
                    row.append(class_names[int(value)])
                elif name == "status":
                    row.append(STATUS_NAMES[int(value)])
                elif not name.endswith("_s"):
                    row.append(int(value))
                else:
                    row.append(None if math.isnan(value) else value)
            yield row

    def spans(self) -> Iterator[Span]:
        """Spans for the trace viewer, in order of ending."""
        c = self._columns
        keys = ("index", "replica", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
        for values in zip(*(c[k] for k in keys), strict=True):
            yield Span(*values)


class Collector:
    """The observer of a run."""

    def __init__(self) -> None:
        self.requests = RequestTable()
        self.gaps = GapHistogram()
        self.timeline = Timeline()
        self.arrived_count = 0
        self.steps = 0
        self.emitted_tokens = 0
        self.prefilled_tokens = 0
        self.in_system = 0
        self.in_system_area = 0.0  # integral of requests in the system over time, event by event
        self._changed_s = 0.0

    def arrived(self, request: Request, now_s: float) -> None:
        """A request reached the router."""
        self.arrived_count += 1
        self._count(+1, now_s)

    def ended(self, request: Request, now_s: float) -> None:
        """A request will not change any more."""
        self._count(-1, now_s)
        self.requests.add(request)

    def stepped(self, replica: Replica, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float) -> None:
        """A replica finished a step."""
        self.steps += 1
        self.emitted_tokens += outcome.tokens
        self.prefilled_tokens += plan.prefill_tokens
        gaps = self.gaps
        for gap_s, members in outcome.gaps:
            gaps.add(gap_s, members, end_s)
        scheduler = replica.scheduler
        self.timeline.add(
            end_s, end_s - start_s, len(plan.decode), len(plan.prefill), scheduler.waiting, scheduler.kv.used_tokens,
            outcome.tokens, plan.prefill_tokens,
        )  # fmt: skip

    def close(self, live: list[Request], now_s: float) -> None:
        """The run stops: what is still in the system is unfinished."""
        for request in live:
            request.status = UNFINISHED
            request.finish_s = now_s
            self.ended(request, now_s)

    def _count(self, change: int, now_s: float) -> None:
        self.in_system_area += self.in_system * (now_s - self._changed_s)
        self._changed_s = now_s
        self.in_system += change
