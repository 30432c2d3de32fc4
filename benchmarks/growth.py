"""How time and memory grow with layers, experts, streams, samples, trace length and grid size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import LANES, predictor
from benchmarks.timing import exponent, measure, peak_bytes
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.lane.override import override
from twin.planning.grid import make_design, parse_axis
from twin.planning.predict import CellRequest, make_predictor
from twin.planning.server import make_server, serve
from twin.planning.study import Arrivals, Extent, Option, TrafficShare
from twin.planning.sweep import plan_inputs, run
from twin.workers import InProcess

Make = Callable[[int], Callable[[], Any]]


@dataclass(frozen=True)
class Growth:
    """Processor seconds and peak bytes over sizes, with the exponents of both."""

    name: str
    sizes: list[int]
    seconds: list[float]
    peaks: list[int]

    @property
    def time_exponent(self) -> float:
        """b of seconds = a x size^b."""
        return exponent([float(s) for s in self.sizes], self.seconds)

    @property
    def memory_exponent(self) -> float:
        """b of bytes = a x size^b."""
        return exponent([float(s) for s in self.sizes], [float(p) for p in self.peaks])


def _cell_of(settings: Callable[[int], list[str]]) -> Make:
    def make(size: int) -> Callable[[], Any]:
        roots = catalogue_roots()
        lane = override(load_lane("tp4", roots), settings(size))
        ready = make_predictor(lane, lane.policy.traffic, roots)
        return lambda: ready.cell(CellRequest(3, 4, "token", 2048))

    return make


def _streams(size: int) -> Callable[[], Any]:
    ready = predictor("sidecar", 1000)
    return lambda: ready.cell(CellRequest(3, size, "token", 2048))


def _samples(size: int) -> Callable[[], Any]:
    ready = predictor("sidecar", size)
    return lambda: ready.cell(CellRequest(3, 4, "token", 2048))


def _trace(size: int) -> Callable[[], Any]:
    server = make_server(Option(name="tp4", lane="tp4"), [TrafficShare(name="mixed")], catalogue_roots())
    return lambda: serve(server, Arrivals(kind="poisson", rate=0.5), Extent(requests=size))


def _grid(size: int) -> Callable[[], Any]:
    design = make_design(LANES, [parse_axis("k=0..4"), parse_axis(f"streams=1..{size // 10}")])
    inputs = plan_inputs(design, catalogue_roots(), calibration=None, seed=0, samples=64)

    def call() -> None:
        for _ in run(design, inputs, InProcess()):
            pass

    return call


CASES: dict[str, tuple[Make, list[int]]] = {
    "layers (predict cell)": (
        _cell_of(lambda n: [f"checkpoint.layers={n}", f"checkpoint.moe_layers={n}"]),
        [20, 40, 80, 160],
    ),
    "experts (predict cell)": (
        _cell_of(lambda n: [f"checkpoint.experts={n}", f"placement.hot={n}"]),
        [64, 128, 256, 512],
    ),
    "streams (predict cell)": (_streams, [1, 8, 64, 512]),
    "samples (predict cell)": (_samples, [1000, 4000, 16_000, 64_000]),
    "requests (serving simulation)": (_trace, [100, 200, 400, 800]),
    "cells (sweep, 64 samples)": (_grid, [500, 1000, 2000, 4000]),
}


def growths() -> Iterator[Growth]:
    """Every case, smallest size first."""
    for name, (make, sizes) in CASES.items():
        calls = [make(size) for size in sizes]
        seconds = [measure(call, budget_s=0.5, least=3).cpu_s for call in calls]
        yield Growth(name, sizes, seconds, [peak_bytes(call) for call in calls])
