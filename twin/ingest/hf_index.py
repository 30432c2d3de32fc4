"""What a `model.safetensors.index.json` says: the size of the files and the names of the tensors, not their shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream
from twin.ingest.numbers import number
from twin.ingest.source import Source

_EXPERT = re.compile(r"(?:^|\.)layers\.([0-9]{1,4})\.(?:[A-Za-z_]+\.)*experts\.([0-9]{1,5})\.")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,4})\.")
_DRAFT = re.compile(r"(?:^|\.)(mtp|nextn|eagle|dspark)(?:\.|_)")
MAX_TENSORS = 5_000_000


@dataclass(frozen=True)
class Index:
    """`total_bytes` of all tensors, experts by layer, how many layers are named, whether a draft head is stored."""

    total_bytes: float | None
    experts: dict[int, int]
    layers: int
    draft: bool


def read_index(source: Source, main_layers: int) -> Index:
    """Read the index; layers past `main_layers` are the draft head's. Raises IngestError."""
    total: float | None = None
    experts: dict[int, set[int]] = defaultdict(set)
    layers: set[int] = set()
    draft, count = False, 0
    with JsonStream(source) as stream:
        for key in stream.members():
            if key == "metadata":
                metadata = stream.value()
                if isinstance(metadata, dict):
                    total = number(metadata.get("total_size"), source.where, "metadata.total_size")
            elif key == "weight_map" and stream.peek() == "{":
                for name in stream.members():
                    stream.value()
                    count += 1
                    if count > MAX_TENSORS:
                        raise IngestError(f"{source.where}: more than {MAX_TENSORS:,} tensors.")
                    if _DRAFT.search(name):
                        draft = True
                    elif match := _LAYER.search(name):
                        layers.add(int(match[1]))
                        if match := _EXPERT.search(name):
                            experts[int(match[1])].add(int(match[2]))
            else:
                stream.skip()
    if not count:
        raise IngestError(f"{source.where}: no weight_map; expected model.safetensors.index.json.")
    draft = draft or any(layer >= main_layers for layer in layers)
    return Index(total, {layer: len(found) for layer, found in experts.items()}, len(layers), draft)
