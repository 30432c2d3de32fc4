"""`twin union`: how many experts a batch touches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.routing.batch import RoutingShape
    from twin.routing.table import Cell, UnionTable


def whole_numbers(most: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """A callback that reads a list of whole numbers from 1 to `most`: 1,2,4."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 1,2,4", ctx, param) from None
        if len(numbers) > 64 or not all(1 <= n <= most for n in numbers):
            raise click.BadParameter(f"{value!r}: expected 1 to 64 numbers from 1 to {most}", ctx, param)
        return numbers

    return parse


@click.command("union")
@click.option("--checkpoint", metavar="NAME", help="A checkpoint of the catalogue, e.g. deepseek-v4.1-flash.")
@click.option("--experts", type=click.IntRange(1, 16384), help="Routed experts a layer, instead of a checkpoint.")
@click.option("--top-k", type=click.IntRange(1, 64), help="Experts a token is sent to, instead of a checkpoint.")
@click.option(
    "--layers", type=click.IntRange(1, 1024), default=40, show_default=True, help="MoE layers, with --experts."
)
@click.option("--workload", metavar="NAME", help="A measured workload, e.g. prose or code. Default: all pooled.")
@click.option("--beta", type=options.Finite(0.05, 1.0), help="Locality exponent, instead of a measured curve.")
@click.option(
    "--tokens",
    callback=whole_numbers(4096),
    default="1,2,4,6,8,16,64",
    show_default=True,
    metavar="LIST",
    help="Verified rows a stream.",
)
@click.option(
    "--streams",
    callback=whole_numbers(65536),
    default="1,4,16",
    show_default=True,
    metavar="LIST",
    help="Live streams.",
)
@click.option(
    "--diversity", type=options.Finite(0, 1), default=1.0, show_default=True, help="1 unrelated, 0 one prompt."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw to this file (.svg, .png, .pdf).")
@click.option("--force", is_flag=True, help="Replace the file of --plot.")
@options.catalogue
@options.as_json
def command(
    checkpoint: str | None, experts: int | None, top_k: int | None, layers: int, workload: str | None,
    beta: float | None, tokens: tuple[int, ...], streams: tuple[int, ...], diversity: float, plot: Path | None,
    force: bool, catalogue: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Unique experts a layer for a batch, with 95 % intervals and the uniform law beside them.

    Beyond the longest block that was measured the interval spans laws that all pass the measurements.
    """
    from twin.routing.evidence import read_union, shipped_union
    from twin.routing.table import UnionTable, find_curve

    shape, model = _shape(checkpoint, experts, top_k, layers, catalogue)
    found = find_curve(read_union(shipped_union()), model, shape, workload) if model and beta is None else None
    if workload and found is None:
        raise click.UsageError("--workload needs a checkpoint whose unions were measured; give --beta instead.")
    curve, source = (
        found if found else (None, f"exponent {beta:g}" if beta else "assumed: the exponents of other models")
    )
    table = UnionTable(shape, curve, title=model or "", beta=beta, diversity=diversity)
    cells = table.cells(tokens, streams)
    if plot is not None:
        _plot(table, cells, plot, force=force)
    if as_json:
        options.print_json(_as_dict(table, cells, source))
    else:
        _print(table, cells, source)


def _shape(
    checkpoint: str | None, experts: int | None, top_k: int | None, layers: int, catalogue: str | None
) -> tuple[RoutingShape, str]:
    from twin.routing.batch import RoutingShape

    if checkpoint is not None:
        from twin.lane.catalogue import catalogue_roots, load_entry
        from twin.lane.checkpoint import Checkpoint

        entry = load_entry("checkpoints", checkpoint, catalogue_roots(catalogue))
        assert isinstance(entry, Checkpoint)
        shape = RoutingShape(int(entry.moe_layers.value), int(entry.experts.value), int(entry.top_k.value))
        return shape, entry.name
    if experts is None or top_k is None:
        raise click.UsageError("give --checkpoint NAME, or --experts and --top-k.")
    if top_k > experts:
        raise click.UsageError(f"--top-k {top_k} is more than --experts {experts}.")
    return RoutingShape(layers, experts, top_k), ""


def _as_dict(table: UnionTable, cells: list[Cell], source: str) -> dict[str, object]:
    return {
        "schema_version": 1, "command": "union", "experts": table.shape.experts, "top_k": table.shape.top_k,
        "layers": table.shape.layers, "source": source, "measured": table.measured, "diversity": table.diversity,
        "family": table.extrapolation.chosen, "longest_measured": int(table.extrapolation.curve.tokens.max()),
        "families": {
            name: {"parameter": s.family.parameter, "cross_validated_error": s.cross_validated}
            for name, s in table.extrapolation.scored.items()
        },
        "cells": [vars(c) for c in cells],
    }  # fmt: skip


def _print(table: UnionTable, cells: list[Cell], source: str) -> None:
    shape = table.shape
    click.echo(
        f"{table.title or 'router'}: {shape.experts} experts, top {shape.top_k}, {shape.layers} layers; {source}"
    )
    click.echo(
        "unique experts a layer; 95 % interval of the mean, range of single layers, independent uniform routing\n"
    )
    names = list(table.extrapolation.scored)
    heads = ["streams", "tokens", "unique", "95 %", "layers", "uniform", *names]
    rows = [
        [
            str(c.streams), str(c.tokens), f"{c.unique:.1f}", f"{c.low:.1f} - {c.high:.1f}",
            f"{c.layer_low:.1f} - {c.layer_high:.1f}", f"{c.uniform:.1f}",
            *(f"{c.families[n]:.1f}" for n in names),
        ]
        for c in cells
    ]  # fmt: skip
    print_aligned(heads, rows)
    longest = int(table.extrapolation.curve.tokens.max())
    click.echo("")
    if not table.measured:
        click.echo(
            "No union of this router was measured: unions of a trace (`twin placement TRACE.npz`) would narrow it."
        )
    elif any(c.beyond for c in cells):
        click.echo(
            f"Measured up to {longest} tokens. Beyond, the laws on the right all pass the measurements and differ; "
            "the interval spans them. A trace with longer blocks would narrow it."
        )


def print_aligned(heads: list[str], rows: list[list[str]]) -> None:
    """A table in plain text, numbers to the right."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _plot(table: UnionTable, cells: list[Cell], target: Path, *, force: bool) -> None:
    from twin.report.figure import new_figure, save

    with new_figure(7.5, 4.8) as (figure, axes):
        _draw(axes, table, cells)
    save(figure, target, force=force)
    click.echo(f"wrote {target}", err=True)


def _draw(axes: Any, table: UnionTable, cells: list[Cell]) -> None:
    for streams in dict.fromkeys(c.streams for c in cells):
        part = sorted((c for c in cells if c.streams == streams), key=lambda c: c.tokens)
        x = [c.tokens for c in part]
        line = axes.plot(x, [c.unique for c in part], marker="o", label=f"{streams} stream{'s' * (streams > 1)}")[0]
        axes.fill_between(x, [c.low for c in part], [c.high for c in part], color=line.get_color(), alpha=0.2)
        axes.plot(x, [c.uniform for c in part], color=line.get_color(), linestyle=":")
    if table.measured:
        curve = table.extrapolation.curve
        axes.plot(curve.tokens, curve.unique, "k+", markersize=9, label="measured")
    axes.plot([], [], color="gray", linestyle=":", label="uniform routing")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("verified rows of a stream")
    axes.set_ylabel("unique experts a layer")
    axes.set_title(f"{table.title or 'router'}: {table.shape.experts} experts, top {table.shape.top_k}")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
