"""What a scenario asks, computed once into a frozen record: cells, curves, explanation, residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twin.fitting.load import read_all, receipt_files
from twin.planning.draws import Draws
from twin.planning.explain import Explanation, explain
from twin.planning.predict import Cell, Interval
from twin.planning.residuals import ResidualRow, residuals
from twin.planning.scenario import Resolved, Scenario, resolve
from twin.routing.batch import draw_experts
from twin.step.coefficients import Values, coefficients
from twin.step.model import routing_parameters, routing_shape

#: Verified tokens of one stream at which the expert union is drawn.
UNION_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Curves:
    """One setting over k and over live streams, and the unique experts of its traffic by tokens in flight."""

    by_k: tuple[Cell, ...]
    by_streams: tuple[Cell, ...]
    union: tuple[Interval, ...]


@dataclass(frozen=True)
class ScenarioResult:
    """Everything a report shows; `explanation` is None for a scenario with one setting."""

    scenario: Scenario
    resolved: tuple[Resolved, ...]
    cells: tuple[Cell, ...]
    curves: tuple[Curves, ...]
    explanation: Explanation | None
    residuals: tuple[ResidualRow, ...]


def run_scenario(
    scenario: Scenario, roots: Sequence[Path], *, tick: Callable[[str], None] = lambda what: None
) -> ScenarioResult:
    """Compute a scenario. `tick` is told what comes next. Raises TwinError."""
    resolved = tuple(resolve(setting, roots, seed=scenario.seed) for setting in scenario.settings)
    curves = []
    for one in resolved:
        tick(one.setting.title)
        curves.append(_curves(one, scenario))
    tick("explanation")
    explanation = explain(resolved[0], resolved[1], seed=scenario.seed) if len(resolved) == 2 else None
    tick("receipts")
    lanes = {one.lane.name: one.lane for one in resolved}
    rows: list[ResidualRow] = []
    if scenario.receipts:
        receipts = [r for r in read_all(receipt_files(roots)) if r.lane in lanes]
        rows = residuals(receipts, roots)
    cells = tuple(one.cell for one in resolved)
    return ScenarioResult(scenario, resolved, cells, tuple(curves), explanation, tuple(rows))


def _curves(one: Resolved, scenario: Scenario) -> Curves:
    ks = sorted(set(scenario.ks)) if one.lane.checkpoint.draft is not None else [0]
    by_k = tuple(one.others(k=k) for k in ks)
    by_streams = tuple(one.others(concurrency=streams) for streams in sorted(set(scenario.streams)))
    draws = Draws(scenario.seed, 300)
    shape = routing_shape(one.lane)
    values = Values(coefficients(one.lane), draws.factors(one.lane, one.predictor.calibration))
    parameters = routing_parameters(one.lane, one.predictor.traffic, values)
    noise = draws.noise(shape.layers)
    union = []
    for tokens in UNION_TOKENS:
        drawn = draw_experts(
            shape, parameters, streams=1, accepted_rows=float(tokens), rejected_rows=0.0, cold_experts=0, noise=noise
        )
        union.append(Interval.of(drawn.unique.mean(axis=0)))
    return Curves(by_k, by_streams, tuple(union))
