"""Open-loop arrivals: when requests come, whatever the server does.

A renewal process of unit rate (exponential gaps: Poisson; gamma gaps: bursty or regular) is stretched through the
integral of a piecewise linear rate, so that a ramp of a bursty process is still that bursty process in its own time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from twin.errors import TrafficError

BLOCK = 4096


class Rate:
    """A request rate over time, linear between `points` of (seconds, requests a second), constant after the last."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        if not points:
            raise TrafficError("arrivals: no rate was given; expected at least one, for example 2.5 requests a second.")
        times = [t for t, _ in points]
        rates = [r for _, r in points]
        if times[0] != 0 or any(b <= a for a, b in pairwise(times)):
            raise TrafficError(f"arrivals: the times of a rate start at 0 and rise; got {times}.")
        if any(not math.isfinite(r) or r < 0 for r in rates):
            raise TrafficError(f"arrivals: a rate is at least 0 requests a second; got {rates}.")
        self._times, self._rates = times, rates
        self._integral = [0.0]
        for i in range(1, len(points)):
            self._integral.append(self._integral[-1] + 0.5 * (rates[i] + rates[i - 1]) * (times[i] - times[i - 1]))

    @classmethod
    def constant(cls, per_s: float) -> Rate:
        """The same rate for ever."""
        if not (math.isfinite(per_s) and per_s > 0):
            raise TrafficError(f"arrivals: the rate is {per_s!r}; expected a positive number of requests a second.")
        return cls([(0.0, per_s)])

    @classmethod
    def ramp(cls, start_per_s: float, end_per_s: float, over_s: float) -> Rate:
        """From one rate to another in `over_s` seconds, then constant."""
        if over_s <= 0:
            raise TrafficError(f"arrivals: a ramp over {over_s!r} s; expected a positive time.")
        return cls([(0.0, start_per_s), (over_s, end_per_s)])

    def at(self, time_s: float) -> float:
        """Requests a second at `time_s`."""
        return float(np.interp(time_s, self._times, self._rates))

    def time_of(self, expected: float) -> float:
        """When the expected number of arrivals reaches `expected`; infinity when it never does."""
        i = bisect_right(self._integral, expected) - 1
        missing, rate, start_s = expected - self._integral[i], self._rates[i], self._times[i]
        if i == len(self._times) - 1:
            return start_s + missing / rate if rate > 0 else (start_s if missing <= 0 else math.inf)
        slope = (self._rates[i + 1] - rate) / (self._times[i + 1] - start_s)
        # missing = rate t + slope t^2 / 2, in the form that survives slope -> 0.
        root = math.sqrt(max(rate * rate + 2.0 * slope * missing, 0.0))
        return start_s + (2.0 * missing / (rate + root) if rate + root > 0 else 0.0)


def arrival_times(rate: Rate, rng: np.random.Generator, *, cv: float = 1.0) -> Iterator[float]:
    """Arrival times in seconds, endless unless the rate falls to 0. `cv` is the coefficient of variation of the gaps.

    Gamma gaps of shape 1 / cv^2: cv = 1 is Poisson, 0 is regular, the Azure code trace has about 13.
    """
    if not (math.isfinite(cv) and cv >= 0):
        raise TrafficError(
            f"arrivals: the coefficient of variation is {cv!r}; expected 0 (regular), 1 (Poisson) or more."
        )
    expected = 0.0
    while True:
        if cv == 1.0:
            gaps = rng.standard_exponential(BLOCK)
        elif cv == 0.0:
            gaps = np.ones(BLOCK)
        else:
            gaps = rng.gamma(1.0 / cv**2, cv**2, size=BLOCK)
        for gap in gaps.tolist():
            expected += gap
            time_s = rate.time_of(expected)
            if time_s == math.inf:
                return
            yield time_s
