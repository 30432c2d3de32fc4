"""`twin levers`."""

from __future__ import annotations

import click

from twin.cli import options


@click.command("levers")
@options.lane()
@click.option("--k", type=int, help="Drafted tokens a step. Default: the lane's policy.")
@click.option("-c", "--concurrency", type=int, default=1, show_default=True, help="Live streams.")
@click.option("--traffic", metavar="NAME", help="Traffic class; `twin traffic list` lists them. Default: the lane's.")
@click.option("--verification", metavar="RULE", help="token, block or greedy. Default: the lane's policy.")
@click.option("--context", type=int, default=2048, show_default=True, help="Context of a stream in tokens.")
@options.settings
@options.calibration
@options.catalogue
@options.seed
@options.as_json
def command(
    lane_name: str, k: int | None, concurrency: int, traffic: str | None, verification: str | None, context: int,
    settings: tuple[str, ...], calibration: str | None, catalogue: str | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """What changing each part of a lane would gain, for a realistic step and for the part made free, ranked.

    Says which levers are substitutes or complements, and how far the lane is from its bandwidth roofline.
    """
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.levers import levers
    from twin.planning.scenario import make_setting, resolve

    fields = {
        "lane": lane_name, "k": k, "concurrency": concurrency, "traffic": traffic, "verification": verification,
        "context_tokens": context, "overrides": list(settings),
    }  # fmt: skip
    setting = make_setting(fields, "twin levers")
    resolved = resolve(setting, catalogue_roots(catalogue), calibration=calibration, seed=seed)
    found = levers(resolved, seed=seed)
    if as_json:
        options.print_json(found.to_dict())
    else:
        from twin.report.levers import print_levers

        print_levers(found)
