"""Layers of a `config.json` besides their attention: which have experts, what is shared, and the draft head."""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.errors import IngestError
from twin.ingest.hf_attention import Kv
from twin.ingest.hf_attention import attention as attention_of
from twin.ingest.hf_keys import Keys


@dataclass(frozen=True)
class LayerShape:
    """Parameters of one layer by part; `moe` says whether it has routed experts.

    `plain` are parts of attention kept in the model's dtype, `single` those kept in 32 bits, `engram` the projection of
    looked-up rows onto the residual streams.
    """

    attention: int
    dense_ffn: int = 0
    shared: int = 0
    router: int = 0
    moe: bool = False
    kv: Kv = field(default_factory=Kv)
    plain: int = 0
    single: int = 0
    engram: int = 0

    @property
    def dense(self) -> int:
        """Everything a step reads whatever the router says."""
        beside = self.plain + self.single + self.engram
        return self.attention + self.dense_ffn + self.shared + self.router + beside


@dataclass(frozen=True)
class DraftShape:
    """The draft head of a checkpoint: its own layers, and what each pass reads beside its experts, by how it is stored
    (`fixed` as quantised, `plain` in the model's dtype, `single` in 32 bits).
    """

    kind: str
    stages: int
    experts: int
    top_k: int
    fixed_parameters: int
    trained_block: int | None
    plain_parameters: int = 0
    single_parameters: int = 0


def moe_layers(keys: Keys, count: int) -> list[bool]:
    """Which layers have routed experts, by whichever of the families' keys is there."""
    kinds = keys.words("mlp_layer_types")
    if kinds:
        if len(kinds) < count:
            raise IngestError(f"{keys.where}: mlp_layer_types has {len(kinds)} entries for {count} layers.")
        return [kind != "dense" for kind in kinds[:count]]
    if keys.raw.get("moe_layers") is not None:
        listed = set(keys.numbers("moe_layers"))
        return [index in listed for index in range(count)]
    first, every = keys.number("first_k_dense_replace", default=0), keys.number("moe_layer_freq", default=1) or 1
    step = keys.number("interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1
    dense = set(keys.numbers("mlp_only_layers"))
    return [
        index >= first and index % every == 0 and (index + 1) % step == 0 and index not in dense
        for index in range(count)
    ]


def shared_width(keys: Keys, expert_width: int) -> tuple[int, int]:
    """Width of the shared experts together, and their number."""
    number = keys.number("n_shared_experts", "num_shared_experts", default=0)
    if keys.raw.get("shared_expert_intermediate_size"):
        return keys.number("shared_expert_intermediate_size"), number or 1
    if keys.raw.get("model_type") in ("llama4_text", "llama4"):
        return expert_width, 1
    if keys.raw.get("shared_intermediate_size"):
        return keys.number("shared_intermediate_size"), number or 1
    return number * expert_width, number


def draft_shape(
    keys: Keys, layers: list[LayerShape], experts: int, top_k: int, shared: int, width: int
) -> DraftShape | None:
    """The multi-token-prediction layer, or DeepSeek's block drafter."""
    stages = keys.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0)
    if not stages or keys.raw.get("use_mtp") is False:
        return None
    hidden = keys.number("hidden_size")
    # A draft layer has full attention; it reads the hidden state and the embedding of the last token together.
    attention = max(layer.attention + layer.plain + layer.single for layer in layers)
    if keys.raw.get("dspark_block_size") is not None:
        own, own_k = keys.number("dspark_n_routed_experts"), keys.number("dspark_num_experts_per_tok")
        # Its layers follow the model's in the list of ratios: a window, and nothing compressed.
        layer = attention_of(keys, "full_attention", len(layers))
        main = len(keys.numbers("dspark_target_layer_ids")) * hidden * hidden
        fixed = stages * (layer.quantised + 3 * hidden * shared) + main
        # Routers and the Markov head's two tables keep the model's dtype.
        plain = stages * (layer.plain + hidden * own) + 2 * keys.number("dspark_markov_rank", default=0) * keys.number(
            "vocab_size"
        )
        block = keys.number("dspark_block_size")
        return DraftShape("block", stages, own, own_k, fixed, block, plain, stages * layer.single)
    fixed = attention + 3 * hidden * shared + hidden * experts + 2 * hidden * hidden
    moe = layers[-1].moe and width > 0
    # Each pass of an autoregressive head runs one layer, however many it has.
    return DraftShape("autoregressive", 1, experts if moe else 1, top_k if moe else 1, fixed, None)


def engram_projection(keys: Keys) -> int:
    """Parameters that bring a token's looked-up rows to a key for every residual stream and one value."""
    rows = keys.number("engram_n_heads", default=0) * max(0, keys.number("engram_max_ngram_size", default=1) - 1)
    streams = keys.number("hc_mult", default=0)
    return rows * keys.number("engram_head_dim", default=0) * (streams + 1) * keys.number("hidden_size")
