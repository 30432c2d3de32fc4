"""`twin predict`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("predict")
@options.lane()
@click.option("--k", "k", type=int, help="Drafted tokens a step; 0 is plain decoding. Default: the lane's policy.")
@click.option("--schedule", metavar="TEXT", help='k by live streams: "1-4:5, 5-8:3, 9-32:3" or [[1,4,5],[5,8,3]].')
@click.option(
    "-c", "--concurrency", default="1", show_default=True, metavar="LIST", help="Live streams: 1,4,8 or 1..32."
)
@click.option("--traffic", metavar="NAME", help="Traffic class; `twin traffic list` lists them. Default: the lane's.")
@click.option("--verification", metavar="RULE", help="token, block or greedy. Default: the lane's policy.")
@click.option(
    "--context",
    "context_tokens",
    type=int,
    default=2048,
    show_default=True,
    help="Context of a stream in tokens; also the prompt of TTFT.",
)
@click.option(
    "--cached",
    "cached_tokens",
    type=int,
    default=0,
    show_default=True,
    help="Prompt tokens a prefix cache already holds (TTFT only).",
)
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one row a cell.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw to this file (.svg, .png, .pdf).")
@click.option("--force", is_flag=True, help="Replace the file of --plot.")
def command(
    lane_name: str, k: int | None, schedule: str | None, concurrency: str, traffic: str | None, verification: str | None, context_tokens: int,
    cached_tokens: int, calibration: str | None, settings: tuple[str, ...], catalogue: str | None, seed: int, as_json: bool, as_csv: bool,
    plot: Path | None, force: bool,
) -> None:  # fmt: skip
    """Predict step time, tokens per step and tok/s, each with a 90 % interval, and where the time of a step goes."""
    from twin.acceptance.policy import parse_schedule
    from twin.errors import PolicyError
    from twin.lane.capacity import require_fit
    from twin.lane.catalogue import catalogue_roots, load_lane
    from twin.lane.override import override
    from twin.planning.predict import make_predictor
    from twin.planning.requests import cell_requests, parse_concurrency

    if as_json and as_csv:
        raise click.UsageError("--json and --csv: give one of them.")
    roots = catalogue_roots(catalogue)
    lane = override(load_lane(lane_name, roots), settings)
    require_fit(lane)
    if verification is not None and verification not in ("token", "block", "greedy"):
        raise PolicyError(f"--verification {verification!r}: expected token, block or greedy.")
    requests = cell_requests(
        lane, k=k, schedule=parse_schedule(schedule) if schedule is not None else None, concurrency=parse_concurrency(concurrency),
        verification=verification, context_tokens=context_tokens, cached_tokens=cached_tokens,
    )  # fmt: skip
    predictor = make_predictor(lane, traffic or lane.policy.traffic, roots, calibration=calibration, seed=seed)
    prediction = predictor.predict(requests)
    if as_json:
        options.print_json(prediction.to_dict())
    elif as_csv:
        from twin.report.prediction import prediction_csv

        click.echo(prediction_csv(prediction), nl=False)
    else:
        from twin.report.prediction import print_prediction

        print_prediction(prediction, lane.title)
    if plot is not None:
        from twin.report import plots
        from twin.report.figure import save

        save(plots.prediction(prediction), plot, force=force)
        click.echo(f"wrote {plot}", err=True)
