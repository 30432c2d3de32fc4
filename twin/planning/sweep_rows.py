"""The rows of a sweep's cells: what a worker computes, the steps of many cells side by side on the sample axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.errors import TwinError
from twin.lane.capacity import kv_tokens
from twin.planning.grid import Design, Point
from twin.planning.predict import Array, CellRequest, Predictor, quantiles
from twin.planning.sweep_inputs import Inputs, WrongFiles, predictor_of
from twin.step.builders import build_step_graph
from twin.step.fast import BLOCK, step_times
from twin.step.graph import StepGraph

METRICS = ("tokens_per_step", "step_ms", "tok_s_per_stream", "tok_s_aggregate", "ttft_ms")
_PLAIN = ("unique_experts_per_layer", "cold_experts_per_layer")


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


@dataclass(frozen=True, slots=True)
class _Prepared:
    index: int
    point: Point
    request: CellRequest
    predictor: Predictor
    graph: StepGraph
    durations: dict[str, Array]
    experts: tuple[float, float]


def rows_of(points: Sequence[Point], inputs: Inputs) -> list[dict[str, Any]]:
    """One row a point, in their order; a cell that cannot be is a row that says why.

    Raises CatalogueError when this machine's files are not those of `inputs`.
    """
    rows: list[dict[str, Any] | None] = [None] * len(points)
    groups: dict[StepGraph, list[_Prepared]] = {}
    for index, point in enumerate(points):
        try:
            prepared = _prepare(index, point, inputs)
        except WrongFiles:
            raise
        except TwinError as error:
            rows[index] = _head(point, None) | {"refused": str(error)}
            continue
        group = groups.setdefault(prepared.graph, [])
        group.append(prepared)
        if len(group) * inputs.samples >= BLOCK:
            _finish(groups.pop(prepared.graph), rows)
    for group in groups.values():
        _finish(group, rows)
    return [row for row in rows if row is not None]


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


def _short(value: float) -> float:
    """Seven significant digits: more than any lane repeats, and the same text on machines whose last bits differ."""
    return float(f"{value:.7g}")
