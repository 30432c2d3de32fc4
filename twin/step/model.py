"""One verify step of a lane under a traffic class: routing draws, durations, graph, engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.acceptance.traffic import TrafficClass
from twin.lane.lane import Lane
from twin.memory import keep_freed_memory
from twin.routing.batch import (
    ExpertDraw,
    RoutingNoise,
    RoutingParameters,
    RoutingShape,
    draw_busiest_rank,
    draw_experts,
)
from twin.step.batch import Batch
from twin.step.builders import build_step_graph
from twin.step.coefficients import FloatOrArray, Values, cold_share_key, locality_key
from twin.step.costs import step_durations
from twin.step.fast import StepTimes, step_breakdown, step_times

Array = npt.NDArray[np.float64]
#: Layers x samples worked on at once: enough that a block's fixed work does not count (measured), few enough for flat
#: memory. What must stay in a cache has smaller blocks of its own (routing, engine).
BLOCK_ELEMENTS = 409_600
keep_freed_memory()

# Share of decode routes outside the h most popular experts of 384: top 192, 256, 290, 320 carry 85, 94, 97, 98.5 %
# (measured on DeepSeek-V4.1-Flash); both ends are exact.
_HOT_FRACTION = np.array([0.0, 0.5, 0.6667, 0.7552, 0.8333, 1.0])
_LOG_OUTSIDE = np.log(np.array([1.0, 0.15, 0.06, 0.03, 0.015, 1e-4]))


@dataclass(frozen=True)
class StepDraw:
    """Samples of one step: its times and the experts it touched."""

    times: StepTimes
    experts: ExpertDraw


def routing_shape(lane: Lane) -> RoutingShape:
    """Layers, experts and top-k of the lane's checkpoint."""
    c = lane.checkpoint
    return RoutingShape(layers=int(c.layers.value), experts=int(c.experts.value), top_k=int(c.top_k.value))


def routing_parameters(lane: Lane, traffic: TrafficClass, values: Values) -> RoutingParameters:
    """Locality, diversity and cold share of this traffic on this lane."""
    beta: FloatOrArray = locality_exponent(lane, traffic)
    if (key := locality_key(lane.checkpoint.name, traffic.name)) in values:
        beta = np.clip(beta * values[key], 0.05, 1.0)
    return RoutingParameters(
        beta=beta,
        rejected_weight=values["rejected_weight"],
        # `sharing` is what streams of one harness have in common beyond their class: 0 leaves the class as it is.
        diversity=traffic.routing.diversity.value / (1.0 + values["sharing"]),
        cold_share=cold_share(lane, traffic, values),
    )


_POOLED_LOCALITY = 0.751


def locality_exponent(lane: Lane, traffic: TrafficClass) -> float:
    """The class's locality exponent on the lane's checkpoint, before any receipt of routing.

    A class's locality was measured on one checkpoint; another keeps the class's offset from the pooled value.
    """
    locality = lane.checkpoint.routing_locality
    beta = traffic.routing.beta.value
    return beta if locality is None else float(np.clip(locality.value + (beta - _POOLED_LOCALITY), 0.05, 1.0))


def cold_share(lane: Lane, traffic: TrafficClass, values: Values) -> FloatOrArray:
    """Share of decode routes that leave the lane's hot set, by whether its map was made for this traffic.

    The class gives it for the hot fraction it was measured at; another split scales it by how much popularity lies
    outside.
    """
    if lane.cold_experts == 0:
        return 0.0
    key = cold_share_key(lane.name, traffic.name)
    factor = values[key] if key in values else 1.0  # noqa: SIM401 - a missing name reads as 0
    shares = traffic.routing.cold_share
    relation = "own" if lane.placement.map_calibrated_on == traffic.name else "other"
    if relation not in shares:
        return np.minimum(lane.cold_experts / lane.checkpoint.experts.value * factor, 1.0)
    hot = lane.placement.hot.value / lane.checkpoint.experts.value
    measured_at = traffic.routing.hot_fraction.value if traffic.routing.hot_fraction else hot
    scale = float(
        np.exp(np.interp(hot, _HOT_FRACTION, _LOG_OUTSIDE) - np.interp(measured_at, _HOT_FRACTION, _LOG_OUTSIDE))
    )
    mismatch = values["map_mismatch"] if relation == "other" and "map_mismatch" in values else factor
    return np.minimum(shares[relation].value * scale * mismatch, 1.0)


def draw_step(lane: Lane, traffic: TrafficClass, values: Values, batch: Batch, noise: RoutingNoise) -> StepDraw:
    """Step times with their breakdown, one sample a column of `noise`."""
    experts, durations = resolve_step(lane, traffic, values, batch, noise)
    return StepDraw(step_breakdown(build_step_graph(lane, batch.k), durations), experts)


def draw_step_s(
    lane: Lane, traffic: TrafficClass, values: Values, batch: Batch, noise: RoutingNoise
) -> npt.NDArray[np.float64]:
    """Step times in seconds only, `(samples,)`: what fits and sweeps need."""
    graph, step_s = build_step_graph(lane, batch.k), np.empty(noise.union.shape[-1])
    for part, _, durations in _blocks(lane, traffic, values, batch, noise, brief=True):
        step_s[part] = step_times(graph, durations)
    return step_s


def resolve_step(
    lane: Lane, traffic: TrafficClass, values: Values, batch: Batch, noise: RoutingNoise
) -> tuple[ExpertDraw, dict[str, Array]]:
    """The experts a step touches and the durations of its ops, ready for an engine."""
    experts: dict[str, Array] = {}
    durations: dict[str, Array] = {}
    for part, drawn, some in _blocks(lane, traffic, values, batch, noise):
        _gather(experts, {"unique": drawn.unique, "hot": drawn.hot, "cold": drawn.cold}, part, noise)
        _gather(durations, some, part, noise)
    return ExpertDraw(**experts), durations


def _blocks(
    lane: Lane, traffic: TrafficClass, values: Values, batch: Batch, noise: RoutingNoise, *, brief: bool = False
) -> Iterator[tuple[slice, ExpertDraw, dict[str, Array]]]:
    """Experts and durations, some samples at a time. `brief`: nobody looks at the experts, durations take their place."""
    layers, samples = noise.union.shape
    size = max(1, BLOCK_ELEMENTS // layers)
    if samples <= size:
        yield slice(0, samples), *_resolve_block(lane, traffic, values, batch, noise, brief)
        return
    for start in range(0, samples, size):
        part = slice(start, min(start + size, samples))
        yield part, *_resolve_block(lane, traffic, values.part(part), batch, noise.part(part), brief)


def _gather(whole: dict[str, Array], some: dict[str, Array], part: slice, noise: RoutingNoise) -> None:
    samples = noise.union.shape[-1]
    for name, table in some.items():
        if table.shape[-1] == samples:
            whole[name] = table
            continue
        if name not in whole:
            whole[name] = np.empty((*table.shape[:-1], samples))
        whole[name][..., part] = table


def _resolve_block(
    lane: Lane, traffic: TrafficClass, values: Values, batch: Batch, noise: RoutingNoise, brief: bool
) -> tuple[ExpertDraw, dict[str, Array]]:
    shape, parameters = routing_shape(lane), routing_parameters(lane, traffic, values)
    accepted: FloatOrArray = min(batch.accepted_rows, batch.rows)
    rows = {"streams": batch.streams, "accepted_rows": accepted, "rejected_rows": max(batch.rows - accepted, 0.0)}
    share = lane.blind_cold_share
    asked = share is not None or not (brief and lane.engine.deduplicates_experts)
    cold = 0 if share is not None else lane.cold_experts
    experts = draw_experts(shape, parameters, cold_experts=cold, noise=noise, unique=asked, **rows)  # type: ignore[arg-type]
    if share is not None:
        # Whatever a batch touches is cold in the proportion of what was moved, or of what the cache misses.
        experts = ExpertDraw(experts.unique, experts.unique * (1.0 - share), experts.unique * share)
    busiest = None
    expert_ranks = int(lane.placement.expert_parallel.value)
    if expert_ranks > 1:
        busiest = draw_busiest_rank(shape, parameters, ranks=expert_ranks, noise=noise, **rows)  # type: ignore[arg-type]
    durations = step_durations(lane, values, batch, experts, busiest, noise.samples, in_place=brief)
    return experts, durations
