"""`twin sweep`: many cells at the cost of few. Cells come in chunks; a chunk is computed alone, anywhere, to the same bytes.

What cells share is done once: a lane with its what-ifs, posterior draws and noise (common random numbers), acceptance by k,
and the engine runs the steps of many cells at once, side by side on the sample axis. At equal `samples` a cell's numbers
are those of `twin predict`; a sweep takes fewer samples, and docs/performance.md says what that costs in precision.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from twin import __version__
from twin.acceptance.traffic import TrafficClass, load_traffic
from twin.errors import CatalogueError, TwinError
from twin.fitting.calibration import Calibration, find_calibration, load_calibration
from twin.lane.capacity import kv_tokens, require_fit
from twin.lane.catalogue import lane_sha256, load_lane
from twin.lane.override import override
from twin.planning.grid import Design, Point
from twin.planning.predict import Array, CellRequest, Predictor, quantiles
from twin.planning.requests import cell_requests
from twin.planning.store import ChunkStore, content_key
from twin.step.builders import build_step_graph
from twin.step.coefficients import coefficients
from twin.step.fast import BLOCK, step_times
from twin.step.graph import StepGraph
from twin.workers import done, worker_failures_explained

FORMAT = 1
#: Draws a cell: means are then within 0.3 % and the width of a 90 % interval within 7 % (medians, docs/performance.md).
SAMPLES = 128
CHUNK_CELLS = 256
METRICS = ("tokens_per_step", "step_ms", "tok_s_per_stream", "tok_s_aggregate", "ttft_ms")
_PLAIN = ("unique_experts_per_layer", "cold_experts_per_layer")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a sweep is computed from: names and folders, and the hashes of what they held when it was planned."""

    roots: tuple[str, ...]
    calibration: str | None
    seed: int
    samples: int
    sha256: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive points of a design."""

    points: tuple[Point, ...]
    inputs: Inputs

    @property
    def key(self) -> str:
        """Content hash of everything the rows depend on."""
        inputs = asdict(self.inputs)
        del inputs["roots"]  # where a file lies does not matter, its hash does
        return content_key([FORMAT, __version__, inputs, [asdict(p) for p in self.points]])


def columns(design: Design) -> list[str]:
    """The columns of a row, in order."""
    settings = [a.key for a in design.axes if "." in a.key]
    metrics = [name for m in METRICS for name in (m, f"{m}_p05", f"{m}_p95")]
    return [
        "lane",
        *settings,
        "traffic",
        "verification",
        "context_tokens",
        "k",
        "streams",
        *metrics,
        *_PLAIN,
        "fits_memory",
        "in_range",
        "refused",
    ]


def plan_inputs(design: Design, roots: Sequence[Path], *, calibration: str | None, seed: int, samples: int) -> Inputs:
    """Look up everything once: names that do not exist are refused before anything is computed. Raises TwinError."""
    folders = tuple(str(r) for r in roots)
    sha256: dict[str, str] = {}
    classes = [v for a in design.axes if a.key == "traffic" for v in a.values]
    for name in design.lanes:
        lane = load_lane(name, roots)
        sha256[f"lane {name}"] = lane_sha256(lane)
        sha256[f"calibration {name}"] = _calibration(name, folders, calibration)[1]
        for axis in design.axes:
            if "." in axis.key:
                _require_key(name, f"{axis.key}={axis.values[0]}", roots)
        for traffic in classes or [lane.policy.traffic]:
            sha256[f"traffic {traffic}"] = content_key(_traffic(traffic, folders).model_dump(mode="json"))
    return Inputs(folders, calibration, seed, samples, tuple(sorted(sha256.items())))


def _require_key(lane: str, setting: str, roots: Sequence[Path]) -> None:
    try:
        override(load_lane(lane, roots), [setting])
    except CatalogueError as error:
        # A value that cannot be is a refused cell; a key that cannot be is a mistake.
        if "no such key" in str(error) or "is a list or a table" in str(error):
            raise CatalogueError(str(error).replace("--set", "--grid")) from None


def chunks(design: Design, inputs: Inputs) -> Iterator[Chunk]:
    """The design in chunks that do not depend on who computes them."""
    points = iter(design)
    while some := tuple(islice(points, CHUNK_CELLS)):
        yield Chunk(some, inputs)


def run(
    design: Design,
    inputs: Inputs,
    executor: Executor,
    *,
    store: ChunkStore | None = None,
    ahead: int = 1,
    said: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Rows as JSON Lines, one chunk at a time in the design's order; at most `ahead` chunks are in flight.

    Chunks in `store` are taken from there, new ones are put there, also those that were done when the run was interrupted.
    """
    waiting: deque[tuple[Chunk, str, Future[bytes]]] = deque()

    def finish(chunk: Chunk, key: str, future: Future[bytes]) -> bytes:
        body = future.result()
        if store is not None and key:
            store.put(key, body)
        if said is not None:
            said(len(chunk.points))
        return body

    kept = (
        "what was done is kept, run the same command again to go on."
        if store
        else "give --store DIR to keep what is done."
    )
    try:
        with worker_failures_explained(kept):
            for chunk in chunks(design, inputs):
                key = chunk.key if store is not None else ""
                known = store.get(key) if store is not None else None
                waiting.append(
                    (chunk, "", done(known)) if known is not None else (chunk, key, executor.submit(evaluate, chunk))
                )
                if len(waiting) >= ahead:
                    yield finish(*waiting.popleft())
            while waiting:
                yield finish(*waiting.popleft())
    finally:
        for _, _, future in waiting:
            future.cancel()
        for chunk, key, future in waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                finish(chunk, key, future)


def evaluate(chunk: Chunk) -> bytes:
    """The rows of one chunk as JSON Lines: what a worker does. Raises CatalogueError when its files are not the planner's."""
    rows: list[dict[str, Any] | None] = [None] * len(chunk.points)
    groups: dict[StepGraph, list[_Prepared]] = {}
    for index, point in enumerate(chunk.points):
        try:
            prepared = _prepare(index, point, chunk.inputs)
        except _WrongFiles:
            raise
        except TwinError as error:
            rows[index] = _head(point, None) | {"refused": str(error)}
            continue
        group = groups.setdefault(prepared.graph, [])
        group.append(prepared)
        if len(group) * chunk.inputs.samples >= BLOCK:
            _finish(groups.pop(prepared.graph), rows)
    for group in groups.values():
        _finish(group, rows)
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


class _WrongFiles(CatalogueError):
    """A worker's catalogue is not the one the sweep was planned with."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    index: int
    point: Point
    request: CellRequest
    predictor: Predictor
    graph: StepGraph
    durations: dict[str, Array]
    experts: tuple[float, float]


def predictor_of(point: Point, inputs: Inputs) -> tuple[Predictor, CellRequest]:
    """The predictor and the request of one cell. Raises TwinError when the cell cannot be."""
    predictor = _predictor(point.lane, point.overrides, point.traffic, inputs)
    (request,) = cell_requests(
        predictor.lane, k=point.k, schedule=None, concurrency=[point.streams], verification=point.verification,
        context_tokens=point.context_tokens,
    )  # fmt: skip
    return predictor, request


def _prepare(index: int, point: Point, inputs: Inputs) -> _Prepared:
    predictor, request = predictor_of(point, inputs)
    graph = build_step_graph(predictor.lane, request.k)
    experts, durations = predictor.resolve(request)
    return _Prepared(
        index,
        point,
        request,
        predictor,
        graph,
        durations,
        (float(np.mean(experts.unique)), float(np.mean(experts.cold))),
    )


def _finish(group: list[_Prepared], rows: list[dict[str, Any] | None]) -> None:
    """Step times of all cells of the group at once, then their rows."""
    names = {op.cost for op in group[0].graph.ops}
    side_by_side = {
        n: np.concatenate([p.durations[n] for p in group], axis=-1) if len(group) > 1 else group[0].durations[n]
        for n in names
    }
    step_s = step_times(group[0].graph, side_by_side).reshape(len(group), -1)
    drawn = np.empty((len(group), len(METRICS), step_s.shape[-1]))
    for values, prepared, step in zip(drawn, group, step_s, strict=True):
        kept = prepared.predictor.kept(prepared.request)
        step = step * prepared.predictor.run_factor
        per_stream = kept / step
        values[:] = (
            kept,
            step * 1e3,
            per_stream,
            per_stream * prepared.request.concurrency,
            prepared.predictor.first_token_s(prepared.request) * 1e3,
        )
    low, high = quantiles(drawn, (0.05, 0.95))
    for prepared, *numbers in zip(group, drawn.mean(axis=-1).tolist(), low.tolist(), high.tolist(), strict=True):
        row = _head(prepared.point, prepared)
        for name, mean, p05, p95 in zip(METRICS, *numbers, strict=True):
            row |= {name: _short(mean), f"{name}_p05": _short(p05), f"{name}_p95": _short(p95)}
        row |= dict(zip(_PLAIN, map(_short, prepared.experts), strict=True))
        predictor, request = prepared.predictor, prepared.request
        row["fits_memory"] = request.concurrency * request.context_tokens <= kv_tokens(predictor.lane)
        row["in_range"] = predictor.in_range(request)
        row["refused"] = ""
        rows[prepared.index] = row


def _head(point: Point, prepared: _Prepared | None) -> dict[str, Any]:
    row: dict[str, Any] = {"lane": point.lane} | dict(setting.split("=", 1) for setting in point.overrides)
    traffic, rule, k = point.traffic, point.verification, point.k
    if prepared is not None:
        traffic, rule, k = prepared.predictor.traffic.name, prepared.request.verification, prepared.request.k
    return row | {
        "traffic": traffic,
        "verification": rule,
        "context_tokens": point.context_tokens,
        "k": k,
        "streams": point.streams,
    }


@lru_cache(maxsize=32)
def _predictor(lane_name: str, overrides: tuple[str, ...], traffic: str | None, inputs: Inputs) -> Predictor:
    roots = tuple(Path(r) for r in inputs.roots)
    plain = load_lane(lane_name, roots)
    if not overrides and dict(inputs.sha256)[f"lane {lane_name}"] != lane_sha256(plain):
        raise _WrongFiles(
            f"lane {lane_name!r}: this worker's catalogue differs from the one of the sweep; give every machine the same files."
        )
    lane = override(plain, overrides)
    require_fit(lane)
    calibration, sha256 = _calibration(lane_name, inputs.roots, inputs.calibration)
    if sha256 != dict(inputs.sha256)[f"calibration {lane_name}"]:
        raise _WrongFiles(
            f"lane {lane_name!r}: this worker's calibration differs from the one of the sweep; give every machine the same files."
        )
    found = _traffic(traffic or lane.policy.traffic, inputs.roots)
    return Predictor(lane, found, calibration, calibration_sha256=sha256, seed=inputs.seed, samples=inputs.samples)


@lru_cache(maxsize=64)
def _calibration(lane_name: str, folders: tuple[str, ...], given: str | None) -> tuple[Calibration, str]:
    roots = tuple(Path(f) for f in folders)
    lane = load_lane(lane_name, roots)
    name = given or lane.calibration or lane.name
    if given is None and find_calibration(name, roots) is None:
        name = "priors"
    return load_calibration(name, lane_name, coefficients(lane), roots)


@lru_cache(maxsize=64)
def _traffic(name: str, folders: tuple[str, ...]) -> TrafficClass:
    return load_traffic(name, tuple(Path(f) for f in folders))


def _short(value: float) -> float:
    """Seven significant digits: more than any lane repeats, and the same text on machines whose last bits differ."""
    return float(f"{value:.7g}")
