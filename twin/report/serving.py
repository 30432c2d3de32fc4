"""Serving results and plans for people: tables and a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twin.report.terminal import console, number, print_table
from twin.serving.result import ServingResult
from twin.serving.stats import Summary

if TYPE_CHECKING:
    from twin.planning.plan import Plan, PlannedOption
    from twin.planning.replications import Spread

_ROWS = (
    ("TTFT", "ttft_s"),
    ("TPOT", "tpot_s"),
    ("chunk gap", "itl_s"),
    ("end to end", "e2e_s"),
    ("queueing", "queue_s"),
)


def _ms(value: float | None) -> str:
    return "" if value is None else number(value * 1e3)


def _cells(summary: Summary) -> list[str]:
    mean = _ms(summary.mean) + (f" ± {_ms(summary.ci95)}" if summary.ci95 is not None else "")
    return [mean, *(_ms(v) for v in (summary.p50, summary.p90, summary.p95, summary.p99, summary.max))]


def print_result(result: ServingResult, title: str) -> None:
    """Latencies in ms, then rates, occupancy and warnings."""
    out = console()
    out.print(f"[bold]{title}[/bold]")
    counts = result.requests
    ended = {n: getattr(counts, n) for n in ("cancelled", "refused", "failed", "unfinished") if getattr(counts, n)}
    others = "".join(f", {n} {name}" for name, n in ended.items())
    out.print(f"{counts.arrived:,} requests in {result.duration_s:,.1f} s: {counts.finished:,} finished{others}")
    rows = [[label, *_cells(getattr(result, name))] for label, name in _ROWS]
    for c in result.classes:
        rows += [[f"{c.name}: {label}", *_cells(getattr(c, name))] for label, name in _ROWS[:2]]
    print_table("", ["ms", "mean", "p50", "p90", "p95", "p99", "max"], rows, out=out)
    interval = f" ± {number(result.output_tok_s_ci95)}" if result.output_tok_s_ci95 is not None else ""
    prompts = number(result.prompt_tok_s, 4)
    out.print(f"output {number(result.output_tok_s, 4)}{interval} tok/s, prompts {prompts} tok/s computed")
    out.print(
        f"arrivals {number(result.offered_per_s)} a second, finished {number(result.finished_per_s)}; "
        f"busy {100 * result.utilisation:.1f} %, {number(result.streams)} streams, {number(result.waiting)} waiting"
    )
    out.print(
        f"KV {100 * result.kv_mean:.2g} % of capacity, at most {100 * result.kv_peak:.2g} %; "
        f"{result.preemptions} preemptions"
    )
    if result.cache is not None and result.cache.hit_rate > 0:
        hits, host = 100 * result.cache.hit_rate, 100 * result.cache.host_hit_rate
        out.print(f"prefix cache: {hits:.1f} % of prompt tokens, {host:.1f} % from the host tier")
    if result.goodput is not None:
        good = result.goodput
        rates = f"{number(good.requests_per_s)} requests a second, {number(good.output_tok_s)} tok/s"
        out.print(f"goodput {100 * good.fraction:.1f} %: {rates}")
    start_s, stop_s = result.window_s
    out.print(
        f"[dim]measured from {start_s:.1f} to {stop_s:.1f} s, {result.steps:,} steps simulated; "
        f"± is a 95 % interval (batch means); seed {result.seed}[/dim]"
    )
    for warning in result.warnings:
        out.print(f"[yellow]warning:[/yellow] {warning}")


def print_replications(spreads: Sequence[Spread], runs: int) -> None:
    """Means over independent runs with their 95 % interval, latencies in ms."""
    rows = []
    for s in spreads:
        scale = 1e3 if "_s." in s.metric else 1.0
        half = f" ± {number(scale * s.half_width)}" if s.half_width is not None else ""
        name = s.metric.replace("_s.", " ms, ").replace(".", " ")
        rows.append([name, f"{number(scale * s.mean)}{half}", number(scale * s.least), number(scale * s.most)])
    print_table(f"{runs} independent runs, lane and traffic drawn anew", ["", "mean", "least", "most"], rows)


def print_plan(plan: Plan) -> None:
    """The ranking, then tok/s per user against tok/s per box, then warnings."""
    out = console()
    out.print("[bold]" + ", ".join(c.text() for c in plan.slo) + "[/bold]")
    rows = [[str(i), *_option_cells(option)] for i, option in enumerate(plan.options, start=1)]
    unit = plan.options[0].capacity.unit if plan.options else "load"
    header = ["", "option", f"largest {unit}", "tok/s", "limited by", "USD", "W", "USD / M tokens"]
    if plan.target is not None:
        header.append(f"replicas for {plan.target:g}")
        rows = [[*row, _count(o.replicas)] for row, o in zip(rows, plan.options, strict=True)]
    print_table("", header, rows, left=(1, 4), out=out)
    points = [p for o in plan.options for p in o.pareto]
    if points:
        table = [
            [
                p.option,
                str(p.users),
                number(p.tok_s_per_user),
                number(p.tok_s_per_box),
                number(p.ttft_s * 1e3),
                "*" * p.front,
            ]
            for p in points
        ]
        print_table(
            "tok/s per user and per box (* nobody is better in both)",
            ["option", "users", "per user", "per box", "TTFT ms", ""],
            table,
            left=(0,),
            out=out,
        )
    out.print(
        "[dim]± is a 95 % interval over replications: arrivals, lengths, acceptance, the lane's own uncertainty.[/dim]"
    )
    for name, reason in plan.refused:
        out.print(f"[yellow]left out:[/yellow] {name}: {reason}")
    if plan.interrupted:
        out.print("[yellow]interrupted:[/yellow] the options above are done, the others are not.")
    said: dict[str, list[str]] = {}
    for option in plan.options:
        for warning in option.warnings:
            said.setdefault(warning, []).append(option.name)
    for warning, names in said.items():
        where = "" if len(names) == len(plan.options) else f"{', '.join(names)}: "
        out.print(f"[yellow]warning:[/yellow] {where}{warning}")


def _option_cells(option: PlannedOption) -> list[str]:
    found, cost = option.capacity, option.cost
    interval = f" ± {number(found.half_width)}" if found.half_width is not None else ""
    load = f"{number(found.load)}{interval}" if found.load > 0 else "none"
    tok_s = number(found.at_load.output_tok_s, 4) if found.at_load is not None else ""
    return [
        option.name, load, tok_s, ", ".join(found.limited_by[:2]), _money(cost.purchase_usd), _money(cost.power_w),
        "" if cost.usd_per_million_tokens is None else number(cost.usd_per_million_tokens),
    ]  # fmt: skip


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _count(value: int | None) -> str:
    return "none" if value is None else str(value)
