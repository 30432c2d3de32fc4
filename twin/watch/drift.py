"""The sequential test behind an alarm: Page's CUSUM of log-likelihood ratios, one chart a factor and side.

A chart compares "the deviation is at the edge of what the twin allows" (b) with "it is c beyond the edge". The
log-likelihood ratio of every window is added to a sum that never falls below zero; the alarm comes when the sum exceeds
h. For a Gaussian mean deviation d with standard deviation s the ratio is

    llr = (c / s^2) (d - b - c / 2)            (and the mirror image for the other side)

and `likelihood` has that of draft counters. Under any deviation inside the edge the mean number of windows to a false
alarm of one chart is at least e^h (Page 1954, Lorden 1971), so for n charts and one false alarm in N windows
h = log(n N). A deviation inside the twin's interval is no drift however long it lasts; one that is well outside takes a
few windows. The alarm says since when, and how far off the factor has been since then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.acceptance.profile import Array

#: windows that are kept to name an alarm by
_REMEMBERED = 1000


def threshold(charts: int, windows_between_false_alarms: float) -> float:
    """h for a number of one-sided charts and a mean number of windows between false alarms."""
    return math.log(max(charts, 1) * max(windows_between_false_alarms, 2.0))


@dataclass(frozen=True)
class Evidence:
    """Log-likelihood of a window, up to a constant, at each of the shifts `values` of one factor, both (9,): rising,
    -(b + 4 c), -(b + 2 c), -(b + c), -b, 0 and the same above."""

    log_likelihood: Array
    values: Array

    def plus(self, other: Evidence) -> Evidence:
        """Of two windows together; the shifts are those of the later one."""
        return Evidence(self.log_likelihood + other.log_likelihood, other.values)

    def gain(self) -> float:
        """How much better the best shift explains the windows than none does."""
        return float(np.max(self.log_likelihood) - self.log_likelihood[4])

    def ratio(self, sign: int) -> float:
        """log L(b + c) - log L(b) on one side."""
        return float(self.log_likelihood[4 + 2 * sign] - self.log_likelihood[4 + sign])

    def most_likely(self) -> float:
        """The shift at the top of the parabola through the best value and its neighbours, inside the values."""
        x, y = self.values, self.log_likelihood
        i = min(max(int(np.argmax(y)), 1), len(x) - 2)
        left, right = (y[i] - y[i - 1]) / (x[i] - x[i - 1]), (y[i + 1] - y[i]) / (x[i + 1] - x[i])
        bend = (right - left) / (x[i + 1] - x[i - 1])
        if bend >= 0:
            return float(x[np.argmax(y)])
        top = 0.5 * (x[i - 1] + x[i]) - left / (2 * bend)
        return float(min(max(top, x[0]), x[-1]))


def deviations(edge: float, beyond: float) -> Array:
    """The shifts at which evidence is asked, shape (9,)."""
    steps = edge + beyond * np.array([0.0, 1.0, 2.0, 4.0])
    return np.concatenate([-steps[::-1], [0.0], steps])


def gaussian(deviation: float, sd: float, edge: float, beyond: float) -> Evidence:
    """Evidence of a mean deviation that is known to `sd`."""
    values = deviations(edge, beyond)
    return Evidence(-0.5 * ((deviation - values) / sd) ** 2, values)


@dataclass(frozen=True)
class Alarm:
    """A factor has left what the twin allows: by `deviation` on average, since `since_s` (the watch's clock)."""

    factor: str
    deviation: float
    since_s: float
    at_s: float


class Chart:
    """Both sides of one factor."""

    def __init__(self, factor: str, limit: float) -> None:
        self.factor, self.limit = factor, limit
        self._totals = {+1: 0.0, -1: 0.0}
        self._since_s = {+1: 0.0, -1: 0.0}

    @property
    def level(self) -> float:
        """The larger of the two sums, as a share of what raises the alarm."""
        return max(self._totals.values()) / self.limit

    @property
    def since_s(self) -> float:
        """When the larger of the two sums began to rise."""
        return self._since_s[max(self._totals, key=lambda sign: self._totals[sign])]

    def clear(self) -> None:
        """Start again from zero."""
        self._totals = {+1: 0.0, -1: 0.0}

    def add(self, evidence: Evidence, *, start_s: float) -> bool:
        """Book a window that began at `start_s`; whether a sum is above the limit now."""
        for sign, total in self._totals.items():
            if total <= 0.0:
                self._since_s[sign] = start_s
            # One window never decides alone: an interval may hold a stall that is none of the lane's doing.
            self._totals[sign] = max(total + min(evidence.ratio(sign), 0.5 * self.limit), 0.0)
        return self.level > 1.0


class Family:
    """Charts that explain the same numbers in different ways, of which one at a time can be right.

    When one of them is above its limit, the explanation under which the windows since then are most likely names the
    alarm, and all charts start again.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self.charts = list(charts)
        self._recent: deque[tuple[float, dict[str, Evidence]]] = deque(maxlen=_REMEMBERED)

    @property
    def level(self) -> float:
        """The largest of the charts' levels."""
        return max((chart.level for chart in self.charts), default=0.0)

    def add(self, evidence: dict[str, Evidence], *, start_s: float, end_s: float) -> Alarm | None:
        """Book a window on the charts that there is evidence for; at most one alarm."""
        self._recent.append((start_s, evidence))
        for chart in self.charts:
            if chart.factor in evidence:
                chart.add(evidence[chart.factor], start_s=start_s)
        first = max(self.charts, key=lambda chart: chart.level, default=None)
        if first is None or first.level <= 1.0:
            return None
        since_s = first.since_s
        sums: dict[str, Evidence] = {}
        for window_s, found in self._recent:
            if window_s >= since_s:
                for factor, one in found.items():
                    sums[factor] = one if factor not in sums else sums[factor].plus(one)
        best = max(sums, key=lambda factor: sums[factor].gain())
        self._recent.clear()
        for chart in self.charts:
            chart.clear()
        return Alarm(best, sums[best].most_likely(), since_s, end_s)
