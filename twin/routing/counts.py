"""Routing counts and ordered traces, read from the files people have.

Counts (layers x experts, routes): JSON as a list of rows, as {"counts": rows}, as {"layer": row} or as the
routing-counts format with phases {"decode": {"0": row, ...}}; or CSV, one layer a line, a header allowed.
Traces (which experts each token chose, in order): NPZ with an array `experts` of shape (tokens, layers, K) and
optionally `stream` (tokens,); or CSV with the columns token, layer, expert_0 .. expert_{K-1} and optionally stream.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin.errors import IngestError, nearest
from twin.routing.batch import Array

MAX_BYTES = 256 * 2**20
MAX_LAYERS, MAX_EXPERTS, MAX_TOP_K = 1024, 16384, 64
#: routes of one expert; a float counts whole numbers exactly up to here
MAX_ROUTES = 2.0**53


@dataclass(frozen=True)
class RoutingCounts:
    """Routes by layer and expert, shape (layers, experts)."""

    routes: Array
    source: str

    @property
    def layers(self) -> int:
        return int(self.routes.shape[0])

    @property
    def experts(self) -> int:
        return int(self.routes.shape[1])

    def chosen(self, top_k: int) -> Array:
        """Probability that a token chooses each expert, K times its share of routes, shape (layers, experts)."""
        return np.asarray(np.minimum(top_k * self.routes / self.routes.sum(axis=1, keepdims=True), 1.0))


@dataclass(frozen=True)
class RoutingTrace:
    """Experts chosen by consecutive tokens, shape (tokens, layers, K), with the stream of each token (tokens,)."""

    experts: NDArray[np.int64]
    stream: NDArray[np.int64]
    source: str

    def counts(self, experts: int) -> RoutingCounts:
        """Routes by layer and expert of the whole trace."""
        layers = self.experts.shape[1]
        routes = [np.bincount(self.experts[:, layer].ravel(), minlength=experts) for layer in range(layers)]
        return RoutingCounts(np.asarray(routes, dtype=float), self.source)


def is_trace(path: Path) -> bool:
    """Whether a file is an ordered trace: NPZ, or a CSV whose header has the column expert_0."""
    suffix = path.suffix.lower()
    if suffix != ".csv":
        return suffix == ".npz"
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return "expert_0" in file.readline(65536)
    except OSError:
        return False


def read_counts(path: Path, *, phase: str = "decode") -> RoutingCounts:
    """Read counts from JSON or CSV (by its suffix). `phase` picks one where a file has several.

    Raises IngestError naming file and place.
    """
    text = _text(path)
    rows = _counts_csv(text, path) if path.suffix.lower() == ".csv" else _counts_json(text, path, phase)
    if not rows or len(rows) > MAX_LAYERS:
        raise IngestError(f"{path}: {len(rows)} layers; expected 1 to {MAX_LAYERS} rows of route counts.")
    width = len(rows[0])
    for layer, row in enumerate(rows):
        if len(row) != width:
            raise IngestError(
                f"{path}: layer {layer} has {len(row)} experts and layer 0 has {width}; all need the same."
            )
    if not 2 <= width <= MAX_EXPERTS:
        raise IngestError(f"{path}: {width} experts a layer; expected 2 to {MAX_EXPERTS} columns.")
    routes = np.asarray(rows, dtype=float)
    bad = ~(routes <= MAX_ROUTES) | (routes < 0)
    if bad.any():
        layer, expert = (int(i) for i in np.argwhere(bad)[0])
        raise IngestError(f"{path}: layer {layer}, expert {expert}: {routes[layer, expert]:g} is not a count.")
    empty = np.flatnonzero(routes.sum(axis=1) == 0)
    if empty.size:
        raise IngestError(f"{path}: layer {int(empty[0])} has no routes at all; leave dense layers out of the file.")
    return RoutingCounts(routes, path.name)


def read_trace(path: Path) -> RoutingTrace:
    """Read an ordered trace from NPZ or CSV (by its suffix). Raises IngestError naming file and place."""
    experts, stream = _trace_csv(_text(path), path) if path.suffix.lower() == ".csv" else _trace_npz(path)
    if experts.ndim != 3 or experts.shape[0] < 2 or not 1 <= experts.shape[2] <= MAX_TOP_K:
        raise IngestError(
            f"{path}: experts has shape {experts.shape}; expected (tokens >= 2, layers, top_k <= {MAX_TOP_K})."
        )
    if not 1 <= experts.shape[1] <= MAX_LAYERS:
        raise IngestError(f"{path}: {experts.shape[1]} layers; expected 1 to {MAX_LAYERS}.")
    if stream.shape != experts.shape[:1]:
        raise IngestError(
            f"{path}: stream has shape {stream.shape}; expected one number for each of {experts.shape[0]} tokens."
        )
    if experts.min() < 0 or experts.max() >= MAX_EXPERTS:
        raise IngestError(
            f"{path}: expert ids run from {experts.min()} to {experts.max()}; expected 0 to {MAX_EXPERTS - 1}."
        )
    return RoutingTrace(experts, stream, path.name)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IngestError(
                f"{path}: larger than {MAX_BYTES // 2**20} MiB; give counts instead of a trace, or a part."
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise IngestError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise IngestError(f"{path}: not UTF-8 text (byte {error.start}).") from None


def _counts_json(text: str, path: Path, phase: str) -> list[list[float]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{path}: not JSON ({error}); counts are JSON or CSV, traces NPZ or CSV.") from None
    if isinstance(data, dict) and isinstance(data.get("phases"), dict):
        phases = data["phases"]
        if phase not in phases:
            raise IngestError(f"{path}: no phase {phase!r}; {nearest(phase, phases)}")
        data = phases[phase]
    if isinstance(data, dict) and "counts" in data:
        data = data["counts"]
    if isinstance(data, Mapping):
        data = _by_layer(data, path)
    if not isinstance(data, list) or not all(isinstance(row, list) for row in data):
        raise IngestError(f'{path}: expected layers x experts, a list of rows or {{"0": row, ...}} under "counts".')
    try:
        return [[float(x) for x in row] for row in data]
    except (TypeError, ValueError):
        raise IngestError(f"{path}: a count is not a number.") from None


def _by_layer(data: Mapping[str, Any], path: Path) -> list[Any]:
    try:
        numbered = sorted((int(key), row) for key, row in data.items())
    except ValueError:
        raise IngestError(f"{path}: expected layer numbers as keys, got {next(iter(data))!r}.") from None
    return [row for _, row in numbered]


def _counts_csv(text: str, path: Path) -> list[list[float]]:
    rows: list[list[float]] = []
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text)), start=1):
            if not cells:
                continue
            try:
                rows.append([float(cell) for cell in cells])
            except ValueError:
                if number > 1:
                    raise IngestError(f"{path}, line {number}: not a row of numbers; one layer a line.") from None
    except csv.Error as error:
        raise IngestError(f"{path}: not a CSV table ({error}).") from None
    return rows


def _trace_npz(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IngestError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; give a part of the trace.")
        with zipfile.ZipFile(path) as packed:
            if sum(item.file_size for item in packed.infolist()) > 4 * MAX_BYTES:
                raise IngestError(
                    f"{path}: unpacks to more than {4 * MAX_BYTES // 2**20} MiB; give a part of the trace."
                )
        with np.load(path, allow_pickle=False) as arrays:
            if "experts" not in arrays:
                raise IngestError(f"{path}: no array `experts`; {nearest('experts', arrays.files)}")
            experts = _whole(arrays["experts"], "experts", path)
            count = experts.shape[0] if experts.ndim else 0
            stream = _whole(arrays["stream"], "stream", path) if "stream" in arrays else np.zeros(count, dtype=np.int64)
            return experts, stream
    except OSError as error:
        raise IngestError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (zipfile.BadZipFile, ValueError) as error:
        raise IngestError(f"{path}: not an NPZ file of plain arrays ({error}).") from None


def _whole(array: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu":
        raise IngestError(f"{path}: {name} has type {array.dtype}; expected whole numbers.")
    return np.asarray(array, dtype=np.int64)


def _trace_csv(text: str, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or []
    picks = sorted((n for n in names if n.startswith("expert_")), key=lambda n: int(n[7:]) if n[7:].isdigit() else 0)
    if "token" not in names or "layer" not in names or not picks:
        raise IngestError(
            f"{path}: a trace has the columns token, layer, expert_0, expert_1 ...; got {', '.join(names)}."
        )
    chosen: dict[tuple[int, int, int], list[int]] = {}
    for number, cells in enumerate(reader, start=2):
        try:
            key = int(cells.get("stream") or 0), int(cells["token"]), int(cells["layer"])
            chosen[key] = [int(cells[name]) for name in picks]
        except (TypeError, ValueError):
            raise IngestError(f"{path}, line {number}: a cell is not a whole number.") from None
    tokens = sorted({key[:2] for key in chosen})
    layers = sorted({key[2] for key in chosen})
    if len(chosen) != len(tokens) * len(layers):
        missing = next((t, layer) for t in tokens for layer in layers if (*t, layer) not in chosen)
        raise IngestError(f"{path}: token {missing[0][1]} has no layer {missing[1]}; every token needs every layer.")
    experts = np.asarray([[chosen[(*t, layer)] for layer in layers] for t in tokens], dtype=np.int64)
    if not math.prod(experts.shape):
        raise IngestError(f"{path}: the trace is empty.")
    return experts, np.asarray([t[0] for t in tokens], dtype=np.int64)
