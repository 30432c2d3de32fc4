"""An engine: the software stack, its kernels and their floors, what it fuses and what it overlaps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from twin.lane.sourced import Number, Seconds, SecondsPerByte, Strict, within


class CollectiveLaw(Strict):
    """All-reduce time of one algorithm: latency + inverse_bandwidth x bytes, used up to `up_to_bytes`."""

    algorithm: str
    up_to_bytes: Annotated[Number, within(0, 1e18)]
    latency: Seconds
    inverse_bandwidth: SecondsPerByte


class Engine(Strict):
    """What the software does with a step.

    `launches_per_step` small kernels each keep the device busy for `launch_time`; `moe_floor` is paid by every call
    of the
    expert kernel; `row_time` is the work proportional to verified rows in one layer; `context_time` is the work of
    the attention index for one row and one context token, over all layers; `host_gap` is the host's time between
    steps that the
    device waits for; `launches_beside_sidecar` of the small kernels run between publishing the hidden states and
    waiting
    for the sidecar's result; `collective_chunks` is into how many pieces a layer's all-reduce is cut to overlap with
    compute.
    `sidecar_row_time` is one more row of a verify step's call to the sidecar, `sidecar_bulk_row_time` of a prompt's;
    `tokenise_time` passes before the engine for every prompt token; `long_prefill_tokens` caps one prompt's chunk;
    `bounded_replay`: layers that keep only a window run on each chunk's last window; `plans_ahead`: a step is planned
    while the one before it runs; `stream_handling_time` is the front end's time for one stream's output of one step.
    `host_read_efficiency`: cold experts in host memory stream at this share of the link's bandwidth (or of the host
    memory's, where the host's own cores compute them).
    `token_buckets` are the captured graph sizes in tokens ((k+1) x streams is rounded up to the next one).
    """

    name: str
    title: str
    launch_mode: Literal["eager", "graph", "persistent"]
    launches_per_step: Annotated[Number, within(0, 1e7)]
    launch_time: Seconds
    attention_layer_time: Seconds
    row_time: Seconds
    context_time: Seconds
    moe_floor: Seconds
    deduplicates_experts: bool
    host_gap: Seconds
    sampling_time: Seconds
    draft_overhead: Seconds
    max_batched_tokens: Annotated[Number, within(1, 1e9, whole=True)]
    token_buckets: list[Annotated[int, Field(ge=1, le=2**31)]] = Field(max_length=512)
    collectives_per_layer: Annotated[Number, within(0, 2, whole=True)]
    collectives: list[CollectiveLaw] = Field(default=[], max_length=8)
    collective_chunks: Annotated[Number, within(1, 16, whole=True)]
    sidecar_call_time: Seconds | None = None
    sidecar_row_time: Seconds | None = None
    sidecar_bulk_row_time: Seconds | None = None
    launches_beside_sidecar: Annotated[Number, within(0, 1e7)] | None = None
    host_read_efficiency: Annotated[Number, within(0, 1, above=True)] | None = None
    engram_time: Seconds | None = None
    prefill_efficiency: Annotated[Number, within(0, 1, above=True)]
    prefill_context_time: Seconds
    prefill_overhead: Seconds
    tokenise_time: Seconds | None = None
    long_prefill_tokens: Annotated[Number, within(1, 1e9, whole=True)] | None = None
    bounded_replay: bool = False
    plans_ahead: bool = False
    stream_handling_time: Seconds | None = None
    boot_noise: Annotated[Number, within(0, 1)]
    notes: str = ""

    def bucket(self, tokens: int) -> int:
        """The captured size that serves `tokens` tokens; above the largest, the batch runs at its own size."""
        for size in sorted(self.token_buckets):
            if size >= tokens:
                return size
        return tokens
