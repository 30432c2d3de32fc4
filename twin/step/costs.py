"""How long every op of a step takes: physics with calibrated coefficients.

reads:        bytes / achieved bandwidth, on top of a floor a call
experts:      floor + unique experts x bytes an expert / bandwidth   (19.6 us + U x 18.8 MB / 6.56 TB/s holds from 1
to 64 tokens
              within 3 % on GB300); a kernel that does not deduplicate pays per route
host:         cold experts x bytes / (link or host bandwidth x its achieved share), after the hot ones
sidecar:      hop + call + cold experts x bytes / its bandwidth + rows, beside the hot experts
collective:   latency + inverse bandwidth x bytes, per algorithm with switch points
context:      one read of a stream's KV for all its rows, and index work per row and context token
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twin.lane.lane import Lane
from twin.routing.batch import ExpertDraw
from twin.step.batch import Batch
from twin.step.builders import collective_chunks
from twin.step.coefficients import FloatOrArray, Values

Array = npt.NDArray[np.float64]


def step_durations(
    lane: Lane, values: Values, batch: Batch, experts: ExpertDraw, busiest: Array | None, samples: int,
    *, in_place: bool = False,
) -> dict[str, Array]:  # fmt: skip
    """Durations in seconds by cost name, `(samples,)` or `(layers, samples)`.

    `busiest` are the experts of the busiest expert-parallel rank, `(layers, samples)`, needed when experts are dealt to
    ranks whole. With `in_place` the durations of experts take the memory of the draws.
    """
    checkpoint, engine = lane.checkpoint, lane.engine
    layers, ranks = checkpoint.layers.value, lane.ranks
    tokens = engine.bucket(round(batch.tokens))
    bandwidth = values["primary.read_bandwidth"]
    costs: dict[str, FloatOrArray] = {}

    launches = engine.launches_per_step.value
    beside = np.minimum(values["launches_beside_sidecar"], launches) if lane.placement.cold_on == "sidecar" else 0.0
    costs["launch"] = (launches - beside) / layers * values["launch_time"]
    costs["launch_beside"] = beside / layers * values["launch_time"]
    kv_read = batch.streams * batch.context_tokens * checkpoint.kv_read_bytes_per_token.value / layers
    costs["attention"] = (
        values["attention_layer_time"]
        + tokens * values["row_time"]
        + kv_read / (bandwidth * ranks)
        + tokens * batch.context_tokens * values["context_time"] / layers
    )
    chunks = collective_chunks(lane)
    costs["dense"] = checkpoint.dense_bytes.value / layers / (bandwidth * ranks) / chunks
    costs["experts"] = _experts(lane, values, batch, experts, busiest, in_place)
    if lane.placement.cold_on == "host":
        costs["host_experts"] = experts.cold * host_expert_s(lane, values)
    if lane.placement.cold_on == "sidecar":
        costs |= _sidecar(lane, values, batch, experts, tokens, in_place)
    if ranks > 1:
        message = tokens * checkpoint.hidden_bytes_per_token
        costs["all_reduce"] = collective_s(lane, values, message / chunks)
    if checkpoint.engram is not None and lane.placement.engram_on != "none":
        costs["engram"] = values["engram_time"]
    costs["head"] = checkpoint.head_bytes.value / (bandwidth * ranks)
    costs["sampling"] = values["sampling_time"]
    costs["host_gap"] = values["host_gap"]
    if batch.k > 0 and checkpoint.draft is not None:
        costs["draft"] = draft_s(lane, values, batch)
    return {name: _shaped(cost, samples) for name, cost in costs.items()}


def _experts(
    lane: Lane, values: Values, batch: Batch, experts: ExpertDraw, busiest: Array | None, in_place: bool
) -> FloatOrArray:
    checkpoint = lane.checkpoint
    if not lane.engine.deduplicates_experts:
        reads: Array = batch.tokens * checkpoint.top_k.value * experts.hot / np.maximum(experts.unique, 1e-9)
    else:
        reads = experts.hot if busiest is None else busiest
    chunks = collective_chunks(lane)
    # What does not depend on the layer first: `reads` is (layers, samples), the rest a number a sample.
    expert_s = checkpoint.expert_bytes.value / lane.tensor_shards / values["primary.read_bandwidth"] / chunks
    return _line(values["moe_floor"] / chunks, expert_s, reads, in_place)


def host_expert_s(lane: Lane, values: Values) -> FloatOrArray:
    """Seconds that one cold expert in host memory takes: its bytes at the achieved share of what they come through."""
    own = lane.placement.cold_computed_by == "host"
    bandwidth = values["host.read_bandwidth"] if own else values["host_link.bandwidth"] * lane.ranks
    return lane.checkpoint.expert_bytes.value / (values["host_read_efficiency"] * bandwidth)


def _sidecar(
    lane: Lane, values: Values, batch: Batch, experts: ExpertDraw, tokens: int, in_place: bool
) -> dict[str, FloatOrArray]:
    message = tokens * lane.checkpoint.hidden_bytes_per_token
    sidecars = lane.placement.sidecars.value if lane.placement.sidecars else float(lane.ranks)
    expert_s = lane.checkpoint.expert_bytes.value / sidecars / values["sidecar.read_bandwidth"]
    call_s = values["sidecar_call_time"] + tokens * values["sidecar_row_time"]
    # Hidden states leave as 8-bit values and come back as 16-bit ones.
    one_way = values["sidecar_link.latency"] / 2
    return {
        "sidecar_out": one_way + message / 2 / values["sidecar_link.bandwidth"],
        "sidecar_experts": _line(call_s, expert_s, experts.cold, in_place),
        "sidecar_back": one_way + message / values["sidecar_link.bandwidth"],
    }


def collective_s(lane: Lane, values: Values, message_bytes: float) -> FloatOrArray:
    """One all-reduce of `message_bytes` a rank in seconds, by the engine's algorithm for that size."""
    laws = lane.engine.collectives
    index = next((i for i, law in enumerate(laws) if message_bytes <= law.up_to_bytes.value), len(laws) - 1)
    return values[f"collective.{index}.latency"] + message_bytes * values[f"collective.{index}.inverse_bandwidth"]


def draft_s(lane: Lane, values: Values, batch: Batch) -> FloatOrArray:
    """The draft of one step: fixed weights and its own experts read once a pass, plus a floor a pass."""
    draft = lane.checkpoint.draft
    assert draft is not None
    passes = 1 if draft.kind == "block" else batch.k
    rows = batch.streams * (batch.k if draft.kind == "block" else 1)
    pool = draft.experts.value
    touched = pool * -np.expm1(rows**0.75 * np.log1p(-draft.top_k.value / pool)) if pool > 0 else 0.0
    read_bytes = draft.fixed_bytes.value + draft.stages.value * touched * draft.expert_bytes.value
    return passes * (values["draft_overhead"] + read_bytes / (values["primary.read_bandwidth"] * lane.ranks))


def _line(start: FloatOrArray, slope: FloatOrArray, x: Array, in_place: bool) -> Array:
    # Zeros that stand for a whole table are one number and cannot be written to.
    line: Array = np.multiply(x, slope, out=x if in_place and x.flags.writeable else None)
    line += start
    return line


def _shaped(cost: FloatOrArray, samples: int) -> Array:
    array = np.asarray(cost, dtype=np.float64)
    if array.ndim and array.shape[-1] == samples:
        return np.ascontiguousarray(array)
    shaped = np.empty((*array.shape[:-1], samples) if array.ndim == 2 else samples)
    shaped[...] = array
    return shaped
