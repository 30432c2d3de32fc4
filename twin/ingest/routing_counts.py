"""Routing counts: how often each expert of each layer was chosen.

JSON (a matrix, {"counts": matrix}, an object of layers, or the phases of a routing-counts file, of which `decode` is
read) or CSV (`layer, expert, count`, or `layer` and one column an expert). They are folded into one matrix while they
are read, so a table may be of any length. Counts hold no time and no order: what they say of a lane is the share of
routes outside its hot set (`twin.ingest.routing_receipts`).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream
from twin.ingest.model import Found
from twin.ingest.numbers import number, numbers
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.source import Source
from twin.ingest.table import header, rows

TITLE = "routing counts (layers x experts)"
MAX_LAYERS, MAX_EXPERTS = 1024, 8192
_COUNT_KEYS = frozenset(("counts", "expert_counts", "routing_counts", "logical_count", "physical_count", "layers"))
_MATRIX = re.compile(r"^\s*\[\s*\[\s*[0-9.]+\s*(,\s*[0-9.]+\s*){2,}")
_LAYER = re.compile(r"(?:layer[s_. ]?)?[0-9]{1,4}")
_LAYERS = re.compile(rf'^\s*\{{\s*"{_LAYER.pattern}"\s*:\s*\[')
_LISTED = re.compile(r'"(?:' + "|".join(sorted(_COUNT_KEYS)) + r')"\s*:\s*[\[{]\s*[\["]')
EXPERT_COLUMN = re.compile(r"^(e|expert|id|ids|k)[ _]?[0-9]{1,3}$")
Matrix = npt.NDArray[np.float64]


def score(head: Head) -> float:
    if head.json:
        keyed = head.keys & _COUNT_KEYS and "traceEvents" not in head.keys and len(head.keys) < 3000
        phased = "phases" in head.keys and '"decode"' in head.text
        found = _MATRIX.match(head.text) or _LAYERS.match(head.text) or phased
        return 0.85 if found or (keyed and _LISTED.search(head.text)) else 0.0
    columns = set(header(head.text)) if not head.binary else set()
    if "layer" in columns and ({"expert", "count"} <= columns or {"expert", "counts"} <= columns):
        return 0.9
    numbered = sum(bool(EXPERT_COLUMN.match(c) or c.isdigit()) for c in columns)
    return 0.85 if "layer" in columns and not columns & {"token", "position"} and numbered >= 8 else 0.0


def read(source: Source) -> Found:
    """No cells; `extras["routing_counts"]` describes the counts and `state` is the matrix."""
    found = Found(FORMAT.name, source.where, source.sha256())
    is_json = source.head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"[")
    describe_counts(_json(source, found) if is_json else _csv(source), source.where, found)
    return found


def describe_counts(counts: Matrix, where: str, found: Found) -> None:
    """Check a matrix (layers, experts) and put it and its description into `found`."""
    if not np.all(np.isfinite(counts)) or np.any(counts < 0) or not counts.sum():
        raise IngestError(f"{where}: routing counts must be finite, not negative and not all zero.")
    share = np.sort(counts, axis=1)[:, ::-1] / np.maximum(1.0, counts.sum(axis=1, keepdims=True))
    cumulative = share.cumsum(axis=1).mean(axis=0)
    experts = counts.shape[1]
    found.extras["routing_counts"] = {
        "layers": int(counts.shape[0]),
        "experts": experts,
        "routes": float(counts.sum()),
        "experts_never_used": int((counts == 0).sum()),
        "share_of_routes_of_the_top": {
            str(n): round(float(cumulative[n - 1]), 4)
            for n in sorted({max(1, experts // 8), experts // 2 or 1, max(1, 3 * experts // 4)})
        },
    }
    found.state = counts


class _Filling:
    """A matrix that grows with the counts put into it; NaN where nothing was put yet."""

    def __init__(self, where: str) -> None:
        self.where, self.values = where, np.full((1, 8), np.nan)
        self.layers = self.experts = 0

    def put(self, layer: int, expert: int, value: float, line: int) -> None:
        """Set one count. Raises IngestError when it was set before."""
        height, width = self.values.shape
        if layer >= height or expert >= width:
            grown = np.full((_room(layer, height), _room(expert, width)), np.nan)
            grown[:height, :width] = self.values
            self.values = grown
        if not np.isnan(self.values[layer, expert]):
            raise IngestError(f"{self.where}, line {line}: layer {layer}, expert {expert} appears twice.")
        self.values[layer, expert] = value
        self.layers, self.experts = max(self.layers, layer + 1), max(self.experts, expert + 1)

    def matrix(self) -> Matrix:
        """The counts put so far; a place without one is 0."""
        return np.asarray(np.nan_to_num(self.values[: self.layers, : self.experts], nan=0.0))


def _room(index: int, size: int) -> int:
    return size if index < size else max(index + 1, 2 * size)


def _csv(source: Source) -> Matrix:
    filling = _Filling(source.where)
    for row in rows(source, most=MAX_LAYERS * MAX_EXPERTS):
        layer = index(row.cells.get("layer", ""), source.where, row.line, "layer", MAX_LAYERS)
        if "expert" in row.cells:
            pairs = [(row.cells["expert"], row.cells.get("count", row.cells.get("counts", "")))]
        else:
            pairs = [(re.sub(r"\D", "", c), v) for c, v in row.cells.items() if EXPERT_COLUMN.match(c) or c.isdigit()]
        for name, text in pairs:
            value = number(text, f"{source.where}, line {row.line}", "count")
            expert = index(name, source.where, row.line, "expert", MAX_EXPERTS)
            filling.put(layer, expert, value or 0.0, row.line)
    if not filling.layers:
        raise nothing_inside(source, TITLE, "no row")
    return filling.matrix()


def index(text: str, where: str, line: int, what: str, limit: int) -> int:
    """A whole number below `limit` in a cell of a table."""
    plain = text.strip()
    if not (plain.isascii() and plain.isdigit()) or len(plain) > 12 or int(plain) >= limit:
        raise IngestError(f"{where}, line {line}: {what} is {text[:20]!r}; expected a whole number below {limit}.")
    return int(plain)


def _json(source: Source, found: Found) -> Matrix:
    with JsonStream(source) as stream:
        layers = _layers(stream, found) if stream.peek() == "[" else _object(stream, found)
    if not layers:
        raise nothing_inside(source, TITLE, "no matrix of counts")
    width = len(layers[0])
    for number_, layer in enumerate(layers):
        if len(layer) != width or not 1 <= width <= MAX_EXPERTS:
            raise IngestError(
                f"{source.where}: layer {number_} has {len(layer)} experts, layer 0 has {width}; expected the same "
                f"number, at most {MAX_EXPERTS}."
            )
    return np.array(layers)


def _object(stream: JsonStream, found: Found) -> list[Matrix]:
    """Counts under a known key, under `phases`, or the object's own members as layers; other keys are kept."""
    named: dict[str, Matrix] = {}
    listed: list[Matrix] = []
    for key in stream.members():
        if key == "phases" and stream.peek() == "{":
            for phase in stream.members():
                if phase == "decode":
                    listed = _layers(stream, found)
                else:
                    found.keep(f"phase {phase}", f"{stream.skip()} layers")
        elif key in _COUNT_KEYS:
            listed = _layers(stream, found)
        elif _LAYER.fullmatch(key):
            if key in named:
                raise IngestError(f"{found.where}: the layer {key!r} appears twice.")
            named[key] = _layer(stream.value(), found.where, len(named))
            _bounded(len(named), found.where)
        else:
            found.keep(key, stream.value())
    return listed or [named[key] for key in sorted(named, key=_layer_number)]


def _layers(stream: JsonStream, found: Found) -> list[Matrix]:
    """A list of layers, or an object of layers by number."""
    if stream.peek() == "[":
        plain = []
        for layer in stream.elements():
            plain.append(_layer(stream.value(), found.where, layer))
            _bounded(len(plain), found.where)
        return plain
    if stream.peek() != "{":
        raise IngestError(f"{found.where}: expected layers x experts, got {str(stream.value())[:40]!r}.")
    named: dict[str, Matrix] = {}
    for key in stream.members():
        if not _LAYER.fullmatch(key):
            raise IngestError(f"{found.where}: layers should be named by their number, got {key[:40]!r}.")
        named[key] = _layer(stream.value(), found.where, len(named))
        _bounded(len(named), found.where)
    return [named[key] for key in sorted(named, key=_layer_number)]


def _bounded(layers: int, where: str) -> None:
    if layers > MAX_LAYERS:
        raise IngestError(f"{where}: more than {MAX_LAYERS} layers.")


def _layer_number(key: str) -> int:
    return int(re.sub(r"\D", "", key))


def _layer(raw: Any, where: str, layer: int) -> Matrix:
    if isinstance(raw, dict):
        named = [int(key) for key in raw if str(key).isdecimal() and len(key) < 5]
        raw = [raw.get(str(expert), 0) for expert in range(1 + max(named, default=0))]
    return np.array(numbers(raw, where, f"layer {layer}"))


FORMAT = Reader("routing-counts", TITLE, score, read)
