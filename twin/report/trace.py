"""A step's timeline as Chrome trace events, the JSON that Perfetto and chrome://tracing open.

One row a resource, ops as complete events ("X") named with their layer, flow arrows ("s", "f") where an op waited for
another resource (hops, barriers), counters ("C") for experts touched and for the work handed to a resource and not
finished. Times are whole nanoseconds written in microseconds, so that events of one row touch and never overlap.
Format: Trace Event Format, "JSON Object Format" of the Chromium project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from twin.planning.draws import Sampled
from twin.step.graph import StepGraph
from twin.step.reference import Span, simulate_step

Event = dict[str, Any]
_PID = 1


def step_trace(
    sampled: Sampled, *, steps: int = 1, title: str = "step", meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The trace of `steps` steps after one another, each another draw, run by the reference engine.

    `meta` goes into otherData.
    """
    graph = sampled.graph
    rows = {resource: tid for tid, resource in enumerate(graph.resources, start=1)}
    events = list(_names(rows, title))
    offset, flow = 0, 0
    for step in range(steps):
        sample = step % len(sampled.kept)
        _, spans = simulate_step(graph, sampled.durations, sample)
        times = [(offset + round(s.start_s * 1e9), offset + round(s.finish_s * 1e9)) for s in spans]
        events += _ops(spans, times, rows, step)
        arrows = list(_arrows(graph, times, rows, flow))
        flow += len(arrows) // 2
        events += arrows
        events += _experts(sampled, spans, times, sample, graph.primary)
        events += _depth(graph, times)
        offset = max(finish for _, finish in times)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": meta or {}}


def _us(nanoseconds: float) -> float:
    return nanoseconds / 1e3


def _names(rows: dict[str, int], title: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": title}}
    for resource, tid in rows.items():
        yield {"ph": "M", "pid": _PID, "tid": tid, "name": "thread_name", "args": {"name": resource}}
        yield {"ph": "M", "pid": _PID, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _ops(spans: Sequence[Span], times: Sequence[tuple[int, int]], rows: dict[str, int], step: int) -> Iterator[Event]:
    for span, (start, finish) in zip(spans, times, strict=True):
        op = span.op
        name = op.name if op.layer is None else f"{op.name} L{op.layer}"
        args: dict[str, Any] = {"step": step, "cost": op.cost}
        if op.layer is not None:
            args["layer"] = op.layer
        yield {
            "ph": "X", "pid": _PID, "tid": rows[op.resource], "name": name, "cat": op.mechanism,
            "ts": _us(start), "dur": _us(finish - start), "args": args,
        }  # fmt: skip


def _arrows(graph: StepGraph, times: Sequence[tuple[int, int]], rows: dict[str, int], first: int) -> Iterator[Event]:
    """An arrow for every edge between rows. It leaves from inside its op: its end may belong to the next op."""
    flow = first
    for index, op in enumerate(graph.ops):
        for before in op.after:
            source = graph.ops[before]
            if source.resource == op.resource:
                continue
            start, finish = times[before]
            base = {"pid": _PID, "cat": "wait", "name": f"{source.name} -> {op.name}", "id": flow}
            yield base | {"ph": "s", "tid": rows[source.resource], "ts": _us((start + finish) // 2)}
            yield base | {"ph": "f", "bp": "e", "tid": rows[op.resource], "ts": _us(times[index][0])}
            flow += 1


def _experts(
    sampled: Sampled, spans: Sequence[Span], times: Sequence[tuple[int, int]], sample: int, primary: str
) -> Iterator[Event]:
    """Experts of each layer, from the start of its hot experts on the primary device."""
    seen: set[int] = set()
    for span, (start, _) in zip(spans, times, strict=True):
        op = span.op
        if op.cost != "experts" or op.resource != primary or op.layer is None or op.layer in seen:
            continue
        seen.add(op.layer)
        counts = {name: float(getattr(sampled.experts, name)[op.layer, sample]) for name in ("hot", "cold")}
        yield {"ph": "C", "pid": _PID, "name": "experts", "ts": _us(start), "args": counts}


def _depth(graph: StepGraph, times: Sequence[tuple[int, int]]) -> Iterator[Event]:
    """Per resource: ops handed over by other resources (all they wait for is done) and not finished yet."""
    for resource in graph.resources:
        changes: dict[int, int] = {}
        for op, (_, finish) in zip(graph.ops, times, strict=True):
            handed = op.resource == resource and any(graph.ops[before].resource != resource for before in op.after)
            if handed:
                ready = max(times[before][1] for before in op.after)
                changes[ready] = changes.get(ready, 0) + 1
                changes[finish] = changes.get(finish, 0) - 1
        depth = 0
        for at in sorted(changes):
            depth += changes[at]
            yield {"ph": "C", "pid": _PID, "name": f"queue of {resource}", "ts": _us(at), "args": {"ops": depth}}
