"""`twin acceptance`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.acceptance.model import Acceptance

#: 90 % of a normal lies within this many standard deviations.
_Z90 = 1.645


@click.command("acceptance")
@click.option("--traffic", "name", required=True, metavar="NAME", help="Traffic class; `twin traffic list` lists them.")
@click.option("--k", "ks", default="1..9", show_default=True, metavar="LIST", help="Block lengths: 5, 1,3,5 or 1..9.")
@click.option("--verification", default="token,block", show_default=True, metavar="RULES", help="token, block, greedy.")
@click.option("--trained-block", type=click.IntRange(1, 64), help="Longest block the draft head was trained on.")
@click.option("--checkpoint", default="deepseek-v4.1-flash", show_default=True, help="Gives the trained block.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw to this file (.svg, .png, .pdf).")
@click.option("--force", is_flag=True, help="Replace the file of --plot.")
@options.catalogue
@options.as_json
def command(
    name: str, ks: str, verification: str, trained_block: int | None, checkpoint: str, plot: Path | None,
    force: bool, catalogue: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Tokens per step (bonus included) with 90 % intervals, survival and conditional by position, rule against rule.

    An interval is for the mean of the class: counts or the file's own error, conversion of the rule, distance to the
    measured k. Survival: the first p drafts all kept. Conditional: draft p kept given the p - 1 before it.
    """
    from twin.acceptance.model import RULES, resolve_acceptance
    from twin.acceptance.traffic import load_traffic
    from twin.errors import PolicyError, nearest
    from twin.lane.catalogue import catalogue_roots

    roots = catalogue_roots(catalogue)
    traffic = load_traffic(name, roots)
    rules = [rule.strip() for rule in verification.split(",") if rule.strip()]
    for rule in rules or [verification]:
        if rule not in RULES:
            raise PolicyError(f"--verification {rule!r}: {nearest(rule, RULES)}")
    trained = trained_block if trained_block is not None else _trained_block(checkpoint, roots)
    wanted = block_lengths(ks)
    found = [(rule, resolve_acceptance(traffic, k, rule, trained_block=trained)) for k in wanted for rule in rules]
    if as_json:
        options.print_json(
            {
                "schema_version": 1, "command": "acceptance", "traffic": traffic.name, "trained_block": trained,
                "stream_sd": traffic.stream_sd.value, "cells": [_row(rule, a) for rule, a in found],
            }
        )  # fmt: skip
    else:
        _print(traffic.name, traffic.description, found)
    if plot is not None:
        _plot(plot, traffic.name, trained, found, force=force)
        click.echo(f"wrote {plot}", err=True)


def block_lengths(text: str) -> list[int]:
    """The block lengths of "5", "1,3,5" or "1..9". Raises PolicyError."""
    from twin.acceptance.traffic import MAX_K
    from twin.errors import PolicyError

    out: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()) or len(first) > 3 or len(last) > 3:
            raise PolicyError(f"--k {part.strip()!r}: expected block lengths such as 5, 1,3,5 or 1..9.")
        low, high = int(first), int(last) if dots else int(first)
        if low > high or high > MAX_K:
            raise PolicyError(f"--k {part.strip()!r}: expected a rising range from 0 to {MAX_K}.")
        out += range(low, high + 1)
    return list(dict.fromkeys(out))


def _trained_block(checkpoint: str, roots: Any) -> int | None:
    from twin.lane.catalogue import load_entry
    from twin.lane.checkpoint import Checkpoint

    entry = load_entry("checkpoints", checkpoint, roots)
    draft = entry.draft if isinstance(entry, Checkpoint) else None
    return int(draft.trained_block.value) if draft is not None and draft.trained_block is not None else None


def _interval(acceptance: Acceptance) -> tuple[float, float]:
    import numpy as np

    ends = acceptance.relative_sd * _Z90 * np.array([-1.0, 1.0])
    # The draw moves by its own relative error only: no streams, no steps of a run in it.
    sd = acceptance.relative_sd or 1.0
    low, high = acceptance.draw_mean(np.vstack([ends / sd, np.zeros(2)]), streams=1, steps=1)
    return float(low), float(high)


def _row(rule: str, a: Acceptance) -> dict[str, Any]:
    low, high = _interval(a)
    return {
        "k": a.k, "verification": rule, "tokens_per_step": {"mean": a.tokens_per_step, "p05": low, "p95": high},
        "relative_sd": a.relative_sd, "survival": a.survival.tolist(), "conditional": a.conditional.tolist(),
        "warnings": list(a.warnings), "sources": list(a.sources),
    }  # fmt: skip


def _print(name: str, description: str, found: list[tuple[str, Acceptance]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name}: tokens per step, bonus included", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("k", "rule", "tokens/step", "90 %", "gain", "survival %", "conditional %"):
        table.add_column(column, justify="right" if column in ("k", "tokens/step", "gain") else "left")
    first: dict[int, float] = {}
    for rule, a in found:
        low, high = _interval(a)
        gain = 100 * (a.tokens_per_step / first.setdefault(a.k, a.tokens_per_step) - 1)
        percent = [" ".join(f"{100 * v:.0f}" for v in values) for values in (a.survival, a.conditional)]
        shown = f"{gain:+.1f} %" if round(gain, 1) else ""
        table.add_row(str(a.k), rule, f"{a.tokens_per_step:.2f}", f"{low:.2f} to {high:.2f}", shown, *percent)
    console = Console(highlight=False)
    console.print(description)
    console.print(table)
    for text in _grouped([w for _, a in found for w in a.warnings]):
        click.echo(f"warning: {text}", err=True)


def _grouped(warnings: list[str]) -> list[str]:
    """The same warning for several block lengths, said once."""
    import re

    groups: dict[str, list[str]] = {}
    for text in warnings:
        match = re.search(r"\bk = (\d+)\b", text)
        key = text if match is None else f"{text[: match.start(1)]}\0{text[match.end(1) :]}"
        found = groups.setdefault(key, [])
        if match is not None and match[1] not in found:
            found.append(match[1])
    return [key.replace("\0", ", ".join(found)) for key, found in groups.items()]


def _plot(path: Path, name: str, trained: int | None, found: list[tuple[str, Acceptance]], *, force: bool) -> None:
    from twin.report.figure import new_figure, save

    with new_figure(10, 4, columns=2) as (figure, (left, right)):
        _draw(left, right, name, trained, found)
    save(figure, path, force=force)


def _draw(left: Any, right: Any, name: str, trained: int | None, found: list[tuple[str, Acceptance]]) -> None:
    for rule in dict.fromkeys(rule for rule, _ in found):
        mine = sorted((a for r, a in found if r == rule), key=lambda a: a.k)
        ks, mean = [a.k for a in mine], [a.tokens_per_step for a in mine]
        ends = [_interval(a) for a in mine]
        (line,) = left.plot(ks, mean, marker="o", label=rule)
        left.fill_between(ks, [e[0] for e in ends], [e[1] for e in ends], alpha=0.2, color=line.get_color())
        if mine and mine[-1].k:
            longest = mine[-1]
            position, tail = range(1, longest.k + 1), f"{rule}, k = {longest.k}"
            right.plot(position, longest.survival, marker="o", color=line.get_color(), label=f"survival, {tail}")
            right.plot(position, longest.conditional, ls="--", color=line.get_color(), label=f"conditional, {tail}")
    if trained is not None:
        left.axvline(trained, color="grey", lw=0.8, ls=":")
    left.set(xlabel="k, drafted tokens", ylabel="tokens per step, bonus included", title=name)
    right.set(xlabel="position", ylabel="chance", ylim=(0, 1))
    left.legend()
    right.legend(fontsize="small")
