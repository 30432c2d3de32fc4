"""`twin report`: a scenario's result as one page: answer, tables, plots, assumptions, sources, versions."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from twin import __version__
from twin.planning.explain import Part
from twin.planning.predict import Cell, Interval
from twin.planning.residuals import ResidualRow
from twin.planning.scenario import command_line
from twin.planning.scenario_result import UNION_TOKENS, ScenarioResult
from twin.report import html, plots
from twin.report.catalogue import value_rows
from twin.report.figure import inline_svg
from twin.report.terminal import number
from twin.report.waterfall import label, sentences
from twin.step.model import routing_shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Receipts in the residual plot; the table has them all.
MOST_DRAWN = 80


def report_html(result: ScenarioResult) -> str:
    """The page, under 3 MB, that needs nothing but itself."""
    scenario = result.scenario
    answer = _answer(result)
    body = [html.heading(scenario.title, 1)]
    if scenario.question:
        body.append(html.paragraph(scenario.question, "question"))
    body += [html.paragraph(answer[0], "answer"), *(html.paragraph(line) for line in answer[1:])]
    warnings = dict.fromkeys(w for cell in result.cells for w in cell.warnings)
    body += [html.paragraph(f"Warning: {text}", "warning") for text in warnings]
    body += [html.heading("The settings"), _settings_table(result), html.heading("Where a step goes"), *_step(result)]
    body += [
        html.heading("Throughput"),
        *_throughput(result),
        html.heading("What the model rests on"),
        *_evidence(result),
    ]
    body += [html.heading("Sources and reproduction"), *_sources(result)]
    if scenario.notes:
        body += [html.heading("Notes"), html.paragraph(scenario.notes)]
    return html.page(scenario.title, body)


def _answer(result: ScenarioResult) -> list[str]:
    if result.explanation is not None:
        return sentences(result.explanation)
    cell, one = result.cells[0], result.resolved[0]
    streams = f"{cell.concurrency} live stream{'s' if cell.concurrency > 1 else ''}"
    return [
        f"{one.setting.title} makes {_interval(cell.tok_s_aggregate)} tok/s with {streams}: "
        f"{_interval(cell.tokens_per_step)} tokens kept of a step that takes {_interval(cell.step_ms)} ms."
    ]


def _interval(value: Interval) -> str:
    return f"{number(value.mean)} ({number(value.p05)} to {number(value.p95)})"


def _settings_table(result: ScenarioResult) -> str:
    def line(name: str, text: Callable[[Cell], str]) -> list[str]:
        return [name, *(text(cell) for cell in result.cells)]

    rows = [
        ["lane", *(f"{one.lane.name}: {one.lane.title}" for one in result.resolved)],
        line("k, verification", lambda c: f"{c.k}, {c.verification}"),
        line("traffic, context", lambda c: f"{c.traffic}, {c.context_tokens:,} tokens"),
        line("live streams", lambda c: str(c.concurrency)),
        line("tokens per step", lambda c: _interval(c.tokens_per_step)),
        line("step, ms", lambda c: _interval(c.step_ms)),
        line("tok/s of a stream", lambda c: _interval(c.tok_s_per_stream)),
        line("tok/s of all streams", lambda c: _interval(c.tok_s_aggregate)),
        line("unique experts a layer", lambda c: _interval(c.unique_experts_per_layer)),
        line("of them cold", lambda c: _interval(c.cold_experts_per_layer)),
        line("time to first token, ms", lambda c: _interval(c.ttft_ms)),
        ["what-ifs", *("; ".join(one.setting.overrides) or "none" for one in result.resolved)],
    ]
    header = ["", *(one.setting.title for one in result.resolved)]
    return html.table("Predictions with 90 % intervals of what a run would measure", header, rows)


def _names(result: ScenarioResult) -> list[str]:
    return [one.setting.title for one in result.resolved]


def _drawn(figure: Figure, name: str, caption: str) -> str:
    return html.figure(inline_svg(figure, name, caption), caption)


def _step(result: ScenarioResult) -> list[str]:
    bars = list(zip(_names(result), result.cells, strict=True))
    found = [_drawn(plots.step_breakdown(bars), "breakdown", "A step by mechanism, in ms; parts add up to the step.")]
    if result.explanation is None:
        return found
    e = result.explanation
    found.append(_drawn(plots.waterfall(e), "waterfall", f"From the step of {e.a.title} to the step of {e.b.title}."))
    rows = [_part(part) for part in e.parts]
    header = ["", f"{e.a.title}, ms", f"{e.b.title}, ms", "change, ms", "factor on steps per second"]
    caption = "Shapley value of each mechanism: changes add up, factors multiply to the whole"
    return [*found, html.table(caption, header, rows)]


def _part(part: Part) -> list[str]:
    change = f"{part.difference_ms:+.2f} ({part.difference_ms_p05:+.2f} to {part.difference_ms_p95:+.2f})"
    factor = f"{part.factor.factor:.3f} ({part.factor.p05:.3f} to {part.factor.p95:.3f})"
    return [label(part.mechanism), number(part.a_ms), number(part.b_ms), change, factor]


def _throughput(result: ScenarioResult) -> list[str]:
    names = _names(result)
    by_k = [(name, curves.by_k) for name, curves in zip(names, result.curves, strict=True)]
    by_streams = [(name, curves.by_streams) for name, curves in zip(names, result.curves, strict=True)]
    rows = [
        [name, str(c.concurrency), str(c.k), *map(_interval, (c.tok_s_per_stream, c.tok_s_aggregate, c.step_ms))]
        for name, cells in by_streams
        for c in cells
    ]
    header = ["", "streams", "k", "tok/s of a stream", "tok/s of all", "step, ms"]
    streams_caption = "tok/s of all streams against live streams; bands are 90 % intervals."
    return [
        _drawn(plots.throughput_against_k(by_k), "by-k", "tok/s of a stream against k; bands are 90 % intervals."),
        _drawn(plots.throughput_against_streams(by_streams), "by-streams", streams_caption),
        _drawn(plots.pareto(by_streams), "pareto", "What a user gets against what the box gives, by live streams."),
        html.details("The numbers behind the plots", html.table("Throughput by live streams", header, rows)),
    ]


def _evidence(result: ScenarioResult) -> list[str]:
    found = [*_receipts(result.residuals)] if result.residuals else []
    names = _names(result)
    shape = routing_shape(result.resolved[0].lane)
    uniform = [shape.experts * (1 - (1 - shape.top_k / shape.experts) ** tokens) for tokens in UNION_TOKENS]
    union = {
        one.predictor.traffic.name: (one.predictor.traffic.name, UNION_TOKENS, curves.union)
        for one, curves in zip(result.resolved, result.curves, strict=True)
    }
    caption = "Unique experts a layer that one stream's block touches, by verified tokens."
    found.append(_drawn(plots.union_curve(list(union.values()), uniform), "union", caption))
    accepted = [
        (name, one.predictor.acceptance(one.request.k, one.request.verification))
        for name, one in zip(names, result.resolved, strict=True)
        if one.request.k > 0
    ]
    if accepted:
        caption = "Acceptance by position in the draft block."
        found.append(_drawn(plots.acceptance_curves(accepted), "acceptance", caption))
    return found


def _receipts(rows: Sequence[ResidualRow]) -> list[str]:
    unseen = sum(not row.in_fit for row in rows)
    caption = (
        f"{len(rows)} receipts of these lanes, {unseen} of them not in the fit; bars are 90 % intervals of a repeat. "
        "A receipt in the fit is a residual, no test of the model."
    )
    header = ["receipt", "quantity", "measured", "predicted", "error", "in the fit", "source"]
    table = html.table("Receipts against the model", header, [_receipt(row) for row in rows], left=(1, 6))
    return [_drawn(plots.residuals(rows[:MOST_DRAWN]), "residuals", caption), html.details("Receipts", table)]


def _receipt(row: ResidualRow) -> list[str]:
    predicted = f"{number(row.predicted, 4)} ({number(row.p05)} to {number(row.p95)})"
    cells = [row.id, f"{row.lane} {row.quantity}", f"{number(row.measured, 4)} {row.unit}", predicted]
    return [*cells, f"{100 * row.error:+.1f} %", "yes" if row.in_fit else "no", row.source]


def _sources(result: ScenarioResult) -> list[str]:
    found = [html.preformatted(command_line(result.scenario.settings, result.scenario.seed))]
    for lane in {one.lane.name: one.lane for one in result.resolved}.values():
        rows = [list(row) for row in value_rows(lane) if row[2]]
        assumed = [row for row in rows if row[2] == "assumed"]
        header = ["value", "", "kind", "source"]
        found.append(html.table(f"{lane.name}: what nobody has measured yet", header, assumed, left=(1, 2, 3)))
        every = html.table(f"{lane.name}: all values", header, rows, left=(1, 2, 3))
        found.append(html.details(f"Every catalogue value of {lane.name} with its source ({len(rows)})", every))
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    facts = [f"{versions}; seed {result.scenario.seed}."]
    for one in result.resolved:
        made = one.prediction
        c = made.calibration
        facts.append(
            f"{one.setting.title}: lane sha256 {made.lane_sha256[:16]}, calibration {c['name']!r} "
            f"({c['receipts']} receipts, {c['fitted_parameters']:.1f} fitted parameters, "
            f"sha256 {str(c['sha256'])[:16] or 'none'})."
        )
    return found + [html.paragraph(text) for text in facts]


def _versions() -> dict[str, str]:
    import matplotlib

    made = {"twin": __version__, "Python": platform.python_version()}
    return made | {"NumPy": np.__version__, "Matplotlib": matplotlib.__version__}
