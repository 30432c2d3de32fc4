"""Medians of repeated calls, in wall and in processor time: on a machine that others use, the second says what the code costs."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: medians, and the fastest."""

    wall_s: float
    cpu_s: float
    best_s: float
    repeats: int


def measure(call: Callable[[], Any], *, budget_s: float = 1.5, least: int = 5, most: int = 200) -> Timing:
    """Call until `budget_s` is spent, after one call that warms up."""
    call()
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + budget_s
    while len(wall) < least or (time.perf_counter() < end and len(wall) < most):
        w, c = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - w)
        cpu.append(time.process_time() - c)
    return Timing(median(wall), median(cpu), min(wall), len(wall))


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most memory a call holds beyond what was there (Python and NumPy)."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def exponent(sizes: list[float], values: list[float]) -> float:
    """b of value = a x size^b over all points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
