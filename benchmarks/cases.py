"""What is measured of the core: a name, what is called, and how many steps or cells one call computes."""

from __future__ import annotations

import os

# One core is meant; NumPy reads these when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from twin.lane.catalogue import catalogue_roots, load_lane
from twin.planning.grid import make_design, parse_axis
from twin.planning.predict import CellRequest, Predictor, make_predictor
from twin.planning.sweep import chunks, evaluate, plan_inputs
from twin.step.builders import build_step_graph
from twin.step.fast import step_times
from twin.step.model import draw_step_s
from twin.step.reference import simulate_step

LANES = ("sidecar", "tp4")
STEPS = 20_000


@dataclass(frozen=True)
class Case:
    """`call` computes `amount` of `unit`; the aim is a rate (`at_least`, a second) or a time of the call (`at_most_s`)."""

    name: str
    call: Callable[[], Any]
    amount: int
    unit: str
    at_least: float | None = None
    at_most_s: float | None = None


def predictor(lane: str, samples: int) -> Predictor:
    """The lane as its policy runs it."""
    roots = catalogue_roots()
    found = load_lane(lane, roots)
    return make_predictor(found, found.policy.traffic, roots, samples=samples)


def core() -> Iterator[Case]:
    """The targets of one core."""
    request = CellRequest(5, 4, "token", 2048)
    for lane in LANES:
        many = predictor(lane, STEPS)
        _, durations = many.resolve(request)
        graph = build_step_graph(many.lane, request.k)
        layers = int(many.lane.checkpoint.layers.value)
        yield Case(
            f"reference engine, {lane}, {layers} layers, {len(graph.ops)} ops",
            lambda g=graph, d=durations: simulate_step(g, d),
            1,
            "steps",
            500.0,
        )
        yield Case(
            f"fast engine, resolved durations, {lane}",
            lambda g=graph, d=durations: step_times(g, d),
            STEPS,
            "steps",
            3e6,
        )
        yield Case(
            f"fast engine with sampling, {lane}",
            lambda p=many: draw_step_s(p.lane, p.traffic, p.values, p.batch(request), p._noise), STEPS, "steps", 1e6,
        )  # fmt: skip
    for lane in LANES:
        warm = predictor(lane, 1000)
        yield Case(f"predict cell, 1,000 samples, {lane}", lambda p=warm: p.cell(request), 1, "cells", at_most_s=0.020)
    design = make_design(LANES, [parse_axis(a) for a in ("k=0..7", "streams=1..16", "traffic=prose,code")])
    for samples in (64, 128, 256):
        work = next(chunks(design, plan_inputs(design, catalogue_roots(), calibration=None, seed=0, samples=samples)))
        yield Case(
            f"sweep, one chunk, {samples} samples a cell",
            lambda w=work: evaluate(w),
            len(work.points),
            "cells",
            at_least=1e5 / 120,
        )
