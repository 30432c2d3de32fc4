"""Clocks that drive the scheduler: the wall's, a faster one, or none at all.

A clock answers one question, "what time is it in the simulation?". Steps are booked at their exact simulated times, so
a wake-up that comes late delays what a client sees of one chunk and is not carried into the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Simulated time as a function of the wall's. `speed` is simulated seconds in a wall second."""

    speed: float

    def now_s(self) -> float:
        """Simulated seconds up to which events are due; infinity: whatever comes next is due."""
        ...

    def wall_s_until(self, time_s: float) -> float:
        """Wall seconds until the simulated time `time_s`, at least 0."""
        ...


class WallClock:
    """Simulated time runs `speed` times as fast as the wall's, from 0 when the clock is made."""

    def __init__(self, speed: float = 1.0, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.speed = speed
        self._monotonic = monotonic
        self._start_s = monotonic()

    def now_s(self) -> float:
        """Wall seconds since the start, times the speed."""
        return (self._monotonic() - self._start_s) * self.speed

    def wall_s_until(self, time_s: float) -> float:
        """What is left, divided by the speed."""
        return max((time_s - self.now_s()) / self.speed, 0.0)


class EventClock:
    """No waiting: the next event is always due, and time stands still while there is nothing to do."""

    speed = math.inf

    def now_s(self) -> float:
        """Everything is due."""
        return math.inf

    def wall_s_until(self, time_s: float) -> float:
        """Nothing is waited for, except what never comes."""
        return 0.0 if time_s < math.inf else math.inf
