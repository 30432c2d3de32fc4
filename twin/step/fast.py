"""The fast engine: max-plus over the graph in issue order, all samples at once, absolute clocks.

start = max(finish of predecessors, finish of the op issued before on the same resource); finish = start + duration. The
additions are those of the reference engine in the same order, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.step.graph import MECHANISMS, Durations, StepGraph, duration_of

Array = npt.NDArray[np.float64]
BLOCK = 4096


@dataclass(frozen=True)
class StepTimes:
    """Per sample: the step in seconds, and on the primary resource how long each mechanism kept it busy or waiting.

    The mechanisms add up to the step: waiting belongs to the op that was waited for.
    """

    step_s: Array
    mechanism_s: dict[str, Array]


def step_times(graph: StepGraph, durations: Durations) -> Array:
    """Step time in seconds, `(samples,)`. Only the clocks, no breakdown; in blocks that stay in the cache."""
    samples = _samples(graph, durations)
    out = np.empty(samples)
    for start in range(0, samples, BLOCK):
        part = slice(start, min(start + BLOCK, samples))
        finish: list[Array] = []
        free: dict[str, Array] = {}
        for op in graph.ops:
            duration = duration_of(op, durations)[..., part]
            begin = _begin(op.after, finish, free.get(op.resource))
            finish.append(duration.copy() if begin is None else begin + duration)
            free[op.resource] = finish[-1]
        out[part] = _latest(finish)
    return out


def step_breakdown(graph: StepGraph, durations: Durations) -> StepTimes:
    """Step time with the primary resource's time by mechanism; the parts add up to the step."""
    samples = _samples(graph, durations)
    finish: list[Array] = []
    free: dict[str, Array] = {}
    parts = {name: np.zeros(samples) for name in MECHANISMS}
    zero = np.zeros(samples)
    for op in graph.ops:
        duration = duration_of(op, durations)
        ready = free.get(op.resource, zero)
        begin = _begin(op.after, finish, free.get(op.resource))
        begin = zero if begin is None else begin
        if op.resource == graph.primary:
            _blame(op.after, finish, ready, begin, graph, parts)
            parts[op.mechanism] += duration
        finish.append(begin + duration)
        free[op.resource] = finish[-1]
    step = _latest(finish)
    # Work that ends after the primary resource is waited for by whoever needs the result.
    _blame(tuple(range(len(graph.ops))), finish, free[graph.primary], step, graph, parts)
    return StepTimes(step, parts)


def _blame(after: tuple[int, ...], finish: list[Array], ready: Array, begin: Array, graph: StepGraph, parts: dict[str, Array]) -> None:
    """Share the wait `begin - ready` among predecessors on other resources, the latest last."""
    wait = begin - ready
    if not np.any(wait > 0):
        return
    reached = ready
    for index in _by_mean_finish(after, finish):
        op = graph.ops[index]
        if op.resource == graph.primary:
            continue
        until = np.maximum(reached, finish[index])
        parts[op.mechanism] += until - reached
        reached = until


def _by_mean_finish(after: tuple[int, ...], finish: list[Array]) -> Iterator[int]:
    return iter(sorted(after, key=lambda i: float(np.mean(finish[i]))))


def _begin(after: tuple[int, ...], finish: list[Array], free: Array | None) -> Array | None:
    begin = free
    for index in after:
        begin = finish[index] if begin is None or begin is finish[index] else np.maximum(begin, finish[index])
    return begin


def _latest(finish: list[Array]) -> Array:
    latest = finish[0].copy()
    for other in finish[1:]:
        np.maximum(latest, other, out=latest)
    return latest


def _samples(graph: StepGraph, durations: Durations) -> int:
    return int(duration_of(graph.ops[0], durations).shape[-1])
