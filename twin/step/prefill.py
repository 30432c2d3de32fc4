"""Prefill and time to first token: chunks of the batched-token cap under compute and memory rooflines.

    chunk = max(2 x active parameters x tokens / (peak x efficiency), bytes / bandwidth)      on the primary devices
            beside layers x max(rows x sidecar row time, cold bytes / its bandwidth)          on a sidecar
            + all-reduce at link bandwidth + tokens x context x index time
    TTFT  = overhead + all chunks                                                            for a request that does
    not queue

A prefix-cache hit recomputes the attention window (`replay_window`), whose state is not kept.
"""

from __future__ import annotations

import math

import numpy as np

from twin.errors import PolicyError
from twin.lane.lane import Lane
from twin.step.coefficients import FloatOrArray, Values


def chunk_s(lane: Lane, values: Values, tokens: float, context_tokens: float) -> FloatOrArray:
    """One prefill chunk of `tokens` on top of `context_tokens` already there, in seconds."""
    checkpoint, ranks = lane.checkpoint, lane.ranks
    layers, experts = checkpoint.layers.value, checkpoint.experts.value
    peak = lane.devices["primary"].compute.value * ranks
    compute = 2.0 * checkpoint.active_parameters.value * tokens / (peak * values["prefill_efficiency"])
    touched = (
        -math.expm1(tokens * math.log1p(-checkpoint.top_k.value / experts)) if checkpoint.top_k.value < experts else 1.0
    )
    expert_bytes = checkpoint.expert_bytes.value * checkpoint.moe_layers.value * touched
    read_bytes = expert_bytes * lane.placement.hot.value + checkpoint.dense_bytes.value
    busy = np.maximum(compute, read_bytes / (values["primary.read_bandwidth"] * ranks))
    if lane.placement.cold_on == "sidecar":
        sidecars = lane.placement.sidecars.value if lane.placement.sidecars else float(ranks)
        cold_read = expert_bytes * lane.cold_experts / sidecars / values["sidecar.read_bandwidth"]
        beside = layers * (values["sidecar_call_time"] + tokens * values["sidecar_row_time"])
        busy = np.maximum(busy, np.maximum(beside, cold_read))
    if lane.placement.cold_on == "host" and lane.cold_experts:
        host_read = (
            expert_bytes * lane.cold_experts / values["host_link.bandwidth"] if "host_link.bandwidth" in values else 0.0
        )
        # The same kernels read host memory and compute: nothing hides one behind the other.
        busy = busy + host_read
    if ranks > 1:
        message = tokens * checkpoint.hidden_bytes_per_token * 2.0 * (ranks - 1) / ranks
        busy = busy + layers * lane.engine.collectives_per_layer.value * message / lane.links["peer"].bandwidth.value
    return busy + tokens * (context_tokens + tokens / 2.0) * values["prefill_context_time"]


def ttft_s(lane: Lane, values: Values, prompt_tokens: int, *, cached_tokens: int = 0) -> FloatOrArray:
    """Seconds to the first token of a lone request. Raises PolicyError when more is cached than there is prompt."""
    if prompt_tokens < 1:
        raise PolicyError(f"a prompt of {prompt_tokens} tokens; expected at least 1.")
    if not 0 <= cached_tokens <= prompt_tokens:
        raise PolicyError(
            f"{cached_tokens} cached tokens of a prompt of {prompt_tokens}; expected 0 to {prompt_tokens}."
        )
    start = 0 if cached_tokens == 0 else max(0, cached_tokens - int(lane.checkpoint.replay_window.value))
    todo, cap = prompt_tokens - start, int(lane.engine.max_batched_tokens.value)
    full, rest = divmod(max(todo, 1), cap)
    total: FloatOrArray = values["prefill_overhead"]
    if full:
        # Chunks differ only in the context before them, and the cost is linear in it: the mean chunk stands for all.
        total = total + full * chunk_s(lane, values, cap, start + (full - 1) * cap / 2.0)
    if rest:
        total = total + chunk_s(lane, values, rest, start + full * cap)
    return total
