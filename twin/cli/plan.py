"""`twin plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options, workload

if TYPE_CHECKING:
    from twin.planning.plan import Plan


@click.command("plan")
@click.argument("study_file", metavar="[STUDY.toml]", required=False, type=workload.FILE)
@workload.options
@click.option("--target", type=options.Finite(), help="A load to serve: how many replicas it needs.")
@click.option("--replications", type=int, default=4, show_default=True, help="Independent runs behind the interval.")
@click.option(
    "--years", type=options.Finite(), default=3.0, show_default=True, help="Years the box is written off over."
)
@click.option("--electricity", type=options.Finite(), default=0.20, show_default=True, help="USD per kWh.")
@click.option("--no-pareto", is_flag=True, help="Leave out the table of tok/s per user against tok/s per box.")
@click.option("--plot", type=workload.FILE, metavar="FILE", help="That table as .svg or .png.")
@click.option("--force", is_flag=True, help="Replace a plot that exists.")
@options.workers_by_default(None)
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
def command(
    study_file: Path | None, catalogue: str | None, as_json: bool, plot: Path | None, force: bool, **given: Any
) -> None:
    """What a lane can promise: the largest load under an SLO, replicas for a target, cost, options ranked.

    Give a study file, or lanes with --slo. The load is a rate of requests, with -c a number of users, with --trace a
    speed of its clock.
    """
    from twin.errors import PolicyError
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.cost import Prices
    from twin.planning.plan import make_plan
    from twin.planning.slo import parse_slo
    from twin.planning.study import read_study
    from twin.workers import stop, worker_failures_explained, worker_pool

    roots = catalogue_roots(catalogue)
    if study_file is not None:
        study = read_study(study_file)
    else:
        study = workload.study_from(given, roots, needs_arrivals=False)
    text = given["slo"] or study.slo
    if not text:
        raise PolicyError('a plan needs an SLO: --slo "p95 TTFT 2 s, p99 TPOT 25 ms", or slo in the study.')
    if given["years"] <= 0 or given["electricity"] < 0:
        raise PolicyError("--years is above 0 and --electricity at least 0.")
    workers = min(given["workers"] or os.cpu_count() or 1, max(given["replications"], 1))
    with worker_pool(workers, given["cluster"]) as executor, worker_failures_explained("give the command again."):
        plan = make_plan(
            study, parse_slo(text), roots, seed=given["seed"] or study.seed, replications=given["replications"],
            target=given["target"] or study.target_rate, prices=Prices(given["years"], given["electricity"]),
            pareto=not given["no_pareto"] or plot is not None, executor=executor, said=_say,
        )  # fmt: skip
        if plan.interrupted:
            stop(executor)
    if plot is not None:
        _plot(plan, plot, study.title, force)
    if as_json:
        options.print_json(plan.to_dict() | {"title": study.title})
        return
    from twin.report.serving import print_plan

    if study.question:
        click.echo(study.question)
    print_plan(plan)


def _plot(plan: Plan, path: Path, title: str, force: bool) -> None:
    from twin.planning.pareto import plot_pareto
    from twin.serving.export import write_picture

    points = [p for option in plan.options for p in option.pareto]
    write_picture(path, lambda target: plot_pareto(points, target, title=title), force=force)


def _say(text: str) -> None:
    import sys

    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)
