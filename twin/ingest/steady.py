"""The steady part of a load test: warm-up and drain cut off, steps that shared the GPU with a prefill set aside.

From each request's start, time to first token and chunk intervals the number of requests in flight is known at every
moment. Steady is from the first token of the first full wave to the moment the load last falls below 90 % of its
level. An interval is undisturbed when no other request was between its start and its first token meanwhile.
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
    median_s: float
    intervals: int
    trimmed_share: float
    disturbed_share: float
    concurrency: float


def steady(
    start_s: Floats, ttft_s: Floats, intervals_s: Floats, owner: npt.NDArray[np.int64], level: float | None
) -> Steady | None:
    """The steady part of a run, or None when fewer than MIN_INTERVALS undisturbed intervals are left.

    start_s, ttft_s: shape (requests,); intervals_s, owner: shape (chunks,), the chunks of request `owner` in order of
    time. `level` is the concurrency that was asked for; None takes the largest seen.
    """
    if len(intervals_s) < MIN_INTERVALS or len(start_s) == 0:
        return None
    first = start_s + ttft_s
    # Cumulative sums restarted at each request give the times of its chunks.
    running = np.cumsum(intervals_s)
    opens = np.searchsorted(owner, np.arange(len(start_s)))
    before = np.where(opens > 0, running[np.minimum(opens, len(running)) - 1], 0.0)
    ends = first[owner] + running - before[owner]
    begins = ends - intervals_s
    last = np.copy(first)
    np.maximum.at(last, owner, ends)

    times, live = _in_flight(start_s, last)
    target = FULL_SHARE * min(level or np.inf, float(live.max()))
    full = np.flatnonzero(live >= target)
    # The load is below the target from the event after the last full one.
    low, high = times[full[0]], times[min(full[-1] + 1, len(times) - 1)]
    wave = first[start_s <= low]
    low = max(low, float(wave.max()) if len(wave) else low)
    inside = (begins >= low) & (ends <= high)
    clean = inside & ~_overlaps_prefill(begins, ends, start_s, first)
    if int(clean.sum()) < MIN_INTERVALS:
        return None
    span = high - low
    weight = np.diff(np.clip(times, low, high), append=high)
    return Steady(
        step_s=float(intervals_s[clean].mean()),
        median_s=float(np.median(intervals_s[clean])),
        intervals=int(clean.sum()),
        trimmed_share=1.0 - float(inside.mean()),
        disturbed_share=float((inside & ~clean).sum() / max(1, inside.sum())),
        concurrency=float((live * weight).sum() / span) if span > 0 else float(live.max()),
    )


def _in_flight(start_s: Floats, last_s: Floats) -> tuple[Floats, Floats]:
    times = np.concatenate([start_s, last_s])
    change = np.concatenate([np.ones(len(start_s)), -np.ones(len(last_s))])
    # A departure at the moment of an arrival frees the place first.
    order = np.lexsort((change, times))
    return times[order], np.cumsum(change[order])


def _overlaps_prefill(begins: Floats, ends: Floats, start_s: Floats, first_s: Floats) -> npt.NDArray[np.bool_]:
    # Merge the prefill spans, then an interval overlaps one when the count of spans begun before its end
    # differs from the count of spans ended before its begin.
    order = np.argsort(start_s)
    opened, closed = start_s[order], np.maximum.accumulate(first_s[order])
    new = np.concatenate([[True], opened[1:] > closed[:-1]])
    opened_m = opened[new]
    closed_m = closed[np.concatenate([np.flatnonzero(new)[1:] - 1, [len(closed) - 1]])]
    begun: npt.NDArray[np.bool_] = np.searchsorted(opened_m, ends, side="left") != np.searchsorted(
        closed_m, begins, side="right"
    )
    return begun
