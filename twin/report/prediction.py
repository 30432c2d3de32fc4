"""A prediction as a table and as CSV."""

from __future__ import annotations

import csv
import io

from twin.planning.predict import Cell, Interval, Prediction
from twin.report.terminal import bar, console, number, print_table

_QUANTITIES = (
    "tokens_per_step", "step_ms", "tok_s_per_stream", "tok_s_aggregate", "unique_experts_per_layer", "cold_experts_per_layer", "ttft_ms", "prefill_tok_s",
)  # fmt: skip
_LABELS = {
    "attention": "attention", "dense": "dense weights", "experts": "experts", "sidecar_exposed": "sidecar, waited for",
    "all_reduce_exposed": "all-reduce, waited for", "launch": "small kernels", "draft": "draft", "sampling": "head and sampling", "other": "host gap, Engram",
}  # fmt: skip


def _interval(value: Interval, digits: int = 3) -> str:
    return f"{number(value.mean, digits)} [dim]({number(value.p05, digits)}-{number(value.p95, digits)})[/dim]"


def print_prediction(prediction: Prediction, title: str) -> None:
    """The answer: a row a cell, then where the time goes, then warnings and where the numbers come from."""
    out = console()
    out.print(f"[bold]{prediction.lane}[/bold]  {title}")
    first = prediction.cells[0]
    out.print(
        f"[dim]{prediction.checkpoint}, {prediction.engine}; {first.traffic} traffic, {first.context_tokens:,} tokens of context, {first.verification} verification[/dim]"
    )
    rows = [
        [
            str(cell.concurrency), str(cell.k), _interval(cell.step_ms), _interval(cell.tokens_per_step), _interval(cell.tok_s_per_stream),
            _interval(cell.tok_s_aggregate), number(cell.unique_experts_per_layer.mean), number(cell.cold_experts_per_layer.mean), number(cell.ttft_ms.mean),
        ]
        for cell in prediction.cells
    ]  # fmt: skip
    header = ["streams", "k", "step ms", "tokens/step", "tok/s a stream", "tok/s in all", "experts", "cold", "TTFT ms"]
    print_table("", header, rows, left=(), out=out)
    _print_breakdown(prediction.cells, out)
    _print_footer(prediction, out)


def _print_breakdown(cells: tuple[Cell, ...], out) -> None:  # type: ignore[no-untyped-def]
    cell = cells[0]
    whole = cell.step_ms.mean
    out.print(
        f"[bold]Where a step goes[/bold] ({cell.concurrency} stream{'s' if cell.concurrency > 1 else ''}, k = {cell.k}: {number(whole)} ms)"
    )
    for name, value in sorted(cell.breakdown_ms.items(), key=lambda item: -item[1]):
        if value > 0:
            out.print(f"  {_LABELS[name]:<24}{value:7.2f} ms {100 * value / whole:5.1f} %  {bar(value, whole)}")


def _print_footer(prediction: Prediction, out) -> None:  # type: ignore[no-untyped-def]
    calibration = prediction.calibration
    where = f"calibration {calibration['name']!r}: {calibration['fitted_parameters']:.1f} fitted parameters, {calibration['receipts']} receipts"
    out.print(f"\n[dim]In brackets: 90 % interval of what a run would measure. {where}. Seed {prediction.seed}.[/dim]")
    seen: dict[str, list[int]] = {}
    for cell in prediction.cells:
        for warning in cell.warnings:
            seen.setdefault(warning, []).append(cell.concurrency)
    for warning, streams in seen.items():
        where = (
            ""
            if len(streams) == len(prediction.cells)
            else f" (at {', '.join(map(str, streams[:8]))}{' ...' if len(streams) > 8 else ''} streams)"
        )
        out.print(f"[yellow]warning:[/yellow] {warning}{where}")


def prediction_csv(prediction: Prediction) -> str:
    """One row a cell: settings, every quantity with its quantiles, the breakdown, warnings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    settings = ["k", "concurrency", "traffic", "verification", "context_tokens"]
    quantiles = ["mean", "p05", "p50", "p95"]
    parts = list(prediction.cells[0].breakdown_ms)
    writer.writerow(
        [
            "lane",
            *settings,
            *(f"{q}_{p}" for q in _QUANTITIES for p in quantiles),
            *(f"breakdown_ms_{p}" for p in parts),
            "warnings",
        ]
    )
    for cell in prediction.cells:
        values = [f"{getattr(getattr(cell, q), p):.6g}" for q in _QUANTITIES for p in quantiles]
        breakdown = [f"{cell.breakdown_ms[p]:.6g}" for p in parts]
        writer.writerow(
            [prediction.lane, *(getattr(cell, s) for s in settings), *values, *breakdown, " | ".join(cell.warnings)]
        )
    return text.getvalue()
