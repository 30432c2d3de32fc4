"""The steady part of a load test: warm-up and drain cut off, steps that shared the GPU with a prefill set aside.

From each request's start, time to first token and last chunk the number of requests in flight is known at every moment.
Steady is from the first token of the first full wave to the moment the load last falls below 90 % of its level. An
interval is undisturbed when no other request was between its start and its first token meanwhile. The chunk intervals
themselves are folded in request by request, so memory grows with requests, not with chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FULL_SHARE = 0.9
MIN_INTERVALS = 50


@dataclass(frozen=True)
class Steady:
    """Mean undisturbed interval in seconds, how many those are, and what was set aside (shares of all intervals)."""

    step_s: float
    intervals: int
    trimmed_share: float
    disturbed_share: float
    concurrency: float


class SteadyFold:
    """The steady span of a run, and the sums of the intervals folded into it."""

    def __init__(self, start_s: Floats, first_s: Floats, last_s: Floats, level: float | None) -> None:
        """When each request began, gave its first token and its last chunk, all of shape (requests,); `level` is the
        concurrency that was asked for, None takes the largest seen.
        """
        self._first_s = first_s
        times, live = _in_flight(start_s, last_s)
        target = FULL_SHARE * min(level or np.inf, float(live.max()))
        full = np.flatnonzero(live >= target)
        # The load is below the target from the event after the last full one.
        low, self._high = float(times[full[0]]), float(times[min(full[-1] + 1, len(times) - 1)])
        wave = first_s[start_s <= low]
        self._low = max(low, float(wave.max()) if len(wave) else low)
        span = self._high - self._low
        weight = np.diff(np.clip(times, self._low, self._high), append=self._high)
        self._concurrency = float((live * weight).sum() / span) if span > 0 else float(live.max())
        self._opened, self._closed = _merged(start_s, first_s)
        self._all = self._inside = self._clean = 0
        self._sum_s = 0.0

    def add(self, request: int, intervals_s: Floats) -> None:
        """Fold the chunk intervals of one request in, in order of time, shape (chunks,)."""
        ends = self._first_s[request] + np.cumsum(intervals_s)
        begins = ends - intervals_s
        inside = (begins >= self._low) & (ends <= self._high)
        # An interval overlaps a prefill when the count of those begun before its end differs from the count of those
        # ended before its begin.
        begun = np.searchsorted(self._opened, ends, side="left")
        clean = inside & (begun == np.searchsorted(self._closed, begins, side="right"))
        self._all += len(intervals_s)
        self._inside += int(inside.sum())
        self._clean += int(clean.sum())
        self._sum_s += float(intervals_s[clean].sum())

    def result(self) -> Steady | None:
        """What is steady, or None when fewer than MIN_INTERVALS undisturbed intervals are left."""
        if self._clean < MIN_INTERVALS:
            return None
        return Steady(
            step_s=self._sum_s / self._clean,
            intervals=self._clean,
            trimmed_share=1.0 - self._inside / self._all,
            disturbed_share=(self._inside - self._clean) / self._inside,
            concurrency=self._concurrency,
        )


def _in_flight(start_s: Floats, last_s: Floats) -> tuple[Floats, Floats]:
    times = np.concatenate([start_s, last_s])
    change = np.concatenate([np.ones(len(start_s)), -np.ones(len(last_s))])
    # A departure at the moment of an arrival frees the place first.
    order = np.lexsort((change, times))
    return times[order], np.cumsum(change[order])


def _merged(start_s: Floats, first_s: Floats) -> tuple[Floats, Floats]:
    """The spans in which some request was prefilled, merged where they overlap: their begins and their ends."""
    order = np.argsort(start_s)
    opened, closed = start_s[order], np.maximum.accumulate(first_s[order])
    new = np.concatenate([[True], opened[1:] > closed[:-1]])
    return opened[new], closed[np.concatenate([np.flatnonzero(new)[1:] - 1, [len(closed) - 1]])]
