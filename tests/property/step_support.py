"""Graphs, durations and shipped lanes for the property tests of the step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from twin.acceptance.traffic import TrafficClass, load_traffic
from twin.fitting.calibration import find_calibration, load_calibration
from twin.lane.catalogue import catalogue_roots, load_lane, names
from twin.lane.lane import Lane
from twin.routing.batch import ExpertDraw, RoutingNoise
from twin.step.batch import Batch
from twin.step.builders import build_step_graph
from twin.step.coefficients import Values, coefficients
from twin.step.costs import step_durations
from twin.step.fast import step_times
from twin.step.graph import MECHANISMS, Op, StepGraph
from twin.step.model import resolve_step, routing_shape

ROOTS = catalogue_roots()
LANES = names("lanes", ROOTS)
#: seconds from 10 ns to 10 ms: no whole numbers, so that a different order of additions would show
SECONDS = st.floats(1e-8, 1e-2, allow_subnormal=False)


@st.composite
def graphs(draw: Any) -> tuple[StepGraph, dict[str, np.ndarray]]:
    """A graph in issue order over a few resources, any op after any earlier ones, and durations of three samples."""
    resources = ["gpu", *(f"r{i}" for i in range(draw(st.integers(0, 4))))]
    costs, layers, samples = draw(st.integers(1, 6)), 3, 3
    durations = {}
    for index in range(costs):
        wide = draw(st.booleans())
        size = samples * (layers if wide else 1)
        flat = draw(st.lists(SECONDS | st.just(0.0), min_size=size, max_size=size))
        durations[f"c{index}"] = np.array(flat).reshape((layers, samples) if wide else (samples,))
    ops = []
    for index in range(draw(st.integers(1, 25))):
        after = draw(st.lists(st.integers(0, index - 1), max_size=4, unique=True)) if index else []
        cost = f"c{draw(st.integers(0, costs - 1))}"
        layer = draw(st.integers(0, layers - 1))
        # An op without a layer cannot take its time from a table by layers.
        layer = layer if durations[cost].ndim == 2 or draw(st.booleans()) else None
        ops.append(
            Op(
                f"op{index}",
                draw(st.sampled_from(resources)) if index else "gpu",
                cost,
                draw(st.sampled_from(MECHANISMS)),
                tuple(after),
                layer,
            )
        )
    return StepGraph(tuple(ops), "gpu"), durations


@lru_cache(maxsize=64)
def traffic(name: str = "mixed") -> TrafficClass:
    """A shipped class."""
    return load_traffic(name, ROOTS)


@lru_cache(maxsize=64)
def shipped(name: str, samples: int = 4) -> tuple[Lane, Values]:
    """A shipped lane and draws of its coefficients from its own calibration, or from the priors."""
    lane = load_lane(name, ROOTS)
    base = coefficients(lane)
    chosen = lane.calibration or name
    found, _ = load_calibration(chosen if find_calibration(chosen, ROOTS) else "priors", name, base, ROOTS)
    normals = np.random.default_rng(7).standard_normal((len(found.parameters), samples))
    return lane, Values(base, found.draw_factors(normals))


def quiet(lane: Lane) -> RoutingNoise:
    """Routing without noise: every layer at its mean, one sample."""
    return RoutingNoise(*(np.zeros((routing_shape(lane).layers, 1)) for _ in range(3)))


def resolve(lane: Lane, values: Values, batch: Batch, noise: RoutingNoise) -> tuple[ExpertDraw, dict[str, np.ndarray]]:
    """Experts and durations of a step under the mixed class."""
    return resolve_step(lane, traffic(), values, batch, noise)


def batch_of(k: int, streams: int = 1, context: float = 2048.0, accepted: float | None = None) -> Batch:
    """A batch that keeps half of its drafts unless told otherwise."""
    return Batch(streams, k, k + 1.0, 1.0 + k / 2.0 if accepted is None else accepted, context)


def step_s(lane: Lane, batch: Batch, values: Values | None = None) -> float:
    """One step in seconds at the mean of everything: catalogue values, no routing noise."""
    values = values or Values(coefficients(lane), {})
    _, durations = resolve(lane, values, batch, quiet(lane))
    return float(step_times(build_step_graph(lane, batch.k), durations)[0])


__all__ = [
    "LANES",
    "ROOTS",
    "SECONDS",
    "ExpertDraw",
    "batch_of",
    "graphs",
    "quiet",
    "resolve",
    "shipped",
    "step_durations",
    "step_s",
    "traffic",
]
