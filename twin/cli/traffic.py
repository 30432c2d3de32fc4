"""`twin traffic list | show | import`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.group("traffic")
def command() -> None:
    """Traffic classes: acceptance profiles, routing locality and lengths of what a lane is asked."""


@command.command("list")
@options.catalogue
@options.as_json
def list_(catalogue: str | None, as_json: bool) -> None:
    """List the traffic classes with the block lengths they were measured at."""
    from twin.acceptance.traffic import load_traffic, traffic_names
    from twin.lane.catalogue import catalogue_roots

    roots = catalogue_roots(catalogue)
    classes = [load_traffic(name, roots) for name in traffic_names(roots)]
    if as_json:
        rows = [
            {
                "name": t.name, "description": t.description,
                "profiles": [
                    {"k": p.k, "verification": p.verification, "tokens_per_step": p.tokens_per_step} for p in t.profiles
                ],
            }
            for t in classes
        ]  # fmt: skip
        options.print_json({"schema_version": 1, "command": "traffic list", "classes": rows})
        return
    width = max((len(t.name) for t in classes), default=0)
    for t in classes:
        points = ", ".join(f"k={p.k} {p.verification} {p.tokens_per_step:.2f}" for p in t.profiles)
        click.echo(f"{t.name:<{width}}  {t.description}\n{'':<{width}}  tokens per step: {points}")


@command.command("show")
@click.argument("name")
@options.catalogue
@options.as_json
def show(name: str, catalogue: str | None, as_json: bool) -> None:
    """Print one class as the TOML of its file, with the source of every value."""
    from twin.acceptance.counters import traffic_toml
    from twin.acceptance.traffic import load_traffic
    from twin.lane.catalogue import catalogue_roots

    traffic = load_traffic(name, catalogue_roots(catalogue))
    if as_json:
        entry = traffic.model_dump(mode="json")
        options.print_json({"schema_version": 1, "command": "traffic show", "class": entry})
    else:
        click.echo(traffic_toml(traffic), nl=False)


@command.command("import")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--before", type=click.Path(path_type=Path), help="An earlier page of counters, to be subtracted.")
@click.option("--values", help='Acceptance by position instead of a file: "0.72, 0.47, 0.31".')
@click.option(
    "--mean", type=options.Finite(), help="Tokens per step (bonus included) instead of a file; the shape is derived."
)
@click.option("--k", type=click.IntRange(1, 64), help="Block length, with --mean.")
@click.option("--kind", type=click.Choice(["survival", "conditional"]), default="survival", show_default=True)
@click.option("--drafts", type=click.IntRange(1), help="Draft blocks behind --values: gives the interval.")
@click.option("--name", required=True, help="Name of the new class.")
@click.option("--verification", type=click.Choice(["token", "block", "greedy"]), required=True)
@click.option("--temperature", type=options.Finite(0, 10), default=1.0, show_default=True)
@click.option("--streams", type=click.IntRange(1), default=1, show_default=True, help="Live streams counted.")
@click.option("--trained-block", type=click.IntRange(1, 64), default=5, show_default=True, help="Used with --mean.")
@click.option("--like", metavar="CLASS", help="Take routing, lengths and spread from this class.")
@click.option("--source", help="Where the numbers come from. Default: the file's name.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here instead of stdout.")
@click.option("--force", is_flag=True, help="Replace the file of --output.")
@options.catalogue
def import_(
    file: Path | None, before: Path | None, values: str | None, mean: float | None, k: int | None, kind: str,
    drafts: int | None, name: str, verification: str, temperature: float, streams: int, trained_block: int,
    like: str | None, source: str | None, output: Path | None, force: bool, catalogue: str | None,
) -> None:  # fmt: skip
    """Make a class file from a server's counters (JSON, /metrics, log line), positions, or a mean.

    Put the result into scenarios/traffic/NAME.toml of the folder given as --catalogue.
    """
    from twin.acceptance.block_length import shape_from_mean
    from twin.acceptance.counters import Observed, class_from, read_counters, traffic_toml
    from twin.acceptance.profile import check_survival, survival_from_conditional
    from twin.acceptance.traffic import load_traffic
    from twin.errors import TrafficError
    from twin.files import write_text
    from twin.lane.catalogue import catalogue_roots

    if sum(given is not None for given in (file, values, mean)) != 1:
        raise click.UsageError("give exactly one of FILE, --values or --mean.")
    if file is not None:
        earlier = _read(before) if before is not None else None
        observed = read_counters(_read(file), before=earlier, where=str(file))
    elif values is not None:
        numbers = _numbers(values)
        survival = survival_from_conditional(numbers).tolist() if kind == "conditional" else numbers
        check_survival(numbers if kind == "survival" else survival, "--values")
        observed = Observed(tuple(survival), drafts)
    else:
        if k is None or mean is None:
            raise click.UsageError("--mean needs --k.")
        shape = shape_from_mean(k, mean, trained_block=trained_block)
        observed = Observed(tuple(shape.tolist()), None)
    base = load_traffic(like, catalogue_roots(catalogue)) if like else None
    try:
        traffic = class_from(
            observed, name=name, source=source or (file.name if file else "given on the command line"),
            verification=verification, temperature=temperature, streams=streams, like=base, derived=mean is not None,
        )  # fmt: skip
    except ValueError as error:
        raise TrafficError(f"--name {name!r}: {_first(error)}") from None
    text = traffic_toml(traffic)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.stem != name:
        raise TrafficError(f"--output {output}: a class {name!r} lives in a file {name}.toml.")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text, force=force)
    click.echo(f"wrote {output}", err=True)


def _first(error: ValueError) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)


def _numbers(text: str) -> list[float]:
    from twin.errors import TrafficError

    try:
        numbers = [float(cell) for cell in text.replace(";", ",").split(",") if cell.strip()]
    except ValueError as error:
        raise TrafficError(f"--values: {error}; expected chances such as 0.72, 0.47, 0.31.") from None
    if not numbers or not all(0 <= n <= 1 for n in numbers):
        raise TrafficError(f"--values {text!r}: expected chances between 0 and 1, one a position.")
    return numbers


def _read(path: Path) -> str:
    from twin.acceptance.counters import MAX_CHARS
    from twin.errors import IngestError

    try:
        if path.stat().st_size > MAX_CHARS:
            raise IngestError(f"{path}: larger than {MAX_CHARS // 2**20} MiB; cut out the counters.")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise IngestError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise IngestError(f"{path}: not UTF-8 text (byte {error.start}).") from None
