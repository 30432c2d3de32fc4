"""The reference engine: SimPy processes on the step graph. It is the truth, and it gives the timeline.

Each resource is a process that serves its ops in issue order; an op starts when the ops before it on its resource and
its predecessors have finished. One sample at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from twin.step.graph import Durations, Op, StepGraph, duration_of


@dataclass(frozen=True, slots=True)
class Span:
    """One op on the timeline: seconds from the start of the step."""

    op: Op
    start_s: float
    finish_s: float


def simulate_step(graph: StepGraph, durations: Durations, sample: int = 0) -> tuple[float, tuple[Span, ...]]:
    """Run one sample; returns the step time in seconds and the spans in issue order."""
    import simpy

    env = simpy.Environment()
    done = [env.event() for _ in graph.ops]
    spans: list[Span | None] = [None] * len(graph.ops)

    def serve(indices: list[int]) -> Generator[Any, Any, None]:
        for index in indices:
            op = graph.ops[index]
            for before in op.after:
                if not done[before].processed:
                    yield done[before]
            start = env.now
            yield env.timeout(float(duration_of(op, durations)[sample]))
            spans[index] = Span(op, start, env.now)
            done[index].succeed()

    for resource in graph.resources:
        env.process(serve([i for i, op in enumerate(graph.ops) if op.resource == resource]))
    env.run()
    finished = tuple(span for span in spans if span is not None)
    return max(span.finish_s for span in finished), finished
