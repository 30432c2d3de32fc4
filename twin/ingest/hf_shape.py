"""The shape of a model from its Hugging Face `config.json`: parameters by part, what a token of context keeps.

Driven by keys rather than by model names, because families share them: multi-head latent attention has `kv_lora_rank`,
DeepSeek-V4's compressed attention `o_lora_rank` and `compress_ratios`, gated delta networks `linear_num_value_heads`,
everything else is grouped-query attention. Norms and other vectors are left out: together less than 0.1 % of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twin.errors import IngestError
from twin.ingest.numbers import whole

#: largest believable value of any dimension in a config
_MAX = 10**8


@dataclass(frozen=True)
class Keys:
    """A config with typed access; errors name the file and the key."""

    raw: dict[str, Any]
    where: str

    def number(self, *names: str, default: int | None = None, minimum: int = 0) -> int:
        """The first of `names` that is there, as a whole number. Raises IngestError when none is and no default."""
        for name in names:
            if self.raw.get(name) is not None:
                value = whole(self.raw[name], self.where, name, minimum=minimum)
                if value is not None and value > _MAX:
                    raise IngestError(f"{self.where}: {name} is {value}; no model has that.")
                return value or 0
        if default is None:
            raise IngestError(
                f"{self.where}: the key {' or '.join(names)} is missing; is it the config.json of a language model?"
            )
        return default

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers, empty when it is missing."""
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > 4096:
            raise IngestError(f"{self.where}: {name} should be a list of whole numbers.")
        return [whole(v, self.where, f"{name}[{i}]") or 0 for i, v in enumerate(value)]

    def words(self, name: str) -> list[str]:
        """A list of texts, empty when it is missing."""
        value = self.raw.get(name)
        return [str(v) for v in value[:4096]] if isinstance(value, list) else []


@dataclass(frozen=True)
class Kv:
    """What one token of context keeps in one layer: stored values of the cache proper, and of an index beside it."""

    values: float = 0.0
    index_values: float = 0.0


@dataclass(frozen=True)
class LayerShape:
    """Parameters of one layer by part; `moe` says whether it has routed experts."""

    attention: int
    dense_ffn: int = 0
    shared: int = 0
    router: int = 0
    moe: bool = False
    kv: Kv = field(default_factory=Kv)


@dataclass(frozen=True)
class DraftShape:
    """The draft head of a checkpoint: its own layers, and what each pass reads beside its experts."""

    kind: str
    stages: int
    experts: int
    top_k: int
    fixed_parameters: int
    trained_block: int | None


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
        """Attention, shared experts, routers and dense layers, without embedding and head."""
        return sum(layer.attention + layer.dense_ffn + layer.shared + layer.router for layer in self.layers)

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
    moe = _moe_layers(keys, count) if experts > 0 else [False] * count
    expert_width = keys.number("moe_intermediate_size", "intermediate_size", default=0) if experts else 0
    if experts and not expert_width:
        raise IngestError(f"{where}: the key moe_intermediate_size (or intermediate_size) is missing.")
    dense_width = keys.number("intermediate_size_mlp", "intermediate_size", default=0)
    shared_width, shared = _shared(keys, expert_width)
    kinds = _attention_kinds(keys, count)
    layers = []
    for index in range(count):
        attention, kv = _attention(keys, kinds[index], index)
        if moe[index]:
            gate = hidden if keys.raw.get("shared_expert_intermediate_size") else 0
            router = hidden * experts + gate
            layers.append(LayerShape(attention, 0, 3 * hidden * shared_width, router, True, kv))
        else:
            if not dense_width:
                raise IngestError(f"{where}: layer {index} is dense, but intermediate_size is missing.")
            layers.append(LayerShape(attention, 3 * hidden * dense_width, kv=kv))
    expert = 3 * hidden * expert_width
    if keys.raw.get("model_type") == "gpt_oss":
        expert += 2 * expert_width + hidden
    top_k = keys.number("num_experts_per_tok", "experts_per_token", "n_activated_experts") if experts else 0
    if experts and not 1 <= top_k <= experts:
        raise IngestError(f"{where}: num_experts_per_tok is {top_k} of {experts} experts.")
    if not experts:
        # A dense block is one expert that every token is sent to: the same bytes, and the union is always one.
        layers = [LayerShape(lay.attention, 0, 0, 0, True, lay.kv) for lay in layers]
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
        attention=_describe(keys, kinds),
        window=keys.number("sliding_window", default=0),
        draft=_draft(keys, layers, experts, top_k, shared_width, expert_width),
        engram_rows=keys.numbers("engram_num_embeddings"),
        engram_width=keys.number("engram_head_dim", default=0),
        engram_layers=keys.numbers("engram_layer_ids"),
        engram_rows_per_token=keys.number("engram_n_heads", default=0)
        * max(0, keys.number("engram_max_ngram_size", default=1) - 1),
        notes=notes,
    )


def _moe_layers(keys: Keys, count: int) -> list[bool]:
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


def _shared(keys: Keys, expert_width: int) -> tuple[int, int]:
    """Width of the shared experts together, and their number."""
    number = keys.number("n_shared_experts", "num_shared_experts", default=0)
    if keys.raw.get("shared_expert_intermediate_size"):
        return keys.number("shared_expert_intermediate_size"), number or 1
    if keys.raw.get("model_type") in ("llama4_text", "llama4"):
        return expert_width, 1
    if keys.raw.get("shared_intermediate_size"):
        return keys.number("shared_intermediate_size"), number or 1
    return number * expert_width, number


def _attention_kinds(keys: Keys, count: int) -> list[str]:
    kinds = keys.words("layer_types")
    if kinds and keys.raw.get("o_lora_rank") is None:
        if len(kinds) < count:
            raise IngestError(f"{keys.where}: layer_types has {len(kinds)} entries for {count} layers.")
        return kinds[:count]
    interval = keys.number("full_attention_interval", default=0)
    if interval and keys.raw.get("linear_num_value_heads") is not None:
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    return ["full_attention"] * count


def _attention(keys: Keys, kind: str, index: int) -> tuple[int, Kv]:
    """Parameters and cache of one attention layer."""
    if keys.raw.get("o_lora_rank") is not None:
        return _compressed(keys, index)
    if kind == "linear_attention":
        return _gated_delta(keys), Kv()
    if keys.raw.get("kv_lora_rank") is not None:
        return _latent(keys)
    return _grouped(keys, kind)


def _grouped(keys: Keys, kind: str) -> tuple[int, Kv]:
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads", minimum=1)
    kv_heads = keys.number("num_key_value_heads", default=heads)
    width = keys.number("head_dim", default=hidden // heads)
    gated = keys.raw.get("attn_output_gate", keys.raw.get("model_type") == "qwen3_next") is True
    query = hidden * heads * width * (2 if gated else 1)
    parameters = query + 2 * hidden * kv_heads * width + heads * width * hidden
    # Chunked and sliding layers keep a bounded window, whatever the context.
    bounded = kind in ("sliding_attention", "chunked_attention")
    return parameters, Kv(0.0 if bounded else 2.0 * kv_heads * width)


def _latent(keys: Keys) -> tuple[int, Kv]:
    """Multi-head latent attention (DeepSeek-V2 and on): low-rank queries, one compressed key-value latent."""
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads", minimum=1)
    nope, rope, value = keys.number("qk_nope_head_dim"), keys.number("qk_rope_head_dim"), keys.number("v_head_dim")
    q_rank, kv_rank = keys.number("q_lora_rank", default=0), keys.number("kv_lora_rank")
    query = hidden * q_rank + q_rank * heads * (nope + rope) if q_rank else hidden * heads * (nope + rope)
    parameters = query + hidden * (kv_rank + rope) + kv_rank * heads * (nope + value) + heads * value * hidden
    index_heads, index_width = keys.number("index_n_heads", default=0), keys.number("index_head_dim", default=0)
    if index_heads:
        # The lightning indexer: queries from the query latent, one key a token, a weight a head.
        parameters += (q_rank or hidden) * index_heads * index_width + hidden * (index_width + index_heads)
    return parameters, Kv(float(kv_rank + rope), float(index_width if index_heads else 0))


def _compressed(keys: Keys, index: int) -> tuple[int, Kv]:
    """DeepSeek-V4's attention: a latent key-value head, grouped low-rank output, keys compressed by a ratio a layer.

    Ratio 0 keeps a window only. In V4 every compressed layer has its compressor and, at ratio 4, an indexer; V4.1 lists
    the few layers that own a cache (`kv_source_layer_ids`) and an indexer (`index_source_layer_ids`).
    """
    hidden, heads, width = keys.number("hidden_size"), keys.number("num_attention_heads"), keys.number("head_dim")
    q_rank, o_rank, groups = keys.number("q_lora_rank"), keys.number("o_lora_rank"), keys.number("o_groups", minimum=1)
    parameters = (
        hidden * q_rank + q_rank * heads * width + hidden * width + heads * width * o_rank + groups * o_rank * hidden
    )
    ratios = keys.numbers("compress_ratios")
    ratio = ratios[index] if index < len(ratios) else 0
    streams = keys.number("hc_mult", default=0)
    # Hyper-connections mix `streams` residual streams before attention and before the feed-forward block.
    parameters += 2 * streams * hidden * (2 * streams + streams * streams)
    owners, indexers = keys.numbers("kv_source_layer_ids"), keys.numbers("index_source_layer_ids")
    owns = index in owners if owners else ratio > 0
    indexes = index in indexers if indexers else ratio == 4
    index_heads, index_width = keys.number("index_n_heads", default=0), keys.number("index_head_dim", default=0)
    if owns:
        # At ratio 4 windows overlap, which doubles the width; ratio 1 needs no gate.
        parameters += hidden * width * (2 if ratio == 4 else 1) * (2 if ratio > 1 else 1)
    if indexes:
        parameters += q_rank * index_heads * index_width + hidden * index_heads
        parameters += hidden * index_width * (4 if ratio == 4 else 1) if owns else 0
    if not owns or ratio < 1:
        return parameters, Kv()
    return parameters, Kv(width / ratio, index_width / ratio if indexes else 0.0)


def _gated_delta(keys: Keys) -> int:
    """A gated delta network layer (Qwen3-Next and 3.5): a fixed state instead of a cache."""
    hidden = keys.number("hidden_size")
    key = keys.number("linear_num_key_heads") * keys.number("linear_key_head_dim")
    values = keys.number("linear_num_value_heads")
    value = values * keys.number("linear_value_head_dim")
    convolution = (2 * key + value) * keys.number("linear_conv_kernel_dim", default=4)
    return hidden * (2 * key + 2 * value + 2 * values) + convolution + value * hidden


def _describe(keys: Keys, kinds: list[str]) -> str:
    if keys.raw.get("o_lora_rank") is not None:
        ratios = sorted(set(keys.numbers("compress_ratios")) - {0})
        window, width = keys.number("sliding_window", default=0), keys.number("head_dim")
        return f"window of {window} in every layer, keys compressed {ratios} to 1, latent head of {width}"
    kind = "multi-head latent attention" if keys.raw.get("kv_lora_rank") is not None else "grouped-query attention"
    if keys.raw.get("index_topk") is not None:
        kind += f" with a sparse index (top {keys.number('index_topk')})"
    named = {name: kinds.count(name) for name in dict.fromkeys(kinds)}
    if len(named) > 1:
        kind += ", " + ", ".join(f"{count} {name.replace('_', ' ')} layers" for name, count in named.items())
    return kind


def _draft(
    keys: Keys, layers: list[LayerShape], experts: int, top_k: int, shared_width: int, width: int
) -> DraftShape | None:
    """The multi-token-prediction layer, or DeepSeek's block drafter."""
    stages = keys.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0)
    if not stages or keys.raw.get("use_mtp") is False:
        return None
    hidden = keys.number("hidden_size")
    # A draft layer has full attention; it reads the hidden state and the embedding of the last token together.
    attention = max(layer.attention for layer in layers)
    if keys.raw.get("dspark_block_size") is not None:
        own, own_k = keys.number("dspark_n_routed_experts"), keys.number("dspark_num_experts_per_tok")
        markov = 2 * keys.number("dspark_markov_rank", default=0) * keys.number("vocab_size")
        fixed = stages * (attention + 3 * hidden * shared_width + hidden * own) + markov
        return DraftShape("block", stages, own, own_k, fixed, keys.number("dspark_block_size"))
    fixed = attention + 3 * hidden * shared_width + hidden * experts + 2 * hidden * hidden
    moe = layers[-1].moe and width > 0
    # Each pass of an autoregressive head runs one layer, however many it has.
    return DraftShape("autoregressive", 1, experts if moe else 1, top_k if moe else 1, fixed, None)
