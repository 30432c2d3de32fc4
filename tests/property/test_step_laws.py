"""What a step must do when the box or the request changes, on shipped lanes and on lanes nobody built."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from step_support import LANES, ROOTS, batch_of, quiet, resolve, shipped, step_s, traffic

from twin.acceptance.model import resolve_acceptance
from twin.errors import TwinError
from twin.fitting.calibration import prior_calibration
from twin.lane.catalogue import load_lane
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.planning.predict import CellRequest, Predictor
from twin.routing.batch import RoutingNoise
from twin.step.batch import Batch
from twin.step.builders import build_step_graph
from twin.step.coefficients import Values, coefficients
from twin.step.fast import step_breakdown, step_times
from twin.step.graph import MECHANISMS, StepGraph
from twin.step.model import draw_step_s, routing_shape

some = settings(max_examples=25)
every_lane = pytest.mark.parametrize("name", LANES)
batches = st.builds(
    batch_of, st.integers(0, 9), st.sampled_from([1, 2, 5, 16]), st.sampled_from([1.0, 2048.0, 65536.0])
)


# --- the breakdown is the step ----------------------------------------------------------------------------------------


@some
@given(strategies.lanes(), batches)
def test_the_breakdown_adds_up_to_the_step(lane: Lane, batch: Batch) -> None:
    noise = RoutingNoise.draw(1, routing_shape(lane).layers, 20)
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch, noise)
    times = step_breakdown(build_step_graph(lane, batch.k), durations)
    assert sum(times.mechanism_s[name] for name in MECHANISMS) == approx(times.step_s, rel=1e-12)
    assert (times.step_s > 0).all()
    if not lane.cold_experts:
        assert not times.mechanism_s["sidecar_exposed"].any()
    if lane.ranks == 1:
        assert not times.mechanism_s["all_reduce_exposed"].any()


# --- one rank stands for all ------------------------------------------------------------------------------------------


@some
@given(strategies.lanes(ranks=(2, 4)), batches)
def test_all_ranks_take_the_time_of_one(lane: Lane, batch: Batch) -> None:
    noise = RoutingNoise.draw(2, routing_shape(lane).layers, 5)
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch, noise)
    one, every = (build_step_graph(lane, batch.k, all_ranks=flag) for flag in (False, True))
    assert np.array_equal(step_times(one, durations), step_times(every, durations))
    assert len(every.resources) >= len(one.resources) + lane.ranks - 1


@some
@given(strategies.lanes(ranks=(4,)), batches, st.permutations(range(4)), st.integers(0, 2**31))
def test_ranks_may_change_places(lane: Lane, batch: Batch, order: list[int], seed: int) -> None:
    """Every rank has its own speed; which of them is called gpu0 is of no account."""
    noise = RoutingNoise.draw(2, routing_shape(lane).layers, 3)
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch, noise)
    graph = build_step_graph(lane, batch.k, all_ranks=True)
    speeds = 1.0 + np.random.default_rng(seed).random(4)

    def time_of(places: list[int]) -> np.ndarray:
        # op.resource is gpu0 to gpu3 for work of a rank
        ops = tuple(
            replace(op, cost=f"{op.cost}@{op.resource}") if op.resource.startswith("gpu") else op for op in graph.ops
        )
        table = dict(durations)
        for rank in range(4):
            table |= {f"{name}@gpu{rank}": array * speeds[places[rank]] for name, array in durations.items()}
        return step_times(StepGraph(ops, graph.primary), table)

    assert np.array_equal(time_of(list(order)), time_of([0, 1, 2, 3]))


# --- more work takes longer, a faster part never does -----------------------------------------------------------------


def step_or_none(lane: Lane, batch: Batch, *settings_: str) -> float | None:
    try:
        return step_s(override(lane, settings_), batch)
    except TwinError:
        return None


def scaled(lane: Lane, key: str, factor: float) -> str:
    node: object = lane
    for part in key.split("."):
        node = (
            node[part] if isinstance(node, dict) else node[int(part)] if isinstance(node, list) else getattr(node, part)
        )
    unit = {
        "bandwidth": " B/s",
        "bytes": " B",
        "time": " s",
        "latency": " s",
        "floor": " s",
        "gap": " s",
        "overhead": " s",
        "token": " B",
    }
    last = key.rsplit("_", 1)[-1].rsplit(".", 1)[-1]
    return f"{key}={node.value * factor!r}{unit[last]}"


SLOWER = (
    "checkpoint.expert_bytes",
    "checkpoint.dense_bytes",
    "checkpoint.head_bytes",
    "checkpoint.kv_read_bytes_per_token",
    "checkpoint.draft.fixed_bytes",
    "checkpoint.draft.expert_bytes",
    "engine.launch_time",
    "engine.attention_layer_time",
    "engine.row_time",
    "engine.context_time",
    "engine.moe_floor",
    "engine.host_gap",
    "engine.sampling_time",
    "engine.draft_overhead",
    "engine.sidecar_call_time",
    "engine.sidecar_row_time",
    "engine.engram_time",
    "links.sidecar.latency",
    "engine.collectives.0.latency",
)
FASTER = (
    "devices.primary.read_bandwidth",
    "devices.sidecar.read_bandwidth",
    "links.sidecar.bandwidth",
    "links.host.bandwidth",
)


@settings(max_examples=50)
@given(strategies.lanes(), batches, st.sampled_from(SLOWER + FASTER), st.floats(1.01, 3.0))
def test_bytes_and_latency_cost_and_bandwidth_pays(lane: Lane, batch: Batch, key: str, factor: float) -> None:
    try:
        change = scaled(lane, key, factor)
    except AttributeError:  # the lane has no such part
        return
    before, after = step_s(lane, batch), step_or_none(lane, batch, change)
    if after is None:
        return
    if key in FASTER:
        assert after <= before * (1 + 1e-12)
    else:
        assert after >= before * (1 - 1e-12)


@pytest.mark.parametrize(
    "key", ["checkpoint.expert_bytes", "checkpoint.dense_bytes", "engine.launch_time", "engine.row_time"]
)
@every_lane
def test_what_every_lane_pays_for_is_felt(name: str, key: str) -> None:
    lane, batch = load_lane(name, ROOTS), batch_of(1, 2)
    if key == "engine.launch_time" and lane.engine.launches_per_step.value == 0:
        return
    assert step_s(override(lane, [scaled(lane, key, 1.5)]), batch) > step_s(lane, batch)


def draft_lengths(lane: Lane) -> range:
    return range(0, 10) if lane.checkpoint.draft is not None else range(0, 1)


@every_lane
def test_more_tokens_take_longer(name: str) -> None:
    """Up the block length, up the streams. A collective that changes its algorithm may get cheaper at the switch."""
    lane = load_lane(name, ROOTS)
    if len(lane.engine.collectives) > 1:
        first = lane.engine.collectives[:1]
        engine = lane.engine.model_copy(update={"collectives": first})
        lane = lane.model_copy(update={"engine": engine})
    for streams in (1, 4):
        steps = [step_s(lane, batch_of(k, streams, accepted=1.0)) for k in draft_lengths(lane)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(steps))
    steps = [step_s(lane, batch_of(draft_lengths(lane)[-1], streams)) for streams in (1, 2, 3, 5, 9, 17, 33, 70)]
    assert all(a < b for a, b in pairwise(steps))
    steps = [step_s(lane, batch_of(0, 4, context)) for context in (1.0, 1e3, 1e5, 1e6)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(steps))


@some
@given(strategies.lanes(), batches, st.floats(0.1, 10.0))
def test_a_step_scales_with_its_durations(lane: Lane, batch: Batch, factor: float) -> None:
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch, quiet(lane))
    graph = build_step_graph(lane, batch.k)
    larger = {name: array * factor for name, array in durations.items()}
    assert step_times(graph, larger) == approx(factor * step_times(graph, durations), rel=1e-12)


# --- limits -----------------------------------------------------------------------------------------------------------


@every_lane
def test_plain_decoding_has_no_draft(name: str) -> None:
    lane, values = shipped(name)
    noise = RoutingNoise.draw(3, routing_shape(lane).layers, 4)
    experts, durations = resolve(lane, values, batch_of(0), noise)
    graph = build_step_graph(lane, 0)
    assert "draft" not in durations and all(op.mechanism != "draft" for op in graph.ops)
    assert not step_breakdown(graph, durations).mechanism_s["draft"].any()
    assert experts.unique == approx(lane.checkpoint.top_k.value)


def test_draft_is_paid_with_the_first_drafted_token() -> None:
    lane = load_lane("sidecar", ROOTS)
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch_of(1), quiet(lane))
    assert step_breakdown(build_step_graph(lane, 1), durations).mechanism_s["draft"][0] > 0


def free_sidecar(lane: Lane) -> Lane:
    settings_ = [
        "links.sidecar.latency=0 s",
        "links.sidecar.bandwidth=1e18 B/s",
        "devices.sidecar.read_bandwidth=1e18 B/s",
        "engine.sidecar_call_time=0 s",
        "engine.sidecar_row_time=0 s",
    ]
    return override(lane, settings_)


@given(batches)
def test_a_free_sidecar_is_never_waited_for(batch: Batch) -> None:
    lane = free_sidecar(load_lane("sidecar", ROOTS))
    _, durations = resolve(lane, Values(coefficients(lane), {}), batch, quiet(lane))
    with_it = step_breakdown(build_step_graph(lane, batch.k), durations)
    assert with_it.mechanism_s["sidecar_exposed"] == approx(0.0, abs=1e-9)
    # The same work without the hop: the kernels beside it are launched all the same.
    local = {name: array for name, array in durations.items() if not name.startswith("sidecar_")}
    local["launch"] = durations["launch"] + durations["launch_beside"]
    everything_hot = override(lane, ["placement.hot=384", "placement.cold_on=none"])
    assert with_it.step_s == approx(step_times(build_step_graph(everything_hot, batch.k), local), rel=1e-9)


@given(st.builds(batch_of, st.integers(0, 9), st.sampled_from([1, 2, 4])))
def test_a_free_sidecar_with_no_cold_route_is_a_box_that_holds_all(batch: Batch) -> None:
    # A batch that touches more experts than are hot has cold ones whatever the share says: up to 40 rows it does not.
    lane = free_sidecar(load_lane("sidecar", ROOTS))
    noise = RoutingNoise(*(np.zeros((40, 1)) for _ in range(3)))
    never = traffic().model_copy(update={"routing": traffic().routing.model_copy(update={"cold_share": zero_shares()})})
    hot = override(lane, ["placement.hot=384", "placement.cold_on=none"])
    # All 384 fit nowhere on one card, which the model of a step does not ask.
    one, other = (draw_step_s(box, never, Values(coefficients(box), {}), batch, noise) for box in (lane, hot))
    assert one == approx(other, rel=1e-9)


def zero_shares() -> dict[str, object]:
    return {name: share.model_copy(update={"value": 0.0}) for name, share in traffic().routing.cold_share.items()}


# --- a prediction keeps its own arithmetic ----------------------------------------------------------------------------


@settings(max_examples=20)
@given(strategies.lanes(), st.integers(0, 9), st.sampled_from([1, 7]), st.sampled_from(["token", "block", "greedy"]))
def test_cells_of_any_lane_hold_together(lane: Lane, k: int, streams: int, rule: str) -> None:
    k = k if lane.checkpoint.draft is not None else 0
    calibration = prior_calibration(lane.name, coefficients(lane))
    cell = Predictor(lane, traffic(), calibration, samples=100).cell(CellRequest(k, streams, rule, 2048))
    for interval in (cell.tokens_per_step, cell.step_ms, cell.tok_s_per_stream, cell.ttft_ms, cell.prefill_tok_s):
        assert interval.p05 <= interval.p50 <= interval.p95
        assert interval.mean > 0
    assert cell.tokens_per_step.p05 >= 1.0 and cell.tokens_per_step.p95 <= k + 1
    assert sum(cell.breakdown_ms.values()) == approx(cell.step_ms.mean, rel=1e-9)
    assert cell.tok_s_aggregate.mean == approx(streams * cell.tok_s_per_stream.mean)
    assert cell.cold_experts_per_layer.mean <= cell.unique_experts_per_layer.mean


@given(
    st.integers(0, 64),
    st.sampled_from(["token", "block", "greedy"]),
    st.sampled_from(["mixed", "prose", "codegen-padded"]),
)
def test_a_step_keeps_one_token_to_all_of_them(k: int, rule: str, name: str) -> None:
    accepted = resolve_acceptance(traffic(name), k, rule, trained_block=5)
    assert 1.0 <= accepted.tokens_per_step <= k + 1
    drawn = accepted.draw_mean(np.random.default_rng(k).standard_normal((2, 200)), streams=2, steps=10)
    assert (drawn >= 1.0).all() and (drawn <= k + 1).all()


# --- limits -----------------------------------------------------------------------------------------------------------


@some
@given(strategies.lanes(ranks=(1,), cold_on=("none",)), batches)
def test_one_rank_is_a_box_without_a_peer_link(lane: Lane, batch: Batch) -> None:
    alone = lane.model_copy(update={"links": {name: link for name, link in lane.links.items() if name != "peer"}})
    noise = RoutingNoise.draw(1, routing_shape(lane).layers, 20)
    one, other = (draw_step_s(box, traffic(), Values(coefficients(box), {}), batch, noise) for box in (lane, alone))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("streams", [1, 8, 64])
@every_lane
def test_no_lane_is_faster_than_its_memory(name: str, streams: int) -> None:
    # Every resident expert that is touched is read once; nothing else is counted, so this is the most a lane can do.
    lane, _ = shipped(name)
    k = 5 if lane.checkpoint.draft is not None else 0
    calibration = prior_calibration(lane.name, coefficients(lane))
    cell = Predictor(lane, traffic(), calibration, samples=100).cell(CellRequest(k, streams, "token", 2048))
    shape = lane.checkpoint
    resident = cell.unique_experts_per_layer.mean - cell.cold_experts_per_layer.mean
    read_bytes = resident * shape.moe_layers.value * shape.expert_bytes.value
    least_s = read_bytes / (lane.ranks * lane.devices["primary"].read_bandwidth.value)
    assert cell.step_ms.mean / 1e3 > least_s
    assert cell.tok_s_aggregate.p50 * least_s < streams * (k + 1)
