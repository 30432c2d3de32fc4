"""How long an engine step takes, as the serving simulation asks for it: a protocol, and a table that answers fast.

The step engine is too slow to call for every one of a million simulated steps, and needs no such thing: the time of a
step is a smooth function of context and of a prompt chunk, and a jumpy one of streams and rows (kernels and graphs
are chosen by bucket). The table therefore splits the streams axis until linear interpolation meets a tolerance or the
points are neighbouring integers, and keeps a short logarithmic grid for the smooth axes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from twin.errors import PolicyError


class StepTime(Protocol):
    """Seconds of one engine step. `rows` counts all verified tokens in the step; contexts are means in tokens."""

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        """One verify step of `streams` live streams."""
        ...

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        """A verify step that also carries `prefill_tokens` of prompt, after `prefill_context_tokens` computed
        before."""
        ...

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        """A step with a prompt chunk and no decode."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantStepTime:
    """Every step takes `step_s`: the server of a textbook queue."""

    step_s: float

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        """`step_s`."""
        return self.step_s

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        """`step_s`."""
        return self.step_s

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        """`step_s`."""
        return self.step_s


@dataclass(frozen=True, slots=True)
class NoisyStepTime:
    """Another step time, each step multiplied by the next of `factors` (positive, mean 1): jitter of a real
    engine."""

    base: StepTime
    factors: Iterator[float]

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        """One verify step."""
        return self.base.decode_s(streams, rows, context_tokens) * next(self.factors)

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        """A verify step with a prompt chunk."""
        base_s = self.base.mixed_s(streams, rows, context_tokens, prefill_tokens, prefill_context_tokens)
        return base_s * next(self.factors)

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        """A prompt chunk alone."""
        return self.base.prefill_s(prefill_tokens, prefill_context_tokens) * next(self.factors)


@dataclass(frozen=True, slots=True)
class TableAxes:
    """Where a table is built. Rows are rows per stream (k + 1); the streams axis is refined between 1 and
    `max_streams`.

    `token_buckets` are batch sizes in tokens at which the engine changes graph or kernel: the streams axis gets a
    point on either side of each.
    """

    max_streams: int
    rows_per_stream: tuple[int, ...]
    context_tokens: tuple[float, ...]
    prefill_tokens: tuple[int, ...]
    prefill_context_tokens: tuple[float, ...]
    token_buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rows_per_stream", "context_tokens", "prefill_tokens", "prefill_context_tokens"):
            values: Sequence[float] = getattr(self, name)
            if not values or any(b <= a for a, b in pairwise(values)):
                raise PolicyError(f"step table: {name} needs at least one value, rising; got {list(values)}.")
        if self.max_streams < 1:
            raise PolicyError(f"step table: max_streams is {self.max_streams}; at least 1.")


class TableStepTime:
    """A step time interpolated linearly in streams, rows per stream, context and chunk, from one built once.

    `tolerance` bounds the relative error in the middle of a streams interval. A chunk's extra time over the same step
    without it is tabulated at the middle of the context axis on a coarser streams grid. Outside the axes the nearest
    edge answers, except beyond the longest chunk, where the last two grid points are extended in proportion.
    """

    def __init__(self, source: StepTime, axes: TableAxes, *, tolerance: float = 0.005) -> None:
        self.axes = axes
        self.calls = 0
        self._contexts = list(axes.context_tokens)
        self._rows = list(axes.rows_per_stream)
        #: per rows-per-stream: streams grid -> times over the context grid
        self._decode: list[tuple[list[int], list[list[float]]]] = [
            self._refine(source, r, tolerance) for r in self._rows
        ]
        self._chunks = list(axes.prefill_tokens)
        self._chunk_contexts = list(axes.prefill_context_tokens)
        self._prefill = [[self._call(source.prefill_s, n, c) for c in self._chunk_contexts] for n in self._chunks]
        self._extra_streams = _powers(axes.max_streams)
        self._extra = [[self._extra_of(source, s, r) for s in self._extra_streams] for r in self._rows]
        #: (streams, rows) -> times over the context grid; filled as the simulation visits them
        self._lines: dict[tuple[int, int], list[float]] = {}

    # -- lookups -----------------------------------------------------------------------------------------------

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        """One verify step, interpolated."""
        key = (streams, rows)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._line(streams, rows)
        return _along(self._contexts, line, context_tokens)

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        """A verify step with a prompt chunk, interpolated."""
        base_s = self.decode_s(streams, rows, context_tokens)
        low, high, weight = _bracket(self._rows, rows / streams)
        extra_s = self._extra_at(low, streams, prefill_tokens, prefill_context_tokens)
        if weight:
            upper_s = self._extra_at(high, streams, prefill_tokens, prefill_context_tokens)
            extra_s += weight * (upper_s - extra_s)
        return base_s + max(extra_s, 0.0)

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        """A prompt chunk alone, interpolated."""
        return self._chunk_at(self._prefill, prefill_tokens, prefill_context_tokens)

    # -- building ----------------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., float], *arguments: float) -> float:
        self.calls += 1
        return function(*arguments)

    def _times(self, source: StepTime, streams: int, rows_per_stream: int) -> list[float]:
        rows = streams * rows_per_stream
        return [self._call(source.decode_s, streams, rows, c) for c in self._contexts]

    def _refine(self, source: StepTime, rows_per_stream: int, tolerance: float) -> tuple[list[int], list[list[float]]]:
        edges = {b // rows_per_stream + side for b in self.axes.token_buckets for side in (0, 1)}
        points = sorted(set(_powers(self.axes.max_streams)) | {e for e in edges if 1 <= e <= self.axes.max_streams})
        known = {s: self._times(source, s, rows_per_stream) for s in points}
        open_intervals = list(pairwise(points))
        while open_intervals:
            low, high = open_intervals.pop()
            if high - low < 2:
                continue
            middle = (low + high) // 2
            known[middle] = exact = self._times(source, middle, rows_per_stream)
            weight = (middle - low) / (high - low)
            guess = [a + weight * (b - a) for a, b in zip(known[low], known[high], strict=True)]
            if any(abs(g - e) > tolerance * e for g, e in zip(guess, exact, strict=True)):
                open_intervals += [(low, middle), (middle, high)]
        grid = sorted(known)
        return grid, [known[s] for s in grid]

    def _extra_of(self, source: StepTime, streams: int, rows_per_stream: int) -> list[list[float]]:
        """Extra seconds of a chunk over (chunk, chunk context), beside `streams` decoding streams."""
        rows, context = streams * rows_per_stream, self._contexts[len(self._contexts) // 2]
        base_s = self._call(source.decode_s, streams, rows, context)
        mixed_s = source.mixed_s
        return [
            [self._call(mixed_s, streams, rows, context, n, c) - base_s for c in self._chunk_contexts]
            for n in self._chunks
        ]

    def _line(self, streams: int, rows: int) -> list[float]:
        low, high, weight = _bracket(self._rows, rows / streams)
        line = self._line_at(low, streams)
        if weight:
            line = [a + weight * (b - a) for a, b in zip(line, self._line_at(high, streams), strict=True)]
        return line

    def _line_at(self, row: int, streams: int) -> list[float]:
        grid, lines = self._decode[row]
        low, high, weight = _bracket(grid, streams)
        if not weight:
            return lines[low]
        return [a + weight * (b - a) for a, b in zip(lines[low], lines[high], strict=True)]

    def _extra_at(self, row: int, streams: int, tokens: int, context: float) -> float:
        low, high, weight = _bracket(self._extra_streams, streams)
        extra_s = self._chunk_at(self._extra[row][low], tokens, context)
        if weight:
            extra_s += weight * (self._chunk_at(self._extra[row][high], tokens, context) - extra_s)
        return extra_s

    def _chunk_at(self, table: list[list[float]], tokens: int, context: float) -> float:
        chunks = self._chunks
        if tokens > chunks[-1] and len(chunks) > 1:
            last, before = (_along(self._chunk_contexts, table[i], context) for i in (-1, -2))
            return last + (tokens - chunks[-1]) * (last - before) / (chunks[-1] - chunks[-2])
        low, high, weight = _bracket(chunks, tokens)
        value_s = _along(self._chunk_contexts, table[low], context)
        if weight:
            value_s += weight * (_along(self._chunk_contexts, table[high], context) - value_s)
        return value_s


def interpolation_error(
    table: TableStepTime, source: StepTime, points: Sequence[tuple[int, int, float]]
) -> list[tuple[tuple[int, int, float], float]]:
    """Relative error of the table against its source at (streams, rows, context), worst first."""
    errors = [(p, table.decode_s(*p) / source.decode_s(*p) - 1.0) for p in points]
    return sorted(errors, key=lambda e: -abs(e[1]))


def _powers(largest: int) -> list[int]:
    """1, 2, 4, ... up to and including `largest`."""
    values = [1]
    while values[-1] * 2 < largest:
        values.append(values[-1] * 2)
    return values if largest == 1 else [*values, largest]


def _bracket(grid: Sequence[float], value: float) -> tuple[int, int, float]:
    """(index below, index above, weight of the one above); the edges answer for what lies outside."""
    if value <= grid[0]:
        return 0, 0, 0.0
    if value >= grid[-1]:
        last = len(grid) - 1
        return last, last, 0.0
    high = bisect_right(grid, value)
    below, above = grid[high - 1], grid[high]
    return high - 1, high, (value - below) / (above - below)


def _along(grid: list[float], values: list[float], at: float) -> float:
    """Linear interpolation of `values` on `grid`, held constant outside."""
    if at <= grid[0]:
        return values[0]
    if at >= grid[-1]:
        return values[-1]
    high = bisect_right(grid, at)
    below = grid[high - 1]
    low_value = values[high - 1]
    return low_value + (at - below) / (grid[high] - below) * (values[high] - low_value)
