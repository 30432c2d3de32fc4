"""Attention layers of a `config.json`: their parameters, and what a token of context keeps in them.

Multi-head latent attention has `kv_lora_rank`, DeepSeek-V4's compressed attention `o_lora_rank` and `compress_ratios`,
gated delta networks `linear_num_value_heads`; everything else is grouped-query attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.errors import IngestError
from twin.ingest.hf_keys import Keys


@dataclass(frozen=True)
class Kv:
    """What one token of context keeps in one layer: stored values of the cache proper, and of an index beside it."""

    values: float = 0.0
    index_values: float = 0.0


@dataclass(frozen=True)
class AttentionShape:
    """Parameters of one attention layer by how they are stored: `quantised` as the config says, `plain` in the model's
    dtype and `single` in 32 bits whatever it says, and what it keeps of a token.
    """

    quantised: int
    kv: Kv
    plain: int = 0
    single: int = 0


def attention_kinds(keys: Keys, count: int) -> list[str]:
    """Each layer's kind of attention by its name in the config."""
    kinds = keys.words("layer_types")
    if kinds and keys.raw.get("o_lora_rank") is None:
        if len(kinds) < count:
            raise IngestError(f"{keys.where}: layer_types has {len(kinds)} entries for {count} layers.")
        return kinds[:count]
    interval = keys.number("full_attention_interval", default=0)
    if interval and keys.raw.get("linear_num_value_heads") is not None:
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    return ["full_attention"] * count


def attention(keys: Keys, kind: str, index: int) -> AttentionShape:
    """Parameters and cache of one attention layer."""
    if keys.raw.get("o_lora_rank") is not None:
        return _compressed(keys, index)
    if kind == "linear_attention":
        return AttentionShape(_gated_delta(keys), Kv())
    if keys.raw.get("kv_lora_rank") is not None:
        return _latent(keys)
    return _grouped(keys, kind)


def _grouped(keys: Keys, kind: str) -> AttentionShape:
    hidden, heads = keys.number("hidden_size"), keys.number("num_attention_heads", minimum=1)
    kv_heads = keys.number("num_key_value_heads", default=heads)
    width = keys.number("head_dim", default=hidden // heads)
    gated = keys.raw.get("attn_output_gate", keys.raw.get("model_type") == "qwen3_next") is True
    query = hidden * heads * width * (2 if gated else 1)
    parameters = query + 2 * hidden * kv_heads * width + heads * width * hidden
    # Chunked and sliding layers keep a bounded window, whatever the context.
    bounded = kind in ("sliding_attention", "chunked_attention")
    return AttentionShape(parameters, Kv(0.0 if bounded else 2.0 * kv_heads * width))


def _latent(keys: Keys) -> AttentionShape:
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
    return AttentionShape(parameters, Kv(float(kv_rank + rope), float(index_width if index_heads else 0)))


def _compressed(keys: Keys, index: int) -> AttentionShape:
    """DeepSeek-V4's attention: a latent key-value head, grouped low-rank output, keys compressed by a ratio a layer.

    Ratio 0 keeps a window only. In V4 every compressed layer has its compressor and, at ratio 4, an indexer; V4.1 lists
    the few layers that own a cache (`kv_source_layer_ids`) and an indexer (`index_source_layer_ids`). Compressors and
    the indexer's small matrices are stored in 16 bits and hyper-connections in 32, beside 8-bit projections.
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
    mixing = 2 * streams * hidden * (2 * streams + streams * streams)
    owners, indexers = keys.numbers("kv_source_layer_ids"), keys.numbers("index_source_layer_ids")
    owns = index in owners if owners else ratio > 0
    indexes = index in indexers if indexers else ratio == 4
    index_heads, index_width = keys.number("index_n_heads", default=0), keys.number("index_head_dim", default=0)
    plain = 0
    if owns:
        # At ratio 4 windows overlap, which doubles the width; ratio 1 needs no gate.
        plain += hidden * width * (2 if ratio == 4 else 1) * (2 if ratio > 1 else 1)
    if indexes:
        parameters += q_rank * index_heads * index_width
        plain += hidden * index_heads
        # V4's indexer compresses keys of its own from the hidden state, V4.1's projects the layer's latent.
        own_keys = width * index_width if owners else hidden * index_width * (4 if ratio == 4 else 1)
        plain += own_keys if owns else 0
    kv = Kv(width / ratio, index_width / ratio if indexes else 0.0) if owns and ratio >= 1 else Kv()
    return AttentionShape(parameters, kv, plain, mixing)


def _gated_delta(keys: Keys) -> int:
    """A gated delta network layer (Qwen3-Next and 3.5): a fixed state instead of a cache."""
    hidden = keys.number("hidden_size")
    key = keys.number("linear_num_key_heads") * keys.number("linear_key_head_dim")
    values = keys.number("linear_num_value_heads")
    value = values * keys.number("linear_value_head_dim")
    convolution = (2 * key + value) * keys.number("linear_conv_kernel_dim", default=4)
    return hidden * (2 * key + 2 * value + 2 * values) + convolution + value * hidden


def describe_attention(keys: Keys, kinds: list[str]) -> str:
    """The attention of a model in a line."""
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
