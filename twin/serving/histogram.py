"""A histogram of a positive duration over time: buckets of 0.5 % width, in slices that double when the run gets
longer.

Inter-token gaps come by the hundred million, so they are counted and not kept. A quantile is right within 0.25 %; the
mean, the count and the maximum are exact. Slices let a warm-up be cut off after the run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from twin.serving.stats import Summary

PER_E_FOLD = 200  # buckets a factor e: 0.5 % wide
SMALLEST_S = 1e-9
SLICES = 128


class Slice:
    """Counts, exact sum and maximum of one stretch of time."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = 0.0
        self.largest = 0.0

    def add(self, other: Slice) -> None:
        """Take in another slice."""
        self.counts.update(other.counts)
        self.total += other.total
        self.largest = max(self.largest, other.largest)


class GapHistogram:
    """Durations in seconds, counted by when they ended."""

    def __init__(self, slice_s: float = 0.25) -> None:
        self.slice_s = slice_s
        self._slices = [Slice()]

    def add(self, gap_s: float, members: int, now_s: float) -> None:
        """Count `members` gaps of `gap_s` that ended at `now_s`."""
        at = int(now_s / self.slice_s)
        slices = self._slices
        if at >= len(slices):
            at = self._reach(now_s)
            slices = self._slices
        piece = slices[at]
        bucket = int(math.log(gap_s) * PER_E_FOLD) if gap_s > SMALLEST_S else int(math.log(SMALLEST_S) * PER_E_FOLD)
        piece.counts[bucket] += members
        piece.total += gap_s * members
        if gap_s > piece.largest:
            piece.largest = gap_s

    def summary(self, from_s: float = 0.0) -> Summary:
        """Over gaps of the slices that begin at or after `from_s`."""
        whole = Slice()
        for i, piece in enumerate(self._slices):
            if i * self.slice_s >= from_s or from_s <= 0:
                whole.add(piece)
        n = sum(whole.counts.values())
        if n == 0:
            return Summary(0)
        ordered = sorted(whole.counts.items())
        p50, p90, p95, p99 = (min(_quantile(ordered, n, q), whole.largest) for q in (0.5, 0.9, 0.95, 0.99))
        return Summary(n, whole.total / n, p50, p90, p95, p99, whole.largest)

    def _reach(self, now_s: float) -> int:
        while int(now_s / self.slice_s) >= SLICES:
            self._double()
        at = int(now_s / self.slice_s)
        while len(self._slices) <= at:
            self._slices.append(Slice())
        return at

    def _double(self) -> None:
        self.slice_s *= 2.0
        merged = []
        for i in range(0, len(self._slices), 2):
            piece = self._slices[i]
            if i + 1 < len(self._slices):
                piece.add(self._slices[i + 1])
            merged.append(piece)
        self._slices = merged


def _quantile(ordered: list[tuple[int, int]], n: int, q: float) -> float:
    reached = list(accumulate(members for _, members in ordered))
    bucket = ordered[min(bisect_left(reached, q * n), len(ordered) - 1)][0]
    # int() truncates toward zero: below one second a bucket spans [b - 1, b] / PER_E_FOLD.
    middle = bucket - 0.5 if bucket < 0 else bucket + 0.5
    return math.exp(middle / PER_E_FOLD)
