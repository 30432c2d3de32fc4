"""Ordered expert-id traces: tokens x layers x top-k, folded into unions and counts while they are read.

NPZ or NPY (an array of ids with two or three axes, `stream` beside it where there are several) or CSV (`token`,
`layer`, the ids in columns or in one cell, optionally `stream`). A window never spans two streams, nor a gap in the
token numbers. Traces hold no time; receipts of unique experts come from them (`twin.ingest.routing_receipts`).
"""

from __future__ import annotations

import re
from array import array

import numpy as np

from twin.errors import IngestError
from twin.ingest.expert_arrays import fold_arrays
from twin.ingest.model import Found
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.routing_counts import EXPERT_COLUMN, MAX_EXPERTS, MAX_LAYERS, describe_counts, index
from twin.ingest.routing_counts import FORMAT as COUNTS
from twin.ingest.source import Source
from twin.ingest.table import header, rows
from twin.ingest.unions import PIECE_TOKENS, UnionFold

TITLE = "an ordered trace of expert ids"
MAX_ROWS = 200_000_000
MAX_STREAMS = 100_000
#: tokens of one stream and layer that are folded together
_PIECE = 10 * PIECE_TOKENS


def score(head: Head) -> float:
    if head.data.startswith(b"\x93NUMPY"):
        return 1.0
    if head.data.startswith(b"PK\x03\x04"):
        return 1.0 if b".npy" in head.data else 0.3
    if head.json or head.binary:
        return 0.0
    columns = header(head.text)
    ordered = "layer" in columns and {"token", "position"} & set(columns)
    return 0.9 if ordered and any(EXPERT_COLUMN.match(c) or c in ("experts", "expert_ids") for c in columns) else 0.0


def read(source: Source) -> Found:
    """No cells; `extras["routing_trace"]` has shapes and mean unique experts, `state` the `UnionFold`.

    An array of layers x experts turns out to be counts and is described as such.
    """
    found = Found(FORMAT.name, source.where, source.sha256())
    binary = source.head.startswith((b"PK", b"\x93NUMPY"))
    folded = fold_arrays(source, found, TITLE) if binary else _fold_csv(source)
    if not isinstance(folded, UnionFold):
        describe_counts(folded, source.where, found)
        found.format = COUNTS.name
        return found
    found.extras["routing_trace"] = {
        "tokens": folded.tokens,
        "layers": folded.layers,
        "top_k": folded.top_k,
        "largest_id": folded.largest_id,
        "unique_experts_mean": {str(m): round(mean, 3) for m, (mean, _, _) in folded.means().items()},
    }
    found.state = folded
    return found


class _Part:
    """Consecutive tokens of one stream and layer that are not folded yet."""

    def __init__(self) -> None:
        self.ids, self.last, self.rows = array("i"), -1, 0


def _fold_csv(source: Source) -> UnionFold:
    fold: UnionFold | None = None
    parts: dict[tuple[int, int], _Part] = {}
    places: dict[int, int] = {}
    rows_of_layer: dict[int, int] = {}
    for row in rows(source, most=MAX_ROWS):
        where = f"{source.where}, line {row.line}"
        token = index(row.cells.get("token", row.cells.get("position", "")), source.where, row.line, "token", 10**9)
        layer = index(row.cells.get("layer", ""), source.where, row.line, "layer", MAX_LAYERS)
        stream = index(row.cells.get("stream") or "0", source.where, row.line, "stream", 10**9)
        ids = [index(t, source.where, row.line, "expert id", MAX_EXPERTS) for t in _texts(row.cells)]
        fold = fold or UnionFold(len(ids))
        if len(ids) != fold.top_k or not ids:
            raise IngestError(f"{where}: {len(ids)} expert ids, the first row has {fold.top_k}.")
        place = places.setdefault(layer, len(places))
        part = parts.setdefault((stream, place), _Part())
        if len(parts) > MAX_STREAMS:
            raise IngestError(f"{where}: more than {MAX_STREAMS:,} streams x layers; import a part of the trace.")
        if token <= part.last:
            raise IngestError(
                f"{where}: token {token}, layer {layer} "
                + ("appears twice." if token == part.last else "comes after a later token; sort the rows by token.")
            )
        if token != part.last + 1 or part.rows >= _PIECE:
            _flush(part, place, fold)
        part.ids.extend(ids)
        part.last, part.rows = token, part.rows + 1
        rows_of_layer[layer] = rows_of_layer.get(layer, 0) + 1
    if fold is None:
        raise nothing_inside(source, TITLE, "no row")
    for (_, place), part in parts.items():
        _flush(part, place, fold)
    most = max(rows_of_layer.values())
    if min(rows_of_layer.values()) != most:
        thin = min(rows_of_layer, key=lambda layer: rows_of_layer[layer])
        raise IngestError(
            f"{source.where}: layer {thin} has {rows_of_layer[thin]} of {most} tokens; every token needs every layer."
        )
    fold.tokens, fold.routes = most, fold.routes[[places[layer] for layer in sorted(places)]]
    return fold


def _texts(cells: dict[str, str]) -> list[str]:
    listed = cells.get("experts") or cells.get("expert_ids")
    if listed:
        return re.split(r"[\s;,|]+", listed.strip("[]() "))
    return [value for column, value in cells.items() if EXPERT_COLUMN.match(column) and value]


def _flush(part: _Part, layer: int, fold: UnionFold) -> None:
    if part.rows:
        ids = np.frombuffer(part.ids, dtype=np.int32).reshape(part.rows, 1, fold.top_k)
        fold.add(ids.copy(), layer)
        part.ids, part.rows = array("i"), 0


FORMAT = Reader("expert-trace", TITLE, score, read)
