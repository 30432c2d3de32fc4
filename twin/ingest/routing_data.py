"""Routing counts and ordered expert-id traces: what a run says about experts, described and checked.

Counts are layers x experts: JSON (a matrix, {"counts": matrix}, or an object of layers) or CSV (`layer, expert,
count`, or `layer` and one column an expert). Ordered traces are tokens x layers x top-k expert ids: NPZ or NPY, or CSV
(`token`, `layer` and the ids). They hold no time, so they give no receipts: `twin placement` and `twin union` take the
file itself.
"""

from __future__ import annotations

import io
import re
import zipfile
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

COUNTS_TITLE = "routing counts (layers x experts)"
TRACE_TITLE = "an ordered trace of expert ids"
MAX_LAYERS, MAX_EXPERTS, MAX_IDS = 1024, 8192, 200_000_000
MAX_ARRAY_BYTES = 2**30
_COUNT_KEYS = frozenset(("counts", "expert_counts", "routing_counts", "logical_count", "physical_count", "layers"))
_MATRIX = re.compile(r"^\s*\[\s*\[\s*[0-9.]+\s*(,\s*[0-9.]+\s*){2,}")
_LAYERS = re.compile(r'^\s*\{\s*"(?:layer[s_. ]?)?[0-9]{1,4}"\s*:\s*\[')
_IDS = re.compile(r"^(e|expert|id|ids|k)[ _]?[0-9]{1,3}$")
_WINDOWS = (1, 2, 3, 4, 6, 8, 16)
Matrix = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def counts_score(head: Head) -> float:
    if head.json:
        return (
            0.85
            if _MATRIX.match(head.text) or _LAYERS.match(head.text)
            else 0.85
            if head.keys & _COUNT_KEYS
            and '": [' in head.text.replace('":[', '": [')
            and "traceEvents" not in head.keys
            and len(head.keys) < 3000
            and _numeric_lists(head)
            else 0.0
        )
    columns = set(header(head.text)) if not head.binary else set()
    if "layer" in columns and ({"expert", "count"} <= columns or ("expert" in columns and "counts" in columns)):
        return 0.9
    return (
        0.85
        if "layer" in columns
        and not columns & {"token", "position"}
        and sum(bool(_IDS.match(c) or c.isdigit()) for c in columns) >= 8
        else 0.0
    )


def _numeric_lists(head: Head) -> bool:
    return re.search(r'"(?:' + "|".join(_COUNT_KEYS) + r')"\s*:\s*[\[{]\s*[\["]', head.text) is not None


def trace_score(head: Head) -> float:
    if head.data.startswith(b"\x93NUMPY"):
        return 1.0
    if head.data.startswith(b"PK\x03\x04"):
        return 1.0 if b".npy" in head.data else 0.3
    if head.json or head.binary:
        return 0.0
    columns = header(head.text)
    return (
        0.9
        if "layer" in columns
        and {"token", "position"} & set(columns)
        and any(_IDS.match(c) or c in ("experts", "expert_ids") for c in columns)
        else 0.0
    )


def read_counts(source: Source) -> Found:
    """No cells; `extras["routing_counts"]` describes the counts."""
    found = Found(COUNTS.name, source.where, source.sha256())
    counts = (
        _json_counts(source, found)
        if source.head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"[")
        else _csv_counts(source)
    )
    _describe_counts(counts, source, found)
    return found


def read_trace(source: Source) -> Found:
    """No cells; `extras["routing_trace"]` has shapes and mean unique experts in windows of consecutive tokens."""
    found = Found(TRACE.name, source.where, source.sha256())
    if source.head.startswith((b"PK", b"\x93NUMPY")):
        array = _load_array(source, found)
        if array.ndim == 2 and array.shape[0] <= MAX_LAYERS and array.shape[1] <= MAX_EXPERTS and array.shape[1] > 32:
            _describe_counts(array.astype(np.float64), source, found)
            found.format = COUNTS.name
            return found
    else:
        array = _csv_trace(source)
    _describe_trace(array, source, found)
    return found


def _json_counts(source: Source, found: Found) -> Matrix:
    with JsonStream(source) as stream:
        raw: Any = None
        if stream.peek() == "[":
            raw = stream.value()
        else:
            layers: dict[str, Any] = {}
            for key in stream.members():
                value = stream.value()
                if key in _COUNT_KEYS:
                    raw = value
                elif re.fullmatch(r"(?:layer[s_. ]?)?[0-9]{1,4}", key):
                    if key in layers:
                        raise IngestError(f"{source.where}: the layer {key!r} appears twice.")
                    layers[key] = value
                else:
                    found.keep(key, value)
            raw = layers if raw is None else raw
    if isinstance(raw, dict):
        try:
            raw = [raw[key] for key in sorted(raw, key=lambda k: int(re.sub(r"\D", "", k)))]
        except ValueError:
            raise IngestError(f"{source.where}: layers should be named by their number.") from None
    if not isinstance(raw, list) or not raw:
        raise nothing_inside(source, COUNTS_TITLE, "no matrix of counts")
    if len(raw) > MAX_LAYERS:
        raise IngestError(f"{source.where}: {len(raw)} layers; expected at most {MAX_LAYERS}.")
    if isinstance(raw[0], dict):
        raw = [
            [
                layer.get(str(e), 0)
                for e in range(1 + max((int(k) for k in layer if str(k).isdecimal() and len(k) < 5), default=0))
            ]
            for layer in raw
            if isinstance(layer, dict)
        ]
    return _matrix([numbers(layer, source.where, f"layer {i}") for i, layer in enumerate(raw)], source.where)


def _matrix(layers: list[list[float]], where: str) -> Matrix:
    width = len(layers[0])
    for index, layer in enumerate(layers):
        if len(layer) != width or not 1 <= width <= MAX_EXPERTS:
            raise IngestError(
                f"{where}: layer {index} has {len(layer)} experts, layer 0 has {width}; expected the same number, at "
                f"most {MAX_EXPERTS}."
            )
    return np.array(layers)


def _csv_counts(source: Source) -> Matrix:
    places: dict[tuple[int, int], float] = {}
    for row in rows(source):
        layer = _index(row.cells.get("layer", ""), source.where, row.line, "layer", MAX_LAYERS)
        if "expert" in row.cells:
            pairs = [(row.cells["expert"], row.cells.get("count", row.cells.get("counts", "")))]
        else:
            pairs = [(re.sub(r"\D", "", c), v) for c, v in row.cells.items() if _IDS.match(c) or c.isdigit()]
        for expert, text in pairs:
            value = number(text, f"{source.where}, line {row.line}", "count")
            place = (layer, _index(expert, source.where, row.line, "expert", MAX_EXPERTS))
            if place in places:
                raise IngestError(
                    f"{source.where}, line {row.line}: layer {place[0]}, expert {place[1]} appears twice."
                )
            places[place] = value or 0.0
    if not places:
        raise nothing_inside(source, COUNTS_TITLE, "no row")
    counts = np.zeros((1 + max(p[0] for p in places), 1 + max(p[1] for p in places)))
    for place, value in places.items():
        counts[place] = value
    return counts


def _index(text: str, where: str, line: int, what: str, limit: int) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text[:12]) >= limit:
        raise IngestError(f"{where}, line {line}: {what} is {text[:20]!r}; expected a whole number below {limit}.")
    return int(text)


def _describe_counts(counts: Matrix, source: Source, found: Found) -> None:
    if not np.all(np.isfinite(counts)) or np.any(counts < 0) or not counts.sum():
        raise IngestError(f"{source.where}: routing counts must be finite, not negative and not all zero.")
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
    found.notes.append("routing counts hold no time, so no receipts come from them; give the file to `twin placement`")


def _load_array(source: Source, found: Found) -> npt.NDArray[Any]:
    with source.open() as stream:
        data = stream.read(MAX_ARRAY_BYTES + 1)
    if len(data) > MAX_ARRAY_BYTES:
        raise IngestError(f"{source.where}: more than {MAX_ARRAY_BYTES // 2**20} MiB; save fewer tokens.")
    try:
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MAX_ARRAY_BYTES:
                    raise IngestError(
                        f"{source.where}: unpacks to more than {MAX_ARRAY_BYTES // 2**20} MiB; save fewer tokens."
                    )
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        arrays = {"array": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except IngestError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise IngestError(f"{source.where}: not a readable NumPy file ({str(error)[:120]}).") from None
    whole = {
        n: a
        for n, a in arrays.items()
        if a.ndim in (2, 3) and a.size and (np.issubdtype(a.dtype, np.integer) or np.issubdtype(a.dtype, np.floating))
    }
    if not whole:
        raise nothing_inside(
            source,
            TRACE_TITLE,
            f"no array of two or three axes of numbers (arrays: {', '.join(list(arrays)[:10]) or 'none'})",
        )
    chosen = next(
        (n for n in ("expert_ids", "topk_ids", "ids", "trace", "counts") if n in whole),
        max(whole, key=lambda n: whole[n].size),
    )
    for name, array in arrays.items():
        if name != chosen:
            found.keep(f"array {name}", f"shape {tuple(array.shape)}")
    return whole[chosen]


def _csv_trace(source: Source) -> Ids:
    found: dict[tuple[int, int], list[int]] = {}
    width = 0
    for row in rows(source):
        token = _index(row.cells.get("token", row.cells.get("position", "")), source.where, row.line, "token", 10**9)
        layer = _index(row.cells.get("layer", ""), source.where, row.line, "layer", MAX_LAYERS)
        listed = row.cells.get("experts") or row.cells.get("expert_ids")
        texts = (
            re.split(r"[\s;,|]+", listed.strip("[]() "))
            if listed
            else [v for c, v in row.cells.items() if _IDS.match(c) and v]
        )
        ids = [_index(t, source.where, row.line, "expert id", MAX_EXPERTS) for t in texts]
        width = width or len(ids)
        if len(ids) != width or not ids:
            raise IngestError(f"{source.where}, line {row.line}: {len(ids)} expert ids, the first row has {width}.")
        if (token, layer) in found:
            raise IngestError(f"{source.where}, line {row.line}: token {token}, layer {layer} appears twice.")
        found[token, layer] = ids
    if not found:
        raise nothing_inside(source, TRACE_TITLE, "no row")
    tokens, layers = sorted({t for t, _ in found}), sorted({layer for _, layer in found})
    if len(found) != len(tokens) * len(layers):
        raise IngestError(
            f"{source.where}: {len(found)} rows for {len(tokens)} tokens x {len(layers)} layers; every token needs "
            "every layer."
        )
    return np.array([[found[t, layer] for layer in layers] for t in tokens], dtype=np.int64)


def _describe_trace(array: npt.NDArray[Any], source: Source, found: Found) -> None:
    if array.ndim == 2:
        array = array[:, None, :]
    if array.size > MAX_IDS:
        raise IngestError(f"{source.where}: {array.size:,} ids; save fewer tokens.")
    if not np.issubdtype(array.dtype, np.integer):
        if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
            raise IngestError(f"{source.where}: expert ids must be whole numbers.")
        array = array.astype(np.int64)
    if array.min() < 0 or array.max() >= MAX_EXPERTS:
        raise IngestError(
            f"{source.where}: expert ids from {array.min()} to {array.max()}; expected 0 to {MAX_EXPERTS - 1}."
        )
    if array.shape[1] > array.shape[0] and array.shape[1] > MAX_LAYERS:
        array = array.swapaxes(0, 1)
        found.notes.append("read as layers x tokens x top-k, because the second axis is too long for layers")
    tokens, layers, top_k = array.shape
    if layers > MAX_LAYERS or top_k > 256:
        raise IngestError(f"{source.where}: shape {array.shape}; expected tokens x layers x top-k.")
    found.extras["routing_trace"] = {
        "tokens": tokens,
        "layers": layers,
        "top_k": top_k,
        "largest_id": int(array.max()),
        "unique_experts_mean": {str(m): round(_unique(array, m), 3) for m in _WINDOWS if m <= tokens},
    }
    found.notes.append(
        "an expert trace holds no time, so no receipts come from it; give the file to `twin placement` or `twin union`"
    )


def _unique(array: npt.NDArray[Any], m: int) -> float:
    """Mean unique experts per layer in up to 500 windows of m consecutive tokens."""
    starts = np.unique(np.linspace(0, len(array) - m, num=min(500, len(array) - m + 1)).astype(int))
    totals = []
    for start in starts:
        window = np.sort(array[start : start + m].swapaxes(0, 1).reshape(array.shape[1], -1), axis=1)
        totals.append(1.0 + float((np.diff(window, axis=1) != 0).sum(axis=1).mean()))
    return float(np.mean(totals))


COUNTS = Reader("routing-counts", COUNTS_TITLE, counts_score, read_counts)
TRACE = Reader("expert-trace", TRACE_TITLE, trace_score, read_trace)
