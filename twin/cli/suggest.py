"""`twin suggest`."""

from __future__ import annotations

from dataclasses import asdict

import click

from twin.cli import options


@click.command("suggest")
@options.lane()
@click.option(
    "--question", required=True, metavar="TEXT", help='Two settings to tell apart: "k=7 vs k=5", "k=5,c=8 vs k=3,c=8".'
)
@click.option("--traffic", metavar="NAME", help="Traffic class. Default: the lane's.")
@click.option(
    "-c", "--concurrency", type=int, default=1, show_default=True, help="Live streams where the question does not say."
)
@click.option(
    "--context",
    "context_tokens",
    type=int,
    default=2048,
    show_default=True,
    help="Context where the question does not say.",
)
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
def command(
    lane_name: str, question: str, traffic: str | None, concurrency: int, context_tokens: int, calibration: str | None, settings: tuple[str, ...],
    catalogue: str | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Name the two or three measurements that would narrow the answer to a question most, as commands to run."""
    from twin.lane.catalogue import catalogue_roots, load_lane
    from twin.lane.override import override
    from twin.planning.predict import make_predictor
    from twin.planning.requests import cell_requests
    from twin.planning.suggest import parse_question, suggest

    roots = catalogue_roots(catalogue)
    lane = override(load_lane(lane_name, roots), settings)
    usual = cell_requests(
        lane, k=None, schedule=None, concurrency=[concurrency], verification=None, context_tokens=context_tokens
    )[0]
    one, other = parse_question(question, usual)
    predictor = make_predictor(lane, traffic or lane.policy.traffic, roots, calibration=calibration, seed=seed)
    answer = suggest(predictor, predictor.calibration, question, one, other)
    if as_json:
        options.print_json({"schema_version": 1, "command": "suggest", "lane": lane_name} | asdict(answer))
        return
    click.echo(
        f"{question}: tok/s {answer.ratio:.3f} times (90 %: {answer.p05:.3f} to {answer.p95:.3f}), on {predictor.traffic.name} traffic."
    )
    if not answer.suggestions:
        click.echo("No single measurement would narrow this by more than 1 %.")
    for number, s in enumerate(answer.suggestions, start=1):
        click.echo(
            f"{number}. {s.measurement}: ± {100 * s.half_width_before:.1f} % becomes ± {100 * s.half_width_after:.1f} %"
        )
        click.echo(f"   {s.how}")
