"""`twin simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options, workload

if TYPE_CHECKING:
    from twin.planning.server import Server
    from twin.planning.study import Study
    from twin.serving.result import ServingResult
    from twin.serving.simulate import Run


@click.command("simulate")
@click.argument("study_file", metavar="[STUDY.toml]", required=False, type=workload.FILE)
@workload.options
@click.option("--requests-out", type=workload.FILE, metavar="FILE", help="One row a request: .csv or .parquet.")
@click.option("--trace-out", type=workload.FILE, metavar="FILE", help="The timeline as a trace for Perfetto (.json).")
@click.option("--plot", type=workload.FILE, metavar="FILE", help="The timeline as .svg or .png.")
@click.option("--option", "only", metavar="NAME", help="Of a study, run this option only.")
@click.option(
    "--replications",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Also this many independent runs, each with its own arrivals and draw of the lane, for intervals between runs.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@options.workers
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
def command(
    study_file: Path | None, catalogue: str | None, as_json: bool, force: bool, only: str | None, replications: int,
    workers: int, cluster: str | None, **given: Any,
) -> None:  # fmt: skip
    """Serve traffic with a lane in simulated time: TTFT, TPOT, gaps, queueing, goodput, occupancy.

    Give a study file, or lanes with --rate, -c or --trace.
    """
    from twin.errors import CapacityError, PolicyError, nearest
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.replications import replicate
    from twin.planning.server import make_server, serve
    from twin.planning.slo import parse_slo, per_request
    from twin.planning.study import read_study
    from twin.workers import worker_failures_explained, worker_pool

    roots = catalogue_roots(catalogue)
    study = read_study(study_file) if study_file is not None else workload.study_from(given, roots)
    chosen = [o for o in study.options if only in (None, o.name)]
    if not chosen:
        raise PolicyError(f"--option {only!r}: {nearest(only or '', [o.name for o in study.options])}")
    slo_text = given["slo"] or study.slo
    slo = per_request(parse_slo(slo_text)) if slo_text else None
    seed = given["seed"] or study.seed
    found = []
    repeated: dict[str, tuple[ServingResult, ...]] = {}
    refused = []
    for option in chosen:
        try:
            server = make_server(option, study.traffic, roots, seed=seed)
        except CapacityError as error:
            refused.append(option.name)
            if len(refused) == len(chosen):
                raise
            click.echo(f"twin: {option.name} is left out: {error}", err=True)
            continue
        with workload.Progress(option.name) as progress:
            run = serve(server, study.arrivals, study.extent, seed=seed, slo=slo, progress=progress)
        found.append((server, run))
        _write_files(server, run, given, force, several=len(chosen) > 1)
        if run.result.interrupted:
            break
    if replications > 1 and not any(run.result.interrupted for _, run in found):
        with worker_pool(workers, cluster) as executor, worker_failures_explained("give the command again."):
            for server, _ in found:
                repeated[server.option.name] = replicate(
                    server, study.arrivals, study.extent, replications=replications, seed=seed, slo=slo, executor=executor
                )  # fmt: skip
    _show(study, found, repeated, as_json)


def _write_files(server: Server, run: Run, given: dict[str, Any], force: bool, *, several: bool) -> None:
    from twin.serving.export import write_plot, write_requests, write_trace

    def named(path: Path) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in server.option.name)
        return path.with_name(f"{path.stem}-{safe}{path.suffix}") if several else path

    if given["requests_out"] is not None:
        write_requests(run, named(given["requests_out"]), [s.name for s in server.shares], force=force)
    if given["trace_out"] is not None:
        write_trace(run, named(given["trace_out"]), server.lane.name, force=force)
    if given["plot"] is not None:
        write_plot(run, named(given["plot"]), server.option.name, force=force)


def _show(
    study: Study, found: list[tuple[Server, Run]], repeated: dict[str, tuple[ServingResult, ...]], as_json: bool
) -> None:
    from dataclasses import asdict

    from twin.planning.replications import spreads
    from twin.planning.server import server_dict

    if as_json:
        results = [server_dict(server) | {"result": run.result.to_json()} for server, run in found]
        for one in results:
            if others := repeated.get(one["option"]):
                one["replications"] = {"runs": len(others), "over": [asdict(s) for s in spreads(others)]}
        options.print_json({"schema_version": 1, "command": "simulate", "title": study.title, "results": results})
        return
    from twin.report.serving import print_replications, print_result

    if study.question:
        click.echo(study.question)
    for server, run in found:
        names = ", ".join(s.name for s in server.shares)
        label = f"{server.option.name}  " if server.option.name != server.lane.name else ""
        print_result(run.result, f"{label}{server.lane.name}, {names}, k by streams {server.schedule.text()}")
        if others := repeated.get(server.option.name):
            print_replications(spreads(others), len(others))
