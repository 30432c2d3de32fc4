"""The sequential test behind an alarm: Page's CUSUM on Gaussian log-likelihood ratios, one chart a factor and side.

A chart compares "the deviation is at the edge of what the twin allows" (b) with "it is c beyond the edge". A window
whose mean deviation is d with standard deviation s adds

    llr = (c / s^2) (d - b - c / 2)            (and the mirror image for the other side)

to a sum that never falls below zero; the alarm comes when the sum exceeds h. Under any deviation inside the edge the
mean number of windows to a false alarm of one chart is at least e^h (Page 1954, Lorden 1971), so for n charts and one
false alarm in N windows h = log(n N). A deviation inside the twin's interval is no drift however long it lasts; one
that is well outside takes a few windows. The alarm says since when, and how far off the factor has been since then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def threshold(charts: int, windows_between_false_alarms: float) -> float:
    """h for a number of one-sided charts and a mean number of windows between false alarms."""
    return math.log(max(charts, 1) * max(windows_between_false_alarms, 2.0))


@dataclass
class _Side:
    total: float = 0.0
    weight: float = 0.0
    sum_deviation: float = 0.0
    since_s: float = 0.0

    def clear(self) -> None:
        self.total = self.weight = self.sum_deviation = 0.0


@dataclass(frozen=True)
class Alarm:
    """A factor has left what the twin allows: by `deviation` on average, since `since_s` (the watch's clock)."""

    factor: str
    deviation: float
    since_s: float
    at_s: float


class Chart:
    """Both sides of one factor. `beyond` is c above: the excess that the test is tuned to find."""

    def __init__(self, factor: str, beyond: float, limit: float) -> None:
        self.factor, self.beyond, self.limit = factor, beyond, limit
        self._sides = {+1: _Side(), -1: _Side()}

    @property
    def level(self) -> float:
        """The larger of the two sums, as a share of what raises the alarm."""
        return max(side.total for side in self._sides.values()) / self.limit

    def add(self, deviation: float, sd: float, edge: float, *, start_s: float, end_s: float) -> Alarm | None:
        """Book a window; an alarm when this one crossed the limit. The chart then starts again from zero."""
        if not (math.isfinite(deviation) and sd > 0):
            return None
        weight = 1.0 / sd**2
        for sign, side in self._sides.items():
            step = self.beyond * weight * (sign * deviation - edge - self.beyond / 2)
            # One window never decides alone: an interval may hold a stall that is none of the lane's doing.
            step = min(step, 0.5 * self.limit)
            if side.total <= 0.0:
                side.since_s = start_s
            side.total += step
            if side.total <= 0.0:
                side.clear()
                continue
            side.weight += weight
            side.sum_deviation += weight * deviation
            if side.total > self.limit:
                alarm = Alarm(self.factor, side.sum_deviation / side.weight, side.since_s, end_s)
                for other in self._sides.values():
                    other.clear()
                return alarm
        return None
