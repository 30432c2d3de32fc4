"""`twin sweep`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from twin.cli import options

#: Rows a picture is drawn from at most.
PLOTTED_ROWS = 5000


@click.command("sweep")
@click.option(
    "--lane",
    "lanes",
    multiple=True,
    type=options.LaneName(),
    help="A lane of the catalogue; may be given several times.",
)
@click.option(
    "--scenario",
    "scenario",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A scenario file: its lanes and what-ifs, its ks by its streams.",
)
@click.option(
    "--grid",
    "grid",
    multiple=True,
    metavar="KEY=VALUES",
    help="An axis: k=0..9, streams=1,2,4,8, traffic=prose,code, context, verification, or any catalogue value: placement.hot=240..384/16.",
)
@click.option(
    "--random",
    "random",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="N random points a lane between the axes instead of every combination.",
)
@click.option(
    "--sobol",
    "sobol",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="N points a lane of a scrambled Sobol sequence instead of every combination.",
)
@click.option(
    "--samples",
    type=click.IntRange(2, 100_000),
    default=128,
    show_default=True,
    help="Draws a cell: 128 give means to 0.3 % and interval widths to 7 %, 1000 are those of `twin predict`.",
)
@click.option(
    "--best", metavar="COLUMN", help="Show the best cell, e.g. tok_s_aggregate, step_ms, tok_s_per_stream_p05."
)
@click.option(
    "--subject-to",
    "subject_to",
    multiple=True,
    metavar="COND",
    help='Only cells with this, e.g. "tok_s_per_stream>40, k<=5".',
)
@click.option(
    "--pareto",
    metavar="COLUMNS",
    help="Show the cells that no other beats in all of these, e.g. tok_s_per_stream,tok_s_aggregate.",
)
@click.option(
    "--sensitivity",
    metavar="OUTPUT",
    help="Sobol indices of an output to the uncertain parameters, for the best cell (else the first).",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every cell to this .csv, .jsonl or .parquet file.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
    help="What goes to stdout without --output.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of partial results, to go on after an interruption. Default with --output: beside it, removed at the end.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw tok/s of all streams (or --best's column) as .svg, .png or .pdf.",
)
@click.option("--force", is_flag=True, help="Replace the files of --output and --plot.")
@options.workers
@options.calibration
@options.catalogue
@options.seed
@options.as_json
def command(
    output: Path | None,
    shape: str,
    store: Path | None,
    workers: int,
    cluster: str | None,
    force: bool,
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict every cell of a grid or design, resumable and on many workers; the answer is the same bytes whatever their number.

    Rows carry means with 5 and 95 % quantiles. A cell that cannot be (no memory for the weights, no draft head) is a row
    that says why.
    """
    from twin.cli.progress import cells_done
    from twin.cli.sweep_design import design_of, indices_of
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.choice import Choice
    from twin.planning.store import ChunkStore
    from twin.planning.sweep import columns, plan_inputs, run
    from twin.report.sweep import format_of, print_sweep, sink, stdout_sink
    from twin.workers import worker_pool

    if as_json and shape != "table":
        raise click.UsageError("--json and --format: give one of them.")
    if output is not None:
        format_of(output)
    roots = catalogue_roots(given["catalogue"])
    design = design_of(given)
    inputs = plan_inputs(design, roots, calibration=given["calibration"], seed=given["seed"], samples=given["samples"])
    names = columns(design)
    pareto = [c.strip() for c in given["pareto"].split(",")] if given["pareto"] else []
    if plot is not None and len(design) > PLOTTED_ROWS:
        raise click.UsageError(f"--plot: {len(design):,} cells; a picture takes at most {PLOTTED_ROWS:,}.")
    keep = {"keep": PLOTTED_ROWS} if plot is not None else {}
    choice = Choice(names, best=given["best"], pareto=pareto, subject_to=given["subject_to"], **keep)
    kept = store or (output.with_name(output.name + ".parts") if output is not None else None)
    chunk_store = ChunkStore(kept) if kept is not None else None
    try:
        with worker_pool(workers, cluster) as executor, cells_done(len(design)) as said:
            bodies = run(
                design, inputs, executor, store=chunk_store, ahead=4 * workers if cluster is None else 256, said=said
            )
            if output is not None:
                with sink(output, names, force=force) as file:
                    for body in bodies:
                        file.write(body)
                        choice.add(body)
            else:
                shown = stdout_sink(shape, sys.stdout.buffer, names) if shape != "table" else None
                for body in bodies:
                    if shown is not None:
                        shown.write(body)
                    choice.add(body)
    except KeyboardInterrupt:
        hint = (
            f"what is done is kept in {kept}; the same command goes on from there."
            if kept
            else "give --store DIR to keep what is done."
        )
        click.echo(f"twin: interrupted; {hint}", err=True)
        sys.exit(1)
    if chunk_store is not None and chunk_store.corrupt:
        click.echo(
            f"twin: {len(chunk_store.corrupt)} damaged partial files were found in {kept} and computed again.", err=True
        )
    if output is not None:
        if store is None and kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
        click.echo(
            f"wrote {choice.count:,} cells to {output}"
            + (f", {choice.refused:,} of them refused" if choice.refused else ""),
            err=True,
        )
    head = {"schema_version": 1, "command": "sweep", "seed": inputs.seed, "samples": inputs.samples}
    found: dict[str, Any] = head | {"inputs_sha256": dict(inputs.sha256)} | choice.answer()
    if given["sensitivity"]:
        row = found.get("best") or next((r for r in choice.first if not r["refused"]), None)
        found["sensitivity"] = indices_of(row, design, inputs, given["sensitivity"])
    if plot is not None:
        from twin.report.figure import save
        from twin.report.sweep_plot import sweep_figure

        varying = [*(a.key for a in design.axes), "lane"]
        save(sweep_figure(choice.first, varying, given["best"] or "tok_s_aggregate"), plot, force=force)
    if as_json:
        options.print_json(found)
    elif shape == "table":
        print_sweep(found, [a.key for a in design.axes], shown=output is None)
