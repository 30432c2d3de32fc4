"""Held-out errors as text, JSON, Markdown and HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from twin.fitting.score import Score
from twin.fitting.validation import Summary, Validation, summarise
from twin.report.terminal import console, print_table

_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("held_out", "held-out cells"),
    ("by_source", "one source left out"),
    ("three_cell", "three-cell kit"),
    ("transfer", "transfer (no receipt of the lane)"),
)
_HEADER = ["lane", "question", "n", "step median", "step p90", "tok/s median", "tok/s p90", "90 % covers", "rank right"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _row(lane: str, question: str, s: Summary) -> list[str]:
    return [
        lane,
        question,
        str(s.n),
        _percent(s.step_median),
        _percent(s.step_p90),
        _percent(s.tok_s_median),
        _percent(s.tok_s_p90),
        _percent(s.coverage_90),
        _percent(s.rank_accuracy),
    ]


def _lanes(result: Validation) -> list[str]:
    return sorted({s.cell.receipt.lane for name, _ in _QUESTIONS for s in getattr(result, name)} | set(result.receipts))


def validation_rows(result: Validation) -> list[list[str]]:
    """All lanes together first, then lane by lane; questions without a score are left out."""
    rows = [_row("all", title, summarise(getattr(result, name))) for name, title in _QUESTIONS if getattr(result, name)]
    for lane in _lanes(result):
        for name, title in _QUESTIONS:
            own = [s for s in getattr(result, name) if s.cell.receipt.lane == lane]
            if own:
                rows.append(_row(lane, title, summarise(own)))
    return rows


def validation_dict(result: Validation, skipped: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """The JSON of `twin validate`: errors are absolute relative errors as fractions."""
    lanes = []
    for lane in _lanes(result):
        entry: dict[str, Any] = {
            "lane": lane,
            "receipts": result.receipts.get(lane, 0),
            "fitted_parameters": result.fitted_parameters.get(lane),
        }
        for name, _ in _QUESTIONS:
            entry[name] = asdict(summarise([s for s in getattr(result, name) if s.cell.receipt.lane == lane]))
        lanes.append(entry)
    summary: dict[str, Any] = {name: asdict(summarise(getattr(result, name))) for name, _ in _QUESTIONS}
    summary["by_lane"] = lanes
    return {
        "schema_version": 1,
        "command": "validate",
        "summary": summary,
        "cells": [_cell(s) for s in result.held_out],
        "skipped": [{"id": ident, "reason": reason} for ident, reason in skipped],
    }


def _cell(s: Score) -> dict[str, Any]:
    r = s.cell.receipt
    return {
        "id": r.id, "lane": r.lane, "quantity": r.quantity, "k": r.k, "concurrency": r.concurrency, "measured": r.value, "predicted": s.predicted,
        "p05": s.p05, "p95": s.p95, "relative_error": s.relative_error, "covered": s.covered,
    }  # fmt: skip


def print_validation(result: Validation, skipped: Sequence[tuple[str, str]] = ()) -> None:
    """The tables on a terminal, then the worst cells."""
    out = console()
    print_table("Errors of predictions that no fit had seen", _HEADER, validation_rows(result), left=(0, 1), out=out)
    rows = [_worst(s) for s in sorted(result.held_out, key=lambda s: -abs(s.relative_error))[:10]]
    print_table(
        "The ten worst held-out cells",
        ["receipt", "lane", "quantity", "k", "streams", "measured", "predicted", "error"],
        rows,
        left=(0, 1, 2),
        out=out,
    )
    if skipped:
        out.print(f"{len(skipped)} rows were not scored; the first: {skipped[0][0]}: {skipped[0][1]}")


def _worst(s: Score) -> list[str]:
    r = s.cell.receipt
    return [
        r.id,
        r.lane,
        r.quantity,
        str(r.k),
        str(r.concurrency),
        f"{r.value:,.2f}",
        f"{s.predicted:,.2f}",
        f"{100 * s.relative_error:+.1f} %",
    ]


def _targets(result: Validation) -> list[list[str]]:
    held, kit, moved = (summarise(getattr(result, name)) for name in ("held_out", "three_cell", "transfer"))
    shares = [value / max(1, result.receipts[lane]) for lane, value in result.fitted_parameters.items()]
    most = max(shares, default=None)
    every = sum(result.fitted_parameters.values()) / max(1, sum(result.receipts.values())) if shares else None
    wanted: list[tuple[str, float | None, str, Callable[[float], bool]]] = [
        ("held-out cells: median error of step time at most 4 %", held.step_median, "", lambda v: v <= 0.04),
        ("held-out cells: 90th percentile at most 10 %", held.step_p90, "", lambda v: v <= 0.10),
        ("three-cell kits: median error of step time at most 6 %", kit.step_median, "", lambda v: v <= 0.06),
        ("transfer: median error of step time at most 20 %", moved.step_median, "", lambda v: v <= 0.20),
        (
            "which setting is faster, pairs over 5 % apart: right at least 95 %",
            held.rank_accuracy,
            "",
            lambda v: v >= 0.95,
        ),
        (
            "the same, pairs also further apart than the runs' own noise (no target)",
            held.rank_accuracy_beyond_noise,
            "",
            lambda v: v >= 0.95,
        ),
        ("90 % intervals cover 85 to 95 %", held.coverage_90, "", lambda v: 0.85 <= v <= 0.95),
        ("fitted parameters over receipts, all lanes: below a third", every, "", lambda v: v < 1 / 3),
        ("the same, the lane that comes closest", most, "", lambda v: v < 1 / 3),
    ]
    return [
        [text, _percent(value), "-" if value is None else "reached" if good(value) else "missed"]
        for text, value, _, good in wanted
    ]


def validation_markdown(result: Validation) -> str:
    """docs/fidelity.md: what was reached and what was not, by lane. Written by `twin validate -o docs/fidelity.md`."""
    lines = [
        "# Fidelity",
        "",
        "Written by `twin validate --workers 2 -o docs/fidelity.md --force`. Every error is of receipts that the fit behind it did not see;",
        "`twin validate --json` has every cell.",
        "",
    ]
    lines += _table(["what was asked", "reached", ""], _targets(result))
    fitted, receipts = sum(result.fitted_parameters.values()), sum(result.receipts.values())
    lines += [
        "",
        f"{fitted:.0f} fitted parameters for {receipts} receipts over {len(result.receipts)} lanes (effective numbers: what the receipts determine).",
        "",
        "## By lane",
        "",
    ]
    lines += _table(_HEADER, validation_rows(result))
    lines += ["", "## Fitted parameters", ""]
    lines += _table(
        ["lane", "receipts", "fitted parameters"],
        [
            [lane, str(result.receipts[lane]), f"{value:.1f}"]
            for lane, value in sorted(result.fitted_parameters.items())
        ],
    )
    lines += ["", "## The worst held-out cells", ""]
    lines += _table(
        ["receipt", "lane", "quantity", "k", "streams", "measured", "predicted", "error"],
        [_worst(s) for s in sorted(result.held_out, key=lambda s: -abs(s.relative_error))[:25]],
    )
    lines += ["", "Why they miss is in [fidelity-notes.md](fidelity-notes.md).", ""]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def validation_html(result: Validation) -> str:
    """The same tables as one self-contained page."""

    def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    style = "body{font:15px/1.5 system-ui;margin:2rem auto;max-width:70rem;padding:0 1rem;color-scheme:light dark}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .6rem;border-bottom:1px solid #8884;text-align:left}"
    worst = [_worst(s) for s in sorted(result.held_out, key=lambda s: -abs(s.relative_error))[:25]]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Fidelity</title><style>{style}</style><h1>Fidelity</h1>"
        "<p>Every error is of receipts that the fit behind it did not see.</p>"
        + table(["what was asked", "reached", ""], _targets(result))
        + "<h2>By lane</h2>" + table(_HEADER, validation_rows(result))
        + "<h2>The worst held-out cells</h2>" + table(["receipt", "lane", "quantity", "k", "streams", "measured", "predicted", "error"], worst) + "</html>\n"
    )  # fmt: skip
