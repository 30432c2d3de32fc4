"""`twin import`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("import", no_args_is_help=True)
@click.argument("files", nargs=-1, required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Receipt table to write (CSV). Without it the findings are only shown.",
)
@click.option("--force", is_flag=True, help="Replace the table that is there.")
@click.option("--lane", help="The lane the runs are of.")
@click.option("--traffic", help="The traffic class of the prompts.")
@click.option(
    "--k", type=click.IntRange(0, 64), help="Draft tokens per step, where the files do not say; 0 without speculation."
)
@click.option(
    "--verification", type=click.Choice(["token", "block", "greedy"]), help="Verification rule of the engine."
)
@click.option("--concurrency", type=click.IntRange(1, 65536), help="Streams in flight, where the files do not say.")
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(0, 16_000_000),
    help="Prompt tokens; overrides what the files say.",
)
@click.option("--checkpoint", help="Name of the checkpoint, for the table.")
@click.option("--engine", help="Name of the software stack, for the table.")
@click.option("--date", help="Date of the runs, for the table.")
@click.option(
    "--tg-is",
    type=click.Choice(["per-stream", "aggregate"]),
    help="What a table's token rate is of, where its column does not say.",
)
@click.option(
    "--accept-is",
    type=click.Choice(["length", "rate"]),
    help="What a table's acceptance column holds, where it does not say.",
)
@click.option(
    "--hot-map",
    type=click.Path(path_type=Path),
    help="The lane's hot map (of `twin placement --out`): routing counts then give the share of routes outside it.",
)
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    help="Read every file as this format instead of recognising it; `--formats` lists them.",
)
@click.option("--formats", "list_formats", is_flag=True, help="List the formats known and stop.")
@click.option(
    "--max-size",
    default="4 GiB",
    show_default=True,
    metavar="SIZE",
    help="Most data to read of one file, after decompression.",
)
@options.catalogue
@options.as_json
def command(
    files: tuple[Path, ...],
    output: Path | None,
    force: bool,
    lane: str | None,
    traffic: str | None,
    k: int | None,
    verification: str | None,
    concurrency: int | None,
    context_tokens: int | None,
    checkpoint: str | None,
    engine: str | None,
    date: str | None,
    tg_is: str | None,
    accept_is: str | None,
    hot_map: Path | None,
    format_name: str | None,
    list_formats: bool,
    max_size: str,
    catalogue: str | None,
    as_json: bool,
) -> None:
    """Make receipts from FILES: bench results, metrics pages, server logs, tables, traces (plain or gzip).

    Each file is recognised by its content. Two vLLM metrics pages, before and after a run, become their difference.
    What a file cannot say (the lane, the traffic class, often k) must be given; nothing that matters is guessed.
    """
    from twin.errors import IngestError
    from twin.files import write_text
    from twin.fitting.receipts import receipts_csv
    from twin.ingest.describe import document, lines
    from twin.ingest.fill import Fill
    from twin.ingest.receipts import receipts_of
    from twin.ingest.registry import formats, read_files
    from twin.ingest.routing_receipts import ROUTING_FORMATS
    from twin.lane.catalogue import catalogue_roots, load_lane
    from twin.routing.placement import read_map
    from twin.units import parse_quantity

    if list_formats:
        for name, title in formats():
            click.echo(f"{name:22} {title}")
        return
    if not files:
        raise click.UsageError("name at least one file; `twin import --formats` lists what can be read.")
    if output is not None and output.exists() and not force:
        raise IngestError(f"{output}: exists already; give --force to replace it, or another name.")
    if output is not None and any(output.resolve() == file.resolve() for file in files):
        raise IngestError(f"{output}: is one of the files to read; name another output.")
    found = read_files(
        files, format_name=format_name, max_bytes=max(1, int(parse_quantity(max_size, "bytes", where="--max-size")))
    )
    box = None
    if lane is not None and any(one.format in ROUTING_FORMATS for one in found):
        # What counts say depends on how many experts the lane keeps hot; no other format needs the catalogue.
        box = load_lane(lane, catalogue_roots(catalogue))
    fill = Fill(
        lane, traffic, k, verification, concurrency, context_tokens, checkpoint, engine, date, tg_is, accept_is,
        box, read_map(hot_map) if hot_map else None,
    )  # fmt: skip
    receipts = []
    if output is not None or (lane and traffic):
        receipts = receipts_of(found, fill)
    if output is not None:
        if not receipts:
            reasons = (
                "; ".join(note for f in found for note in f.notes[:3]) or "no step, rate, acceptance or prefill in them"
            )
            raise IngestError(f"{', '.join(f.where for f in found[:3])}: no receipt comes from this: {reasons}")
        write_text(output, receipts_csv(receipts), force=force)
    if as_json:
        options.print_json(document(found, receipts))
        return
    for one in found:
        click.echo("\n".join(lines(one)))
    if output is not None:
        used = sum(r.use == "fit" for r in receipts)
        click.echo(
            f"{output}: {len(receipts)} receipts, {used} for fitting; next: twin fit {output} --lane {lane} -o "
            "fit.json",
            err=True,
        )
    elif not receipts:
        click.echo("nothing written; for receipts pass -o receipts.csv with --lane and --traffic.", err=True)
