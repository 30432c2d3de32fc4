"""Levers on a terminal: the ranking, what goes with what, and the ceiling."""

from __future__ import annotations

from twin.planning.levers import Gain, Levers, Pair
from twin.report.terminal import bar, console, number, print_table

_SHOWN_PAIRS = 6


def print_levers(found: Levers) -> None:
    """Every lever with a realistic step and its limit, pairs that interact, and the roofline."""
    from rich.markup import escape

    out = console()
    out.print(
        f"[bold]{escape(found.title)}[/bold]: {number(found.tok_s_aggregate)} tok/s in all, {number(found.step_ms)} ms a step"
    )
    most = max((g.factor.log for r in found.levers for g in (r.step, r.limit) if g is not None), default=0.0)
    rows = []
    for lever in found.levers:
        step, limit = lever.step, lever.limit
        best = bar(step.factor.log, most, 12) if step is not None else ""
        text = step.text if step is not None else "no such step here"
        rows.append(
            [lever.name, text, *_gain(step), best, limit.text if limit is not None else "", *_gain(limit), lever.cost]
        )
    header = ["lever", "realistic step", "tok/s", "90 %", "", "limit", "tok/s", "90 %", "cost or work"]
    print_table("", header, rows, left=(0, 1, 4, 5, 8), out=out)
    for at, title in (("step", "Realistic steps that interact"), ("limit", "Limits that interact")):
        pairs = [pair for pair in found.pairs if pair.at == at]
        if pairs:
            more = f", the strongest {_SHOWN_PAIRS} of {len(pairs)}" if len(pairs) > _SHOWN_PAIRS else ""
            table = [_pair(pair) for pair in pairs[:_SHOWN_PAIRS]]
            print_table(f"{title}{more}", ["levers", "", "together saves ms", "apart"], table, left=(0, 1), out=out)
    roof = found.roofline
    out.print("[bold]Roofline[/bold]: bytes that must move at the bandwidth achieved, and nothing else")
    reads = [[f"{r.what} ({r.place})", f"{r.gigabytes:.2f}", f"{r.ms:.2f}"] for r in roof.reads]
    print_table("", ["", "GB", "ms"], reads, out=out)
    fraction = f"{100 * roof.fraction.mean:.0f} % ({100 * roof.fraction.p05:.0f} to {100 * roof.fraction.p95:.0f} %)"
    out.print(
        f"Ceiling: {number(roof.step_ms.mean)} ms a step, {number(roof.tok_s_aggregate.mean)} tok/s in all; "
        f"the lane reaches {fraction} of it. {bar(roof.fraction.mean, 1.0, 20)}"
    )
    of_what = "90 % intervals are of the gain (coefficients, routing, acceptance), not of two runs"
    out.print(f"[dim]{of_what}. Seed {found.seed}.[/dim]")
    for warning in found.warnings:
        out.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _gain(gain: Gain | None) -> list[str]:
    if gain is None:
        return ["", ""]
    low, high = (100 * (x - 1) for x in (gain.factor.p05, gain.factor.p95))
    return [f"{100 * (gain.factor.factor - 1):+.1f} %", f"[dim]{low:.1f} to {high:.1f}[/dim]"]


def _pair(pair: Pair) -> list[str]:
    return [f"{pair.first} + {pair.second}", pair.kind, f"{pair.together_ms:.2f}", f"{pair.apart_ms:.2f}"]
