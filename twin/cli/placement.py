"""`twin placement`: hot maps from routing counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options
from twin.cli.union import print_aligned, whole_numbers

if TYPE_CHECKING:
    from twin.routing.advice import Step
    from twin.routing.counts import RoutingCounts, RoutingTrace
    from twin.routing.placement import HotMap


@click.command("placement")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--checkpoint", metavar="NAME", help="A checkpoint of the catalogue: experts and top-k.")
@click.option("--experts", type=click.IntRange(2, 16384), help="Routed experts a layer (needed for a trace).")
@click.option("--top-k", type=click.IntRange(1, 64), help="Experts a token is sent to (a trace says it itself).")
@click.option("--hot", type=click.IntRange(0, 16384), help="Hot experts a layer. Default: three quarters.")
@click.option(
    "--splits", callback=whole_numbers(16384), metavar="LIST", help="Other numbers of hot experts to compare."
)
@click.option("--map", "map_file", type=click.Path(path_type=Path), help="Judge this map instead of making one.")
@click.option("--traffic", type=click.Path(path_type=Path), help="Judge on these counts instead of those of FILE.")
@click.option("--phase", default="decode", show_default=True, help="Which phase to read where a file has several.")
@click.option("--streams", type=click.IntRange(1, 65536), default=1, show_default=True, help="Live streams of a step.")
@click.option("--rows", type=click.IntRange(1, 4096), default=6, show_default=True, help="Verified rows a stream.")
@click.option(
    "--diversity", type=options.Finite(0, 1), default=1.0, show_default=True, help="1 unrelated, 0 one prompt."
)
@click.option("--ranks", type=click.IntRange(2, 1024), help="Also the busiest of this many expert-parallel ranks.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the hot map (JSON).")
@click.option("--force", is_flag=True, help="Replace the file of --out.")
@options.catalogue
@options.as_json
def command(
    file: Path, checkpoint: str | None, experts: int | None, top_k: int | None, hot: int | None,
    splits: tuple[int, ...] | None, map_file: Path | None, traffic: Path | None, phase: str, streams: int, rows: int,
    diversity: float, ranks: int | None, out: Path | None, force: bool, catalogue: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Make a hot map from routing counts or a trace, and say what a step still finds outside it.

    FILE is counts (layers x experts, JSON or CSV) or an ordered trace of expert ids (NPZ or CSV). A map judged on the
    counts it was made from looks better than it will serve; the "unseen" column is from random halves of the counts,
    and --traffic judges it on other text.
    """
    from twin.errors import IngestError
    from twin.files import write_text
    from twin.routing import advice
    from twin.routing.placement import hot_map, map_json, read_map, thin_layers

    experts, top_k = _router(checkpoint, experts, top_k, catalogue)
    counts, trace, top_k = _read(file, experts, top_k, phase)
    judged = _read(traffic, counts.experts, top_k, phase)[0] if traffic else counts
    if hot is not None and hot > counts.experts:
        raise IngestError(f"--hot {hot}: the counts have {counts.experts} experts a layer; expected 0 to that.")
    placed = read_map(map_file) if map_file else hot_map(counts, hot if hot is not None else counts.experts * 3 // 4)
    step = advice.Step(streams, float(rows), diversity)
    size = round(placed.hot_per_layer)
    sizes = sorted({size, *(splits or _other_sizes(size, counts.experts))})
    if sizes[-1] > counts.experts:
        raise IngestError(f"--splits {sizes[-1]}: the counts have {counts.experts} experts a layer.")
    result: dict[str, Any] = {
        "schema_version": 1, "command": "placement", "counts": counts.source, "traffic": judged.source,
        "layers": counts.layers, "experts": counts.experts, "top_k": top_k, "hot_per_layer": placed.hot_per_layer,
        "streams": streams, "rows": rows, "diversity": diversity, "thin_layers": thin_layers(counts),
        "forecast": _forecast(placed, judged, top_k, step),
        "splits": [vars(s) for s in advice.splits(counts, judged, top_k, sizes, step)],
        "retraining": vars(advice.retraining(placed, judged, top_k, step)) if map_file or traffic else None,
        "ranks": vars(advice.rank_loads(judged, top_k, ranks, step)) if ranks else None,
        "locality": _locality(trace, counts.experts, placed, rows) if trace is not None else None,
    }  # fmt: skip
    if out:
        write_text(out, map_json(placed), force=force)
        click.echo(f"wrote {out}: {placed.layers} layers, {size} of {placed.experts} experts hot", err=True)
    if as_json:
        options.print_json(result)
    else:
        _print(result)


def _router(
    checkpoint: str | None, experts: int | None, top_k: int | None, catalogue: str | None
) -> tuple[int | None, int | None]:
    if checkpoint is None:
        return experts, top_k
    from twin.lane.catalogue import catalogue_roots, load_entry
    from twin.lane.checkpoint import Checkpoint

    entry = load_entry("checkpoints", checkpoint, catalogue_roots(catalogue))
    assert isinstance(entry, Checkpoint)
    return experts or int(entry.experts.value), top_k or int(entry.top_k.value)


def _read(
    file: Path, experts: int | None, top_k: int | None, phase: str
) -> tuple[RoutingCounts, RoutingTrace | None, int]:
    from twin.errors import IngestError
    from twin.routing.counts import is_trace, read_counts, read_trace

    if is_trace(file):
        trace = read_trace(file)
        size = experts or int(trace.experts.max()) + 1
        if int(trace.experts.max()) >= size:
            raise IngestError(
                f"{file}: expert id {trace.experts.max()}, but the router has {size} experts (0 to {size - 1})."
            )
        return trace.counts(size), trace, int(trace.experts.shape[2])
    counts = read_counts(file, phase=phase)
    if experts is not None and experts != counts.experts:
        raise IngestError(f"{file}: {counts.experts} experts a layer, but the router has {experts}.")
    if top_k is None:
        raise click.UsageError("counts do not say how many experts a token takes: give --top-k or --checkpoint.")
    if top_k > counts.experts:
        raise IngestError(f"--top-k {top_k}: the counts have {counts.experts} experts a layer.")
    return counts, None, top_k


def _other_sizes(size: int, experts: int) -> list[int]:
    step = max(experts // 16, 1)
    return [n for n in (size - 2 * step, size - step, size + step, size + 2 * step) if 0 < n < experts]


def _forecast(placed: HotMap, judged: RoutingCounts, top_k: int, step: Step) -> dict[str, Any]:
    from twin.routing.advice import judge

    found = judge(placed, judged, top_k, step)
    columns = zip(found.share, found.cold, found.low, found.high, strict=True)
    return {
        "cold_share": float(found.share.mean()), "cold": found.mean, "low": found.mean_low, "high": found.mean_high,
        "by_layer": [
            {"layer": i, "cold_share": float(s), "cold": float(c), "low": float(a), "high": float(b)}
            for i, (s, c, a, b) in enumerate(columns)
        ],
    }  # fmt: skip


def _locality(trace: RoutingTrace, experts: int, placed: HotMap, rows: int) -> list[dict[str, Any]]:
    from twin.routing.advice import cold_in_blocks
    from twin.routing.fitting import fit_trace

    counted = cold_in_blocks(trace, placed, rows)
    return [
        {
            "layer": fit.layer, "beta": fit.exponent.beta, "beta_low": fit.exponent.interval[0],
            "beta_high": fit.exponent.interval[1], "tokens": fit.law.tokens.tolist(), "unique": fit.unique.tolist(),
            "standard_error": fit.standard_error.tolist(),
            "cold_counted": None if counted[fit.layer] != counted[fit.layer] else float(counted[fit.layer]),
        }
        for fit in fit_trace(trace, experts)
    ]  # fmt: skip


def _print(result: dict[str, Any]) -> None:
    whole = result["forecast"]
    click.echo(
        f"{result['counts']}: {result['layers']} layers of {result['experts']} experts, top {result['top_k']}; "
        f"{result['hot_per_layer']:g} hot"
    )
    if result["traffic"] != result["counts"]:
        click.echo(f"judged on {result['traffic']}")
    if result["thin_layers"]:
        click.echo(
            f"{len(result['thin_layers'])} layers have fewer than 30 routes an expert: their ranking is mostly noise."
        )
    click.echo(
        f"\na step of {result['streams']} x {result['rows']} rows: {whole['cold']:.2f} cold experts a layer "
        f"({whole['low']:.2f} - {whole['high']:.2f}), {100 * whole['cold_share']:.1f} % of routes cold\n"
    )
    locality = {entry["layer"]: entry for entry in result["locality"] or []}
    heads = ["layer", "cold share", "cold experts", "95 %", *(["counted", "beta", "95 %"] if locality else [])]
    print_aligned(heads, [_layer(row, locality.get(row["layer"])) for row in whole["by_layer"]])
    click.echo("\nmaps of other sizes made from these counts (hot experts a layer)\n")
    chosen = next(s for s in result["splits"] if s["hot"] == round(result["hot_per_layer"]))
    print_aligned(
        ["hot", "cold share", "unseen", "cold experts", "95 %", "saves"],
        [
            [
                str(s["hot"]), f"{100 * s['share']:.1f} %", f"{100 * s['share_unseen']:.1f} %", f"{s['cold']:.2f}",
                f"{s['low']:.2f} - {s['high']:.2f}", f"{chosen['cold'] - s['cold']:+.2f}",
            ]
            for s in result["splits"]
        ],
    )  # fmt: skip
    if result["retraining"]:
        r = result["retraining"]
        click.echo(
            f"\nthis map leaves {100 * r['share']:.1f} % of routes cold on this traffic, one made from it "
            f"{100 * r['share_retrained']:.1f} %, experts by number {100 * r['share_position']:.1f} %:\n"
            f"retraining saves {r['cold'] - r['cold_retrained']:.2f} of {r['cold']:.2f} cold experts a layer and step."
        )
    if result["ranks"]:
        r = result["ranks"]
        click.echo(
            f"\nbusiest of {r['ranks']} ranks: {r['positional']:.1f} experts by number, {r['balanced']:.1f} balanced "
            f"by popularity; an even share is {r['even_share']:.1f}."
        )


def _layer(row: dict[str, Any], local: dict[str, Any] | None) -> list[str]:
    cells = [str(row["layer"]), f"{100 * row['cold_share']:.1f} %", f"{row['cold']:.2f}"]
    cells.append(f"{row['low']:.0f} - {row['high']:.0f}")
    if local is not None:
        counted = "" if local["cold_counted"] is None else f"{local['cold_counted']:.2f}"
        cells += [counted, f"{local['beta']:.3f}", f"{local['beta_low']:.3f} - {local['beta_high']:.3f}"]
    return cells
