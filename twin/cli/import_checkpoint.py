"""`twin import-checkpoint`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("import-checkpoint")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--index", type=click.Path(path_type=Path), help="model.safetensors.index.json beside it: checks.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Checkpoint file to write (.toml)."
)
@click.option("--name", help="Name of the checkpoint. Default: that of the output file.")
@click.option("--title", default="", help="Title for people.")
@click.option("--kv-dtype", type=click.Choice(["bf16", "fp8", "fp4"]), help="Dtype of the KV cache on your server.")
@click.option("--expert-bits", type=options.Finite(1, 32), help="Bits per expert weight, scales included.")
@click.option("--dense-bits", type=options.Finite(1, 32), help="Bits per weight of attention and shared experts.")
@click.option("--force", is_flag=True, help="Replace the file that is there.")
@options.as_json
def command(
    config: Path,
    index: Path | None,
    output: Path | None,
    name: str | None,
    title: str,
    kv_dtype: str | None,
    expert_bits: float | None,
    dense_bits: float | None,
    force: bool,
    as_json: bool,
) -> None:
    """Make a checkpoint file from CONFIG, a model's config.json: layers, experts, bytes, KV, draft head.

    Every value carries the arithmetic it comes from. Without -o the file is printed.
    """
    import tomllib

    from twin.errors import IngestError
    from twin.files import write_text
    from twin.ingest.hf_checkpoint import import_checkpoint
    from twin.ingest.source import source
    from twin.lane.catalogue import build
    from twin.lane.checkpoint import Checkpoint

    chosen = name or (output.stem if output else None)
    if not chosen:
        raise IngestError("the checkpoint needs a name; pass --name, or -o NAME.toml.")
    if output is not None and output.stem != chosen:
        raise IngestError(f"{output}: the file of checkpoint {chosen!r} is called {chosen}.toml; make them equal.")
    made = import_checkpoint(
        source(config),
        source(index) if index else None,
        name=chosen,
        title=title,
        kv_dtype=kv_dtype,
        expert_bits=expert_bits,
        dense_bits=dense_bits,
    )
    build(Checkpoint, tomllib.loads(made.toml), str(output or chosen))
    if output is not None:
        write_text(output, made.toml, force=force)
    if as_json:
        document = {"schema_version": 1, "command": "import-checkpoint", "name": chosen, "values": made.values}
        options.print_json(document | {"warnings": made.warnings})
    elif output is None:
        click.echo(made.toml, nl=False)
    for warning in made.warnings:
        click.echo(f"note: {warning}.", err=True)
    if output is not None and not as_json:
        total, active = made.values["total_parameters"] / 1e9, made.values["active_parameters"] / 1e9
        click.echo(
            f"{output}: {total:.1f} B parameters, {active:.1f} B active; compare them with the published ones.",
            err=True,
        )
