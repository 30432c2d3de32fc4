"""A checkpoint: the model as it is stored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from twin.lane.sourced import Amount, Bytes, Count, Number, Strict, within


class DraftHead(Strict):
    """The drafter that ships with a checkpoint.

    `kind` block: one parallel pass drafts the whole block; autoregressive: one pass a drafted token (MTP, EAGLE).
    `fixed_bytes` are read once a pass (dense weights, head, Markov tables); experts are read by their own union.
    """

    kind: Literal["block", "autoregressive"]
    stages: Amount
    experts: Amount
    top_k: Amount
    expert_bytes: Bytes
    fixed_bytes: Bytes
    trained_block: Count | None = None

    @model_validator(mode="after")
    def _routes(self) -> DraftHead:
        if self.top_k.value > self.experts.value:
            raise ValueError(f"top_k is {self.top_k.text}, more than the {self.experts.text} experts there are")
        return self


class Engram(Strict):
    """Lookup tables beside the layers: rows are gathered, never read whole."""

    layers: list[int] = Field(max_length=64)
    table_bytes: list[Bytes] = Field(max_length=64)
    row_bytes: Bytes
    rows_per_token: Amount


class Checkpoint(Strict):
    """Layers, experts, and the bytes a step must read.

    `dense_bytes` are the weights every step reads in all layers together (attention, shared experts, routers), without
    the output head (`head_bytes`, read once a step). `kv_bytes_per_token` is what one token of context keeps in memory
    over all layers; `kv_read_bytes_per_token` is what one step reads of it a stream; `attention_window` bounds that
    read
    where attention is windowed or selects (0: no bound). `window_layers` keep the KV of `replay_window` tokens only;
    `active_parameters` are those of the layers a prompt passes in full.
    """

    name: str
    title: str
    layers: Count
    moe_layers: Amount
    hidden: Annotated[Number, within(1, 1e6, whole=True)]
    experts: Annotated[Number, within(1, 1e5, whole=True)]
    top_k: Annotated[Number, within(1, 1e5, whole=True)]
    shared_experts: Amount
    expert_bytes: Bytes
    dense_bytes: Bytes
    head_bytes: Bytes
    kv_bytes_per_token: Annotated[Bytes, within(0, 1e9, above=True)]
    kv_read_bytes_per_token: Bytes
    replay_window: Amount
    window_layers: Amount | None = None
    activation_bytes: Annotated[Number, within(0, 16, above=True)]
    active_parameters: Annotated[Number, within(1, 1e16)]
    total_parameters: Annotated[Number, within(1, 1e16)]
    routing_locality: Annotated[Number, within(0, 1, above=True)] | None = None
    draft: DraftHead | None = None
    engram: Engram | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Checkpoint:
        if self.top_k.value > self.experts.value:
            raise ValueError(f"top_k is {self.top_k.text}, more than the {self.experts.text} experts there are")
        if self.moe_layers.value > self.layers.value:
            raise ValueError(f"moe_layers is {self.moe_layers.text} of {self.layers.text} layers")
        if self.window_layers is not None and self.window_layers.value >= self.layers.value:
            raise ValueError(
                f"window_layers is {self.window_layers.text} of {self.layers.text} layers; one must be full"
            )
        return self

    @property
    def routed_bytes(self) -> float:
        """Bytes of all routed experts of all layers."""
        return self.moe_layers.value * self.experts.value * self.expert_bytes.value

    @property
    def hidden_bytes_per_token(self) -> float:
        """Bytes of one token's hidden state as it crosses a link or enters a collective."""
        return self.hidden.value * self.activation_bytes.value
