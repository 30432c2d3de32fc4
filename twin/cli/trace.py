"""`twin trace`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options


@click.command("trace")
@options.lane()
@click.option("--k", type=int, help="Drafted tokens a step. Default: the lane's policy.")
@click.option("-c", "--concurrency", type=int, default=1, show_default=True, help="Live streams.")
@click.option("--traffic", metavar="NAME", help="Traffic class; `twin traffic list` lists them. Default: the lane's.")
@click.option("--verification", metavar="RULE", help="token, block or greedy. Default: the lane's policy.")
@click.option("--context", type=int, default=2048, show_default=True, help="Context of a stream in tokens.")
@click.option("--steps", type=click.IntRange(1, 200), default=1, show_default=True, help="Steps after one another.")
@options.settings
@options.calibration
@options.catalogue
@options.seed
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, not stdout.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    lane_name: str, k: int | None, concurrency: int, traffic: str | None, verification: str | None, context: int,
    steps: int, settings: tuple[str, ...], calibration: str | None, catalogue: str | None, seed: int,
    output: Path | None, force: bool,
) -> None:  # fmt: skip
    """One step's timeline, every rank, as Chrome trace events: open it at ui.perfetto.dev or chrome://tracing."""
    import json
    from dataclasses import replace

    from twin.files import write_text
    from twin.lane.catalogue import catalogue_roots, lane_sha256
    from twin.planning.draws import Draws
    from twin.planning.scenario import make_setting, resolve
    from twin.report.trace import step_trace
    from twin.step.builders import build_step_graph

    fields = {
        "lane": lane_name, "k": k, "concurrency": concurrency, "traffic": traffic, "verification": verification,
        "context_tokens": context, "overrides": list(settings),
    }  # fmt: skip
    setting = make_setting(fields, "twin trace")
    resolved = resolve(setting, catalogue_roots(catalogue), calibration=calibration, seed=seed)
    request, predictor = resolved.request, resolved.predictor
    draws, accepted = Draws(seed, steps), predictor.acceptance(request.k, request.verification)
    sampled = draws.step(resolved.lane, predictor.traffic, draws.centre(predictor.calibration), accepted, request)
    # Every rank does the same work on its share: showing them all changes no time.
    sampled = replace(sampled, graph=build_step_graph(resolved.lane, request.k, all_ranks=True))
    meta = {"command": "trace", "setting": setting.spec(), "seed": seed, "lane_sha256": lane_sha256(resolved.lane)}
    text = json.dumps(step_trace(sampled, steps=steps, title=setting.title, meta=meta), allow_nan=False)
    if output is None:
        click.echo(text)
        return
    write_text(output, text + "\n", force=force)
    click.echo(f"wrote {output}; open it at ui.perfetto.dev", err=True)
