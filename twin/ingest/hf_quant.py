"""Bytes per stored weight, from a config's `quantization_config`: what a kernel must read, scales included.

| method | bytes per weight |
|---|---|
| none | 2 (bfloat16, float16) or 4 (float32) |
| fp8, block b0 x b1 | 1 + scale / (b0 b1), scale 4 bytes (1 with ue8m0); `expert_dtype` fp4: experts 17/32 |
| mxfp4 | 17/32: 4 bits and one byte of scale for 32 |
| nvfp4 | 9/16: 4 bits and one byte of scale for 16 |
| int n, group g | n/8 + 2/g (a 16-bit scale for g), gptq and awq n/8 + (2 + n/8)/g with a zero point |

Which modules are quantised follows the config's own lists (`ignore`, `exclude_modules`, `modules_to_not_convert`).
Embedding, head and routers stay in the model's dtype unless a list says otherwise.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any

from twin.errors import IngestError
from twin.ingest.numbers import number

_DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float8_e4m3fn": 1.0}
#: a module of each part, in the names that ignore lists are written for
_PROBES = {
    "experts": ("model.layers.10.mlp.experts.0.gate_proj", "model.layers.10.block_sparse_moe.experts.0.w1"),
    "attention": ("model.layers.10.self_attn.o_proj",),
    "shared": ("model.layers.10.mlp.shared_experts.gate_proj", "model.layers.10.mlp.shared_expert.gate_proj"),
    "dense": ("model.layers.0.mlp.gate_proj",),
    "head": ("lm_head",),
}
MXFP4, NVFP4 = 17.0 / 32.0, 9.0 / 16.0


@dataclass(frozen=True)
class Weights:
    """Bytes per weight of each part, and the method in words."""

    experts: float
    attention: float
    shared: float
    dense: float
    head: float
    plain: float
    method: str


def weights_of(
    config: dict[str, Any], where: str, experts_bits: float | None = None, dense_bits: float | None = None
) -> Weights:
    """Bytes per weight by part. The bits, when given, override the config for experts and for the rest.

    Raises IngestError for a method it does not know, naming the flags that say the bits.
    """
    dtype = (
        config.get("torch_dtype")
        or config.get("dtype")
        or _text(config).get("torch_dtype")
        or _text(config).get("dtype")
    )
    plain = _DTYPE_BYTES.get(str(dtype or "bfloat16").removeprefix("torch."), 2.0)
    quantisation = config.get("quantization_config") or _text(config).get("quantization_config")
    if quantisation is not None and not isinstance(quantisation, dict):
        raise IngestError(f"{where}: quantization_config should be an object.")
    parts = dict.fromkeys(_PROBES, plain)
    method = str(dtype or "bfloat16 (the config names no dtype)")
    if quantisation and not (experts_bits and dense_bits):
        size, expert_size, method = _method(quantisation, where, known=bool(experts_bits))
        ignored = _ignored(quantisation)
        for part, probes in _PROBES.items():
            if part == "head" and "targets" not in quantisation:
                continue
            if not any(_matches(pattern, probe) for pattern in ignored for probe in probes):
                parts[part] = expert_size if part == "experts" else size
        if quantisation.get("quant_method") == "mxfp4":
            # gpt-oss quantises the experts only, whatever its list says.
            parts = dict.fromkeys(_PROBES, plain) | {"experts": MXFP4}
    if experts_bits:
        parts["experts"], method = experts_bits / 8.0, f"{method}; experts {experts_bits:g} bits as told"
    if dense_bits:
        parts |= dict.fromkeys(("attention", "shared", "dense"), dense_bits / 8.0)
        method = f"{method}; the rest {dense_bits:g} bits as told"
    return Weights(**parts, plain=plain, method=method)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else {}


def _method(raw: dict[str, Any], where: str, known: bool) -> tuple[float, float, str]:
    """Bytes per weight of a quantised matrix, of a quantised expert, and the method in words."""
    method = str(raw.get("quant_method") or raw.get("quant_algo") or raw.get("quantization", {}) or "?").lower()
    algorithm = str(raw.get("quant_algo") or "").lower()
    if method == "fp8":
        block = raw.get("weight_block_size")
        size = 1.0
        if isinstance(block, list) and len(block) == 2:
            cells = [number(b, where, "weight_block_size", minimum=1) or 1.0 for b in block]
            size += (1.0 if raw.get("scale_fmt") == "ue8m0" else 4.0) / (cells[0] * cells[1])
        expert = MXFP4 if str(raw.get("expert_dtype", "")).lower() == "fp4" else size
        return size, expert, "fp8" + (", experts mxfp4" if expert != size else "")
    if method == "mxfp4":
        return MXFP4, MXFP4, "mxfp4 experts"
    if "nvfp4" in algorithm or "nvfp4" in method or "nvfp4" in str(raw.get("format", "")):
        return NVFP4, NVFP4, "nvfp4"
    if "fp8" in algorithm:
        return 1.0, 1.0, "fp8"
    if method == "compressed-tensors":
        return _compressed_tensors(raw, where)
    if method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin"):
        bits = number(raw.get("bits", raw.get("w_bit")), where, "quantization_config.bits", minimum=1) or 4.0
        group = (
            number(
                raw.get("group_size", raw.get("q_group_size", 128)), where, "quantization_config.group_size", minimum=-1
            )
            or 128.0
        )
        size = bits / 8.0 + ((2.0 + bits / 8.0) / group if group > 0 else 0.0)
        return size, size, f"{method} int{bits:g}, groups of {group:g}"
    if known:
        return 2.0, 2.0, method
    raise IngestError(
        f"{where}: quantization method {method[:40]!r} is not known; pass --expert-bits and --dense-bits (bits per "
        "weight, "
        "scales included), for instance 4.25 for 4 bits with an 8-bit scale for 32."
    )


def _compressed_tensors(raw: dict[str, Any], where: str) -> tuple[float, float, str]:
    groups = raw.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise IngestError(f"{where}: quantization_config.config_groups has no weights.")
    bits = number(weights.get("num_bits"), where, "num_bits", minimum=1) or 8.0
    group = number(weights.get("group_size"), where, "group_size", minimum=-1) or 0.0
    kind = str(weights.get("type") or "int")
    if kind == "float" and bits == 4:
        size = MXFP4 if group == 32 else NVFP4
        return size, size, "mxfp4" if group == 32 else "nvfp4"
    size = bits / 8.0 + (2.0 / group if group > 0 else 0.0)
    return size, size, f"{kind}{bits:g}" + (f", groups of {group:g}" if group > 0 else "")


def _ignored(raw: dict[str, Any]) -> list[str]:
    lists = (raw.get(name) for name in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"))
    return [str(p) for one in lists if isinstance(one, list) for p in one[:2_000]]


def _matches(pattern: str, module: str) -> bool:
    """Ignore lists hold names, globs, and "re:" expressions; a name also covers what is below it and suffixes."""
    if pattern.startswith("re:"):
        # Nested or many quantifiers can take for ever, and no real list needs them.
        if len(pattern) > 500 or re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+]", pattern)) > 5:
            return False
        try:
            return re.match(pattern[3:], module) is not None
        except (re.error, RecursionError, OverflowError):
            return False
    if any(c in pattern for c in "*?["):
        return fnmatch.fnmatchcase(module, pattern)
    # A list that names every layer names layer 10 too; short names like "self_attn" are meant for all layers.
    return (
        module == pattern
        or module.startswith(pattern + ".")
        or (f".{pattern}." in f".{module}." and "layers" not in pattern)
    )
