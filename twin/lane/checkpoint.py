"""A checkpoint: the model as it is stored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from twin.lane.sourced import Bytes, Number, Strict


class DraftHead(Strict):
    """The drafter that ships with a checkpoint.

    `kind` block: one parallel pass drafts the whole block; autoregressive: one pass a drafted token (MTP, EAGLE).
    `fixed_bytes` are read once a pass (dense weights, head, Markov tables); experts are read by their own union.
    """

    kind: Literal["block", "autoregressive"]
    stages: Number
    experts: Number
    top_k: Number
    expert_bytes: Bytes
    fixed_bytes: Bytes
    trained_block: Number | None = None


class Engram(Strict):
    """Lookup tables beside the layers: rows are gathered, never read whole."""

    layers: list[int] = Field(max_length=64)
    table_bytes: list[Bytes] = Field(max_length=64)
    row_bytes: Bytes
    rows_per_token: Number


class Checkpoint(Strict):
    """Layers, experts, and the bytes a step must read.

    `dense_bytes` are the weights every step reads in all layers together (attention, shared experts, routers), without
    the output head (`head_bytes`, read once a step). `kv_bytes_per_token` is what one token of context keeps in memory
    over all layers; `kv_read_bytes_per_token` is what one step reads of it a stream; `attention_window` bounds that read
    where attention is windowed or selects (0: no bound).
    """

    name: str
    title: str
    layers: Number
    moe_layers: Number
    hidden: Number
    experts: Number
    top_k: Number
    shared_experts: Number
    expert_bytes: Bytes
    dense_bytes: Bytes
    head_bytes: Bytes
    kv_bytes_per_token: Bytes
    kv_read_bytes_per_token: Bytes
    replay_window: Number
    activation_bytes: Number
    active_parameters: Number
    total_parameters: Number
    routing_locality: Number | None = None
    draft: DraftHead | None = None
    engram: Engram | None = None
    notes: str = ""

    @property
    def routed_bytes(self) -> float:
        """Bytes of all routed experts of all layers."""
        return self.moe_layers.value * self.experts.value * self.expert_bytes.value

    @property
    def hidden_bytes_per_token(self) -> float:
        """Bytes of one token's hidden state as it crosses a link or enters a collective."""
        return self.hidden.value * self.activation_bytes.value
