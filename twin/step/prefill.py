"""Prefill and time to first token: chunks of the batched-token cap under compute and memory rooflines.

    compute(n) = 2 x active parameters x n / (peak x efficiency)
    chunk(n)   = max(compute, bytes / bandwidth)                                  every expert on the primary devices
               = own + max(hot experts, rows x row time + calls, cold bytes / their bandwidth)        with a sidecar
               = device's share + max(cold rows' products / host peak, cold bytes / host bandwidth)   cores compute cold ones
               + all-reduce at link bandwidth + n x context x index time
    TTFT       = overhead + prompt x tokenise time + all chunks                 for a request that does not queue

With a sidecar the layer goes in turns: what is its own (attention, dense products, routing), then the hot experts
beside the round trip to the sidecar. Only rows with a cold route travel: n (1 - (1 - cold share)^top-k) of them.

Layers that keep only a window of KV (`window_layers`) need a prompt's last `replay_window` tokens and no others; an
engine with `bounded_replay` runs them on those. They are then a cost of the chunk, not of its tokens: at 128 tokens
they touch almost half of the experts. A prefix-cache hit recomputes the same window, whose state is not kept.
"""

from __future__ import annotations

import math

import numpy as np

from twin.acceptance.traffic import TrafficClass
from twin.errors import PolicyError
from twin.lane.lane import Lane
from twin.step.coefficients import FloatOrArray, Values
from twin.step.model import cold_share

#: expert products are at most this share of the compute of a token; attention and routing are never free
_MOST_ROUTED = 0.95


def chunk_s(
    lane: Lane, values: Values, tokens: float, context_tokens: float, traffic: TrafficClass | None = None
) -> FloatOrArray:
    """One prefill chunk of `tokens` on top of `context_tokens` already there, in seconds.

    The class says how many rows go to a sidecar; without one, routes are spread evenly over the experts.
    """
    window = window_layers(lane)
    full = lane.checkpoint.layers.value - window
    total = _layers_s(lane, values, tokens, full, touched_share(lane, tokens), traffic)
    if window:
        last = _last_window(lane, tokens)
        total = total + _layers_s(lane, values, last, window, _window_touched(lane, last), traffic)
    return total + tokens * (context_tokens + tokens / 2.0) * values["prefill_context_time"]


def ttft_s(
    lane: Lane, values: Values, prompt_tokens: int, *, cached_tokens: int = 0, traffic: TrafficClass | None = None
) -> FloatOrArray:
    """Seconds to the first token of a lone request. Raises PolicyError when more is cached than there is prompt."""
    if prompt_tokens < 1:
        raise PolicyError(f"a prompt of {prompt_tokens} tokens; expected at least 1.")
    if not 0 <= cached_tokens <= prompt_tokens:
        raise PolicyError(
            f"{cached_tokens} cached tokens of a prompt of {prompt_tokens}; expected 0 to {prompt_tokens}."
        )
    start = 0 if cached_tokens == 0 else max(0, cached_tokens - int(lane.checkpoint.replay_window.value))
    todo, cap = prompt_tokens - start, largest_chunk(lane)
    full, rest = divmod(max(todo, 1), cap)
    total = frontend_s(values, prompt_tokens)
    if full:
        # Chunks differ only in the context before them, and the cost is linear in it: the mean chunk stands for all.
        total = total + full * chunk_s(lane, values, cap, start + (full - 1) * cap / 2.0, traffic)
    if rest:
        total = total + chunk_s(lane, values, rest, start + full * cap, traffic)
    return total


def frontend_s(values: Values, prompt_tokens: int) -> FloatOrArray:
    """What passes before a prompt reaches the engine: connection, tokenisation, and the first sample on its way back."""
    return values["prefill_overhead"] + prompt_tokens * values["tokenise_time"]


def largest_chunk(lane: Lane) -> int:
    """Prompt tokens of one request that a step takes at most."""
    cap, long = lane.engine.max_batched_tokens, lane.engine.long_prefill_tokens
    return int(cap.value if long is None else min(cap.value, long.value))


def window_layers(lane: Lane) -> float:
    """Layers that a prompt chunk passes with its last window only: 0 when the engine runs them in full."""
    layers = lane.checkpoint.window_layers
    return layers.value if layers is not None and lane.engine.bounded_replay else 0.0


def touched_share(lane: Lane, tokens: float, *, locality: float = 1.0) -> float:
    """Share of a layer's experts that `tokens` prompt tokens touch: 1 - (1 - K / E)^(tokens^locality).

    Independent tokens (locality 1) are an upper bound that differs from the law of consecutive tokens below about
    1,000 of them.
    """
    experts, top_k = lane.checkpoint.experts.value, lane.checkpoint.top_k.value
    return -math.expm1(tokens**locality * math.log1p(-top_k / experts)) if top_k < experts else 1.0


def unshared_share(lane: Lane, tokens: float) -> float:
    """Share of a verify step's weights that a chunk of `tokens` beside it does not read anyway: those of the experts
    that a window misses, in the layers it passes alone."""
    missed = 1.0 - _window_touched(lane, _last_window(lane, tokens))
    return window_layers(lane) / lane.checkpoint.layers.value * missed


def _last_window(lane: Lane, tokens: float) -> float:
    return min(tokens, lane.checkpoint.replay_window.value)


def _window_touched(lane: Lane, tokens: float) -> float:
    """Consecutive tokens of one stream, as in a verify step: their experts overlap by the checkpoint's locality."""
    locality = lane.checkpoint.routing_locality
    return touched_share(lane, tokens, locality=locality.value if locality is not None else 1.0)


def cold_row_share(lane: Lane, traffic: TrafficClass | None, values: Values) -> FloatOrArray:
    """Share of a prompt's rows that travel to a sidecar, because they have at least one route to its experts."""
    cold = _prefill_cold_share(lane, traffic, values) / _sidecars(lane)
    return 1.0 - (1.0 - cold) ** lane.checkpoint.top_k.value


def _prefill_cold_share(lane: Lane, traffic: TrafficClass | None, values: Values) -> FloatOrArray:
    """Share of a prompt's routes that are cold.

    Prompts route unlike decode. A class that was measured gives it under `prefill`, with c of the experts cold;
    another split follows c^power through that point, 0 and 1 (power 1: every expert as popular as another). A class
    without it is taken to route its prompts as it decodes.
    """
    cold = _even_cold_share(lane)
    if traffic is None or cold == 0.0:
        return cold
    measured, hot = traffic.routing.cold_share.get("prefill"), traffic.routing.hot_fraction
    if measured is None:
        return cold_share(lane, traffic, values)
    if hot is None or not 0.0 < hot.value < 1.0 or not 0.0 < measured.value < 1.0:
        return measured.value
    return float(cold ** (math.log(measured.value) / math.log(1.0 - hot.value)))


def _even_cold_share(lane: Lane) -> float:
    """Cold experts over all: the share of cold routes when every expert is as popular as another."""
    return lane.cold_experts / lane.checkpoint.experts.value


def _sidecars(lane: Lane) -> float:
    """Sidecars the cold experts are dealt to."""
    return lane.placement.sidecars.value if lane.placement.sidecars else float(lane.ranks)


def _layers_s(
    lane: Lane, values: Values, tokens: float, layers: float, touched: float, traffic: TrafficClass | None
) -> FloatOrArray:
    """`layers` of the checkpoint's on `tokens` tokens that touch a share `touched` of each layer's experts."""
    checkpoint, ranks = lane.checkpoint, lane.ranks
    share = layers / checkpoint.layers.value
    peak, bandwidth = lane.devices["primary"].compute.value * ranks, values["primary.read_bandwidth"] * ranks
    # The parameters stated as active in prefill are those of the layers a prompt passes in full.
    active = checkpoint.active_parameters.value * layers / (checkpoint.layers.value - window_layers(lane))
    compute = 2.0 * active * tokens / (peak * values["prefill_efficiency"])
    expert_bytes = checkpoint.expert_bytes.value * checkpoint.moe_layers.value * share * touched
    hot_bytes, dense_bytes = expert_bytes * lane.placement.hot.value, checkpoint.dense_bytes.value * share
    routed = checkpoint.total_parameters.value * checkpoint.top_k.value / checkpoint.experts.value * share / active
    routed = min(routed, _MOST_ROUTED)
    if lane.placement.cold_on == "sidecar":
        own = np.maximum((1.0 - routed) * compute, dense_bytes / bandwidth)
        cold = _prefill_cold_share(lane, traffic, values)
        hot = np.maximum(routed * (1.0 - cold) * compute, hot_bytes / bandwidth)
        busy = own + np.maximum(hot, _sidecar_s(lane, values, tokens, layers, expert_bytes, traffic))
    elif lane.placement.cold_computed_by == "host":
        moved = routed * (_even_cold_share(lane) if lane.blind_cold_share is None else lane.blind_cold_share)
        cores = 2.0 * active * moved * tokens / values["host.compute"]
        read = expert_bytes * lane.cold_experts / values["host.read_bandwidth"]
        # Layer by layer the device hands its cold rows over and waits for them.
        own = np.maximum((1.0 - moved) * compute, (hot_bytes + dense_bytes) / bandwidth)
        busy = own + np.maximum(cores, read)
    else:
        busy = np.maximum(compute, (hot_bytes + dense_bytes) / bandwidth)
    from_link = lane.placement.cold_on == "host" and lane.placement.cold_computed_by == "primary"
    if from_link and lane.cold_experts and "host_link.bandwidth" in values:
        # The same kernels read host memory and compute: nothing hides one behind the other.
        busy = busy + expert_bytes * lane.cold_experts / values["host_link.bandwidth"]
    if ranks > 1:
        message = tokens * checkpoint.hidden_bytes_per_token * 2.0 * (ranks - 1) / ranks
        busy = busy + layers * lane.engine.collectives_per_layer.value * message / lane.links["peer"].bandwidth.value
    return busy


def _sidecar_s(
    lane: Lane, values: Values, tokens: float, layers: float, expert_bytes: float, traffic: TrafficClass | None
) -> FloatOrArray:
    """The round trips of `layers` layers, or reading the cold experts, whichever is longer."""
    cold_read = expert_bytes * lane.cold_experts / _sidecars(lane) / values["sidecar.read_bandwidth"]
    row = "sidecar_bulk_row_time" if "sidecar_bulk_row_time" in values else "sidecar_row_time"
    rows = tokens * cold_row_share(lane, traffic, values)
    return np.maximum(layers * (values["sidecar_call_time"] + rows * values[row]), cold_read)
