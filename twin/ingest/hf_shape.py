"""The shape of a model from its Hugging Face `config.json`: parameters by part, what a token of context keeps.

Driven by keys rather than by model names, because families share them (`hf_attention`, `hf_layers`). Norms and other vectors are left out: together less than 0.1 % of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from twin.errors import IngestError
from twin.ingest.hf_attention import attention, attention_kinds, describe_attention
from twin.ingest.hf_keys import Keys
from twin.ingest.hf_layers import DraftShape, LayerShape, draft_shape, engram_projection, moe_layers, shared_width


@dataclass(frozen=True)
class Shape:
    """A whole model."""

    model_type: str
    hidden: int
    vocabulary: int
    layers: list[LayerShape]
    experts: int
    top_k: int
    shared_experts: int
    expert_parameters: int
    tied: bool
    attention: str
    window: int
    draft: DraftShape | None
    engram_rows: list[int]
    engram_width: int
    engram_layers: list[int]
    engram_rows_per_token: int
    notes: list[str]

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return sum(layer.moe for layer in self.layers)

    @property
    def routed_parameters(self) -> int:
        """All routed experts of all layers."""
        return self.moe_layers * self.experts * self.expert_parameters

    @property
    def dense_parameters(self) -> int:
        """Attention, shared experts, routers, dense layers and Engram projections, without embedding and head."""
        return sum(layer.dense for layer in self.layers)

    @property
    def head_parameters(self) -> int:
        """The output head; an embedding that is tied to it is the same matrix."""
        return self.hidden * self.vocabulary

    @property
    def total_parameters(self) -> int:
        """The language model without draft head and lookup tables, as models are advertised."""
        return self.routed_parameters + self.dense_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Parameters one token is multiplied with: without the embedding, which is a lookup."""
        return self.dense_parameters + self.moe_layers * self.top_k * self.expert_parameters + self.head_parameters


def shape_of(config: dict[str, Any], where: str) -> Shape:
    """Read a config; nested text models (`text_config`) are unwrapped. Raises IngestError naming the key."""
    text = config.get("text_config")
    notes = []
    if isinstance(text, dict):
        # Outer keys that a nested config leaves out still hold (quantisation, dtype).
        config = {k: v for k, v in config.items() if k not in ("text_config", "vision_config", "model_type")} | text
        notes.append("language model only: the vision part is not counted")
    keys = Keys(config, where)
    hidden, count = keys.number("hidden_size", minimum=1), keys.number("num_hidden_layers", minimum=1)
    if count > 4096:
        raise IngestError(f"{where}: num_hidden_layers is {count}; no model has that.")
    experts = keys.number("n_routed_experts", "num_local_experts", "num_experts", default=0)
    moe = moe_layers(keys, count) if experts > 0 else [False] * count
    expert_width = keys.number("moe_intermediate_size", "intermediate_size", default=0) if experts else 0
    if experts and not expert_width:
        raise IngestError(f"{where}: the key moe_intermediate_size (or intermediate_size) is missing.")
    dense_width = keys.number("intermediate_size_mlp", "intermediate_size", default=0)
    shared_wide, shared = shared_width(keys, expert_width)
    kinds = attention_kinds(keys, count)
    engram_layers = keys.numbers("engram_layer_ids")
    layers = []
    for index in range(count):
        own = attention(keys, kinds[index], index)
        layer = LayerShape(
            own.quantised, kv=own.kv, plain=own.plain, single=own.single,
            engram=engram_projection(keys) if index in engram_layers else 0,
        )  # fmt: skip
        if moe[index]:
            gate = hidden if keys.raw.get("shared_expert_intermediate_size") else 0
            router = hidden * experts + gate
            layers.append(replace(layer, shared=3 * hidden * shared_wide, router=router, moe=True))
        else:
            if not dense_width:
                raise IngestError(f"{where}: layer {index} is dense, but intermediate_size is missing.")
            layers.append(replace(layer, dense_ffn=3 * hidden * dense_width))
    expert = 3 * hidden * expert_width
    if keys.raw.get("model_type") == "gpt_oss":
        expert += 2 * expert_width + hidden
    top_k = keys.number("num_experts_per_tok", "experts_per_token", "n_activated_experts") if experts else 0
    if experts and not 1 <= top_k <= experts:
        raise IngestError(f"{where}: num_experts_per_tok is {top_k} of {experts} experts.")
    if not experts:
        # A dense block is one expert that every token is sent to: the same bytes, and the union is always one.
        layers = [replace(layer, dense_ffn=0, moe=True) for layer in layers]
        experts, top_k, expert = 1, 1, 3 * hidden * dense_width
        notes.append("dense model: its feed-forward block is written as one expert of one, which every token uses")
    return Shape(
        model_type=str(config.get("model_type") or "?")[:60],
        hidden=hidden,
        vocabulary=keys.number("vocab_size", minimum=1),
        layers=layers,
        experts=experts,
        top_k=top_k,
        shared_experts=shared,
        expert_parameters=expert,
        tied=config.get("tie_word_embeddings") is True,
        attention=describe_attention(keys, kinds),
        window=keys.number("sliding_window", default=0),
        draft=draft_shape(keys, layers, experts, top_k, shared_wide, expert_width),
        engram_rows=keys.numbers("engram_num_embeddings"),
        engram_width=keys.number("engram_head_dim", default=0),
        engram_layers=engram_layers,
        engram_rows_per_token=keys.number("engram_n_heads", default=0)
        * max(0, keys.number("engram_max_ngram_size", default=1) - 1),
        notes=notes,
    )
