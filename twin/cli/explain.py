"""`twin explain`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("explain")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--k", type=int, help="Drafted tokens a step, where a side does not say. Default: each lane's policy.")
@click.option("-c", "--concurrency", type=int, default=1, show_default=True, help="Live streams, as above.")
@click.option("--traffic", metavar="NAME", help="Traffic class, where a side does not say. Default: each lane's.")
@click.option("--verification", metavar="RULE", help="token, block or greedy, where a side does not say.")
@click.option("--context", type=int, default=2048, show_default=True, help="Context tokens, where a side does not say.")
@options.settings
@options.calibration
@options.catalogue
@options.seed
@options.as_json
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the waterfall (.svg, .png, .pdf).")
@click.option("--force", is_flag=True, help="Replace the file of --plot.")
def command(
    a: str, b: str, k: int | None, concurrency: int, traffic: str | None, verification: str | None, context: int,
    settings: tuple[str, ...], calibration: str | None, catalogue: str | None, seed: int, as_json: bool,
    plot: Path | None, force: bool,
) -> None:  # fmt: skip
    """Why the tok/s of two settings differ: tokens per step, then the step by mechanism, each with an interval.

    A and B are LANE or LANE:key=value,... with the keys k, verification, traffic, context, streams, and any dotted
    catalogue key.

    \b
    twin explain sidecar:k=5 tp4:k=7,verification=block --traffic codegen-padded
    twin explain sidecar "sidecar:links.sidecar.latency=8 us"
    """
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.explain import explain
    from twin.planning.scenario import parse_setting, resolve

    roots = catalogue_roots(catalogue)
    defaults = {
        "k": k, "concurrency": concurrency, "traffic": traffic, "verification": verification, "context_tokens": context,
        "overrides": list(settings),
    }  # fmt: skip
    sides = [resolve(parse_setting(text, defaults), roots, calibration=calibration, seed=seed) for text in (a, b)]
    found = explain(sides[0], sides[1], seed=seed)
    if as_json:
        options.print_json(found.to_dict())
    else:
        from twin.report.waterfall import print_explanation

        print_explanation(found)
    if plot is not None:
        from twin.report.figure import save
        from twin.report.plots import waterfall

        save(waterfall(found), plot, force=force)
        click.echo(f"wrote {plot}", err=True)
