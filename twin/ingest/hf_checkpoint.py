"""A catalogue checkpoint from `config.json` and, when given, the safetensors index: every value with its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.errors import IngestError
from twin.ingest.hf_index import read_index
from twin.ingest.hf_quant import Weights, weights_of
from twin.ingest.hf_shape import Shape, shape_of
from twin.ingest.jsonstream import JsonStream
from twin.ingest.source import Source
from twin.ingest.toml_text import inline, table_lines

#: bytes of one cached value; 4-bit values carry a scale byte for 16, 8-bit ones of DeepSeek-V4 one for 32
KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 9.0 / 16.0}
SINGLE_BYTES = 4.0
#: how far the bytes computed may be from those of the index before it is said
SIZE_TOLERANCE = 0.03


@dataclass
class Imported:
    """A checkpoint file's text, what was computed, and what to know about it."""

    toml: str
    values: dict[str, float]
    warnings: list[str] = field(default_factory=list)


def import_checkpoint(
    config: Source,
    index: Source | None = None,
    *,
    name: str,
    title: str = "",
    kv_dtype: str | None = None,
    expert_bits: float | None = None,
    dense_bits: float | None = None,
) -> Imported:
    """Build the checkpoint. Raises IngestError for a config that is none, and where the index contradicts it."""
    with JsonStream(config) as stream:
        raw = stream.value()
    if not isinstance(raw, dict):
        raise IngestError(f"{config.where}: expected a JSON object, the config.json of a model.")
    shape = shape_of(raw, config.where)
    weights = weights_of(raw, config.where, expert_bits, dense_bits)
    warnings = list(shape.notes)
    tensors = read_index(index, len(shape.layers)) if index else None
    if tensors is not None:
        stored = [count for layer, count in tensors.experts.items() if layer < len(shape.layers)]
        if stored and (min(stored) != shape.experts or max(stored) != shape.experts):
            raise IngestError(
                f"{index.where if index else ''}: the index names {min(stored)} to {max(stored)} experts a layer, "
                f"{config.where} says "
                f"{shape.experts}; the two are of different checkpoints."
            )
        if shape.draft is not None and not tensors.draft:
            warnings.append("the config has a draft head but the index does not name its tensors; it is left out")
    draft = shape.draft if tensors is None or tensors.draft else None
    writer = _Writer(shape, weights, kv_dtype, draft is not None)
    text = writer.text(name, title or str(raw.get("_name_or_path") or name)[:100])
    if tensors is not None and tensors.total_bytes:
        off = writer.stored_bytes / tensors.total_bytes - 1.0
        if abs(off) > SIZE_TOLERANCE:
            warnings.append(
                f"computed {writer.stored_bytes / 1e9:.1f} GB, the index says {tensors.total_bytes / 1e9:.1f} GB "
                f"({off:+.1%}): "
                "quantisation is not as the config says, or parts are not counted (vision); check --expert-bits and "
                "--dense-bits"
            )
    return Imported(text, writer.values, warnings)


class _Writer:
    """Turns a shape and weight sizes into the lines of a checkpoint file."""

    def __init__(self, shape: Shape, weights: Weights, kv_dtype: str | None, with_draft: bool) -> None:
        self.shape, self.weights, self.with_draft = shape, weights, with_draft and shape.draft is not None
        self.values: dict[str, float] = {}
        layers = shape.layers
        self.expert_bytes = shape.expert_parameters * weights.experts
        self.dense_bytes = (
            sum(layer.attention + layer.engram for layer in layers) * weights.attention
            + sum(layer.shared for layer in layers) * weights.shared
            + sum(layer.dense_ffn for layer in layers) * weights.dense
            + sum(layer.router + layer.plain for layer in layers) * weights.plain
            + sum(layer.single for layer in layers) * SINGLE_BYTES
        )
        self.head_bytes = shape.head_parameters * weights.head
        self.kv_dtype, self.kv_why = _kv_dtype(shape, kv_dtype, weights)
        self.kv_bytes, self.kv_read_bytes, self.kv_read_why = _kv(shape, self.kv_dtype)

    @property
    def row_bytes(self) -> float:
        """One looked-up row: values in FP8 and a byte of scale for 32 of them."""
        return self.shape.engram_width * (1.0 + 1.0 / 32.0)

    @property
    def draft_bytes(self) -> float:
        """What a pass of the draft head reads beside its experts and the output head."""
        draft, weights = self.shape.draft, self.weights
        if draft is None:
            return 0.0
        stored = draft.fixed_parameters * weights.attention + draft.plain_parameters * weights.plain
        return stored + draft.single_parameters * SINGLE_BYTES

    @property
    def stored_bytes(self) -> float:
        """Everything the files hold."""
        shape = self.shape
        total = shape.moe_layers * shape.experts * self.expert_bytes + self.dense_bytes + self.head_bytes
        total += 0.0 if shape.tied else shape.head_parameters * self.weights.plain
        if self.with_draft and shape.draft is not None:
            total += shape.draft.stages * shape.draft.experts * self.expert_bytes + self.draft_bytes
        return total + sum(shape.engram_rows) * self.row_bytes

    def text(self, name: str, title: str) -> str:
        """The whole TOML file."""
        shape, weights = self.shape, self.weights
        lines = [inline("name", name), inline("title", title)]
        spec: list[tuple[str, float, str]] = [
            ("layers", len(shape.layers), "config.json: num_hidden_layers"),
            ("moe_layers", shape.moe_layers, "config.json: layers with routed experts"),
            ("hidden", shape.hidden, "config.json: hidden_size"),
            ("experts", shape.experts, "config.json: routed experts a layer"),
            ("top_k", shape.top_k, "config.json: experts a token is sent to"),
            ("shared_experts", shape.shared_experts, "config.json: shared experts"),
        ]
        lines += [self._value(key, value, source, "spec") for key, value, source in spec]
        lines += [
            self._bytes(
                "expert_bytes",
                self.expert_bytes,
                f"{shape.expert_parameters:,} weights x {weights.experts:.6g} byte ({weights.method})",
            ),
            self._bytes(
                "dense_bytes",
                self.dense_bytes,
                f"{shape.dense_parameters / 1e9:.3f} B parameters of attention, shared experts, routers and dense "
                f"layers ({weights.method})",
            ),
            self._bytes(
                "head_bytes",
                self.head_bytes,
                f"{shape.vocabulary:,} x {shape.hidden:,} weights x {weights.head:.6g} byte",
            ),
            self._bytes(
                "kv_bytes_per_token", self.kv_bytes, f"{shape.attention}; cache in {self.kv_dtype}: {self.kv_why}"
            ),
            self._bytes("kv_read_bytes_per_token", self.kv_read_bytes, self.kv_read_why),
            self._value(
                "replay_window",
                shape.window if _all_windowed(shape) else 0,
                "tokens a prefix hit computes again: the window of layers that keep nothing else",
                "derived",
            ),
            self._value("activation_bytes", 2, "16-bit hidden states", "derived"),
            self._value(
                "active_parameters",
                float(shape.active_parameters),
                "computed from config.json: one token's matrices, without the embedding",
                "derived",
            ),
            self._value(
                "total_parameters",
                float(shape.total_parameters),
                "computed from config.json: language model without draft head and lookup tables",
                "derived",
            ),
        ]
        note = "; ".join([f"Attention: {shape.attention}", f"weights: {weights.method}", *shape.notes])
        lines.append(inline("notes", note[:900]))
        if self.with_draft and shape.draft is not None:
            lines += self._draft()
        if shape.engram_rows:
            lines += self._engram()
        return "\n".join(lines) + "\n"

    def _draft(self) -> list[str]:
        draft, shape = self.shape.draft, self.shape
        assert draft is not None
        fixed = self.draft_bytes + self.head_bytes
        lines = ["", "[draft]", inline("kind", draft.kind)]
        lines += [
            self._value("stages", draft.stages, "config.json: draft layers that one pass runs", "spec"),
            self._value("experts", draft.experts, "config.json: experts of a draft layer", "spec"),
            self._value("top_k", draft.top_k, "config.json", "spec"),
            self._bytes("expert_bytes", self.expert_bytes, "taken equal to the model's expert", "assumed"),
            self._bytes(
                "fixed_bytes",
                fixed,
                f"{(draft.fixed_parameters + draft.plain_parameters + draft.single_parameters) / 1e9:.3f} B dense weights of the "
                "draft layers and the head again "
                f"({shape.vocabulary:,} rows)",
            ),
        ]
        if draft.trained_block is not None:
            lines.append(self._value("trained_block", draft.trained_block, "config.json: dspark_block_size", "spec"))
        return lines

    def _engram(self) -> list[str]:
        shape = self.shape
        if len(shape.engram_rows) != len(shape.engram_layers) or not shape.engram_width:
            raise IngestError(
                "engram_layer_ids and engram_num_embeddings have different lengths, or engram_head_dim is missing."
            )
        tables = [
            table_lines(
                rows * self.row_bytes, f"{rows:,} rows x {shape.engram_width} in FP8, a scale for 32", "derived"
            )
            for rows in shape.engram_rows
        ]
        return [
            "",
            "[engram]",
            f"layers = {shape.engram_layers}",
            "table_bytes = [",
            *(f"  {table}," for table in tables),
            "]",
            self._bytes("row_bytes", self.row_bytes, "config.json: engram_head_dim in FP8, a scale for 32", "derived"),
            self._value("rows_per_token", shape.engram_rows_per_token, "heads x n-gram lengths from 2", "derived"),
        ]

    def _value(self, key: str, value: float, source: str, kind: str) -> str:
        self.values[key] = float(value)
        number = f"{int(value)}" if value == int(value) and abs(value) < 1e9 else f"{value:.8g}"
        return inline(key, number, source, kind, quote=False)

    def _bytes(self, key: str, value: float, source: str, kind: str = "derived") -> str:
        self.values.setdefault(key, float(value))
        return f"{key} = {table_lines(value, source, kind)}"


def _all_windowed(shape: Shape) -> bool:
    return shape.attention.startswith("window")


def _kv_dtype(shape: Shape, asked: str | None, weights: Weights) -> tuple[str, str]:
    if asked is not None:
        if asked not in KV_BYTES:
            raise IngestError(f"--kv-dtype {asked!r}: expected {', '.join(KV_BYTES)}.")
        return asked, "as told"
    if shape.model_type.startswith("deepseek_v41"):
        return "fp4", "the published 890 bytes a token are this cache in FP4; engines may keep FP8"
    if _all_windowed(shape):
        return "fp8", "the engines' default for this attention"
    return (
        "bf16",
        "the config names no cache dtype and engines default to the model's; say --kv-dtype fp8 where the server does",
    )


def _kv(shape: Shape, dtype: str) -> tuple[float, float, str]:
    """Bytes a token keeps, bytes a step reads of it, and why."""
    values = sum(layer.kv.values for layer in shape.layers)
    index = sum(layer.kv.index_values for layer in shape.layers)
    per_value = 33.0 / 32.0 if dtype == "fp8" and _all_windowed(shape) else KV_BYTES[dtype]
    # Index keys are stored in FP8 with a 4-byte scale for 128, or in MXFP4 when the cache is in FP4.
    index_bytes = index * (17.0 / 32.0 if dtype == "fp4" else 132.0 / 128.0)
    kept = values * per_value + index_bytes
    # A value of zero would be refused by every later check; a model of windows and states keeps nothing per token.
    kept = max(kept, 1.0)
    if _all_windowed(shape):
        return kept, kept, "upper bound: a step reads the index of all tokens and the selected keys"
    if index:
        return kept, index_bytes, "the index keys of all tokens; the selected keys are a constant beside it"
    return kept, kept, "a step reads the whole cache of a stream once, for all its rows"
