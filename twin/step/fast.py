"""The fast engine: max-plus over the graph in issue order, all samples at once, absolute clocks.

start = max(finish of predecessors, finish of the op issued before on the same resource); finish = start + duration. The
additions are those of the reference engine in the same order, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from twin.step.graph import MECHANISMS, Durations, StepGraph, duration_of

Array = npt.NDArray[np.float64]
#: Samples the clocks move at once: above, clocks and durations leave the cache; below, calls count (measured).
BLOCK = 8192


@dataclass(frozen=True)
class StepTimes:
    """Per sample: the step in seconds, and on the primary resource how long each mechanism kept it busy or waiting.

    The mechanisms add up to the step: waiting belongs to the op that was waited for.
    """

    step_s: Array
    mechanism_s: dict[str, Array]


@dataclass(frozen=True, slots=True)
class _Move:
    """One op as the clocks see it: clock[out] = max(clock[i] for i in after) + row `row` of the durations."""

    row: int
    after: tuple[int, ...]
    out: int


@dataclass(frozen=True, slots=True)
class _Schedule:
    """A graph worked out once: what every op really waits for, and the fewest clocks that hold what is still needed.

    `rows` are the distinct (cost, layer) of the durations, `waits` the indices of ops each op waits for, `last` those
    the step's end waits for and `ends` their clocks.
    """

    rows: tuple[tuple[str, int | None], ...]
    waits: tuple[tuple[int, ...], ...]
    moves: tuple[_Move, ...]
    last: tuple[int, ...]
    ends: tuple[int, ...]
    clocks: int


@lru_cache(maxsize=256)
def _schedule(graph: StepGraph) -> _Schedule:
    waits, last = _waits(graph)
    uses = [0] * len(graph.ops)
    for index in (i for after in (*waits, last) for i in after):
        uses[index] += 1
    rows: dict[tuple[str, int | None], int] = {}
    clock_of: list[int] = []
    spare: list[int] = []
    clocks = 0
    moves = []
    for op, after in zip(graph.ops, waits, strict=True):
        for index in after:
            uses[index] -= 1
        # A clock nobody asks again is free; it comes first, so that a maximum written into it has read it.
        after = tuple(sorted(after, key=lambda i: uses[i] > 0))
        spare += [clock_of[i] for i in after if uses[i] == 0]
        reads = tuple(clock_of[i] for i in after)
        if reads and reads[0] in spare:
            out = reads[0]
            spare.remove(out)
        elif spare:
            out = spare.pop()
        else:
            out, clocks = clocks, clocks + 1
        clock_of.append(out)
        moves.append(_Move(rows.setdefault((op.cost, op.layer), len(rows)), reads, out))
    return _Schedule(tuple(rows), waits, tuple(moves), last, tuple(clock_of[i] for i in last), clocks)


def _waits(graph: StepGraph) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """What each op and the step's end wait for, without what something else in the list has waited for already.

    Durations are not negative, so an op never finishes before what it waited for: the maximum is the same number.
    """
    before: list[int] = []  # a bit set an op: everything that finishes no later
    previous: dict[str, int] = {}
    waits = []

    def needed(candidates: set[int]) -> tuple[int, ...]:
        return tuple(i for i in sorted(candidates) if not any(before[j] >> i & 1 for j in candidates))

    for index, op in enumerate(graph.ops):
        candidates = set(op.after)
        if op.resource in previous:
            candidates.add(previous[op.resource])
        waits.append(needed(candidates))
        previous[op.resource] = index
        mine = 0
        for i in candidates:
            mine |= before[i] | 1 << i
        before.append(mine)
    return tuple(waits), needed(set(previous.values()))


def step_times(graph: StepGraph, durations: Durations) -> Array:
    """Step time in seconds, `(samples,)`. Only the clocks, no breakdown; in blocks that stay in the cache."""
    schedule, samples = _schedule(graph), _samples(graph, durations)
    out = np.empty(samples)
    clocks = list(np.empty((schedule.clocks, min(samples, BLOCK))))
    for start in range(0, samples, BLOCK):
        part = slice(start, min(start + BLOCK, samples))
        if part.stop - start < BLOCK:
            clocks = [clock[: part.stop - start] for clock in clocks]
        tables = {name: table[..., part] for name, table in durations.items()}
        rows = [_row(tables[cost], layer) for cost, layer in schedule.rows]
        for move in schedule.moves:
            clock = clocks[move.out]
            if not move.after:
                clock[:] = rows[move.row]
                continue
            begin = clocks[move.after[0]]
            for other in move.after[1:]:
                begin = np.maximum(begin, clocks[other], out=clock)
            np.add(begin, rows[move.row], out=clock)
        out[part] = _latest(clocks, schedule.ends)
    return out


def _row(table: Array, layer: int | None) -> Array:
    return table if layer is None or table.ndim == 1 else table[layer]


def step_breakdown(graph: StepGraph, durations: Durations) -> StepTimes:
    """Step time with the primary resource's time by mechanism; the parts add up to the step."""
    schedule, samples = _schedule(graph), _samples(graph, durations)
    finish: list[Array] = []
    free: dict[str, Array] = {}
    parts = {name: np.zeros(samples) for name in MECHANISMS}
    zero = np.zeros(samples)
    for op, waits in zip(graph.ops, schedule.waits, strict=True):
        duration = duration_of(op, durations)
        ready = free.get(op.resource, zero)
        begin = zero
        for index in waits:
            begin = finish[index] if begin is zero else np.maximum(begin, finish[index])
        if op.resource == graph.primary:
            if begin is not ready:
                _blame(op.after, finish, ready, begin, graph, parts)
            parts[op.mechanism] += duration
        finish.append(begin + duration)
        free[op.resource] = finish[-1]
    step = _latest(finish, schedule.last)
    # Work that ends after the primary resource is waited for by whoever needs the result.
    _blame(tuple(range(len(graph.ops))), finish, free[graph.primary], step, graph, parts)
    return StepTimes(step, parts)


def _blame(
    after: tuple[int, ...], finish: list[Array], ready: Array, begin: Array, graph: StepGraph, parts: dict[str, Array]
) -> None:
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


def _latest(finish: list[Array], among: tuple[int, ...]) -> Array:
    latest = finish[among[0]]
    for index in among[1:]:
        latest = np.maximum(latest, finish[index])
    return latest


def _samples(graph: StepGraph, durations: Durations) -> int:
    return int(duration_of(graph.ops[0], durations).shape[-1])
