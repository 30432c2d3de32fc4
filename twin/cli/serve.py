"""`twin serve`."""

from __future__ import annotations

from typing import Any

import click

from twin.cli import options


@click.command("serve")
@options.lane()
@click.option(
    "--traffic", multiple=True, metavar="NAME[:WEIGHT]", help="Traffic class; again for a mix. Default: the lane's."
)
@click.option(
    "--speed",
    default="1",
    show_default=True,
    metavar="1|10|max",
    help="Simulated seconds in a second, below 1 in slow motion; max: do not wait at all.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--model-name", help="Name clients use. Default: the lane's; the checkpoint's name is understood too.")
@click.option(
    "--output",
    "output_tokens",
    type=int,
    help="Output tokens of requests that do not say. Default: the class's lengths.",
)
@click.option("--k", "k", type=int, help="Drafted tokens a step; 0 is plain decoding. Default: the lane's policy.")
@click.option("--schedule", metavar="TEXT", help='k by live streams: "1-4:5, 5-8:3, 9-32:3".')
@click.option("--verification", type=click.Choice(["token", "block", "greedy"]), help="Default: the lane's policy.")
@click.option("--max-seqs", type=int, help="Sequences that run at once. Default: what the k-schedule covers, or 32.")
@click.option(
    "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Scheduler limit, e.g. max_batched_tokens=4096."
)
@click.option("--replicas", type=int, help="Copies of the lane behind a router.")
@click.option("--max-body", default="8 MiB", show_default=True, metavar="SIZE", help="Largest body of a request.")
@click.option(
    "--step-factor",
    type=options.Finite(0.01, 100),
    default=1.0,
    help="Multiply every step time: a lane that drifted, to try alarms on.",
)
@click.option(
    "--acceptance-shift",
    multiple=True,
    metavar="POSITION:CHANGE",
    help='Move conditional acceptance at a position, e.g. "1:-0.1", for the same purpose.',
)
@options.calibration
@options.settings
@options.catalogue
@options.seed
def command(
    lane_name: str, traffic: tuple[str, ...], speed: str, host: str, port: int, model_name: str | None,
    max_body: str, step_factor: float, acceptance_shift: tuple[str, ...], catalogue: str | None, seed: int,
    **given: Any,
) -> None:  # fmt: skip
    """Serve a lane as an OpenAI-compatible endpoint whose timing is the twin's.

    Answers are filler text with the right number of tokens; /metrics speaks vLLM's names. Ctrl-C stops it.
    """
    from twin.endpoint.run import bind, is_loopback, require_web, run_app

    require_web()
    from twin.endpoint.app import make_app
    from twin.endpoint.engine import LiveEngine
    from twin.endpoint.setup import make_clock, parse_shifts, served
    from twin.lane.catalogue import catalogue_roots
    from twin.units import parse_quantity

    shifts = parse_shifts(acceptance_shift)
    clock_of = make_clock(speed)
    body_bytes = int(parse_quantity(max_body, "bytes", where="--max-body"))
    server = served(lane_name, traffic, given, catalogue_roots(catalogue), seed)
    name = model_name or server.lane.name
    engine = LiveEngine(server, seed=seed, model=name, step_factor=step_factor, acceptance_shift=shifts)
    models = tuple(dict.fromkeys((name, server.lane.name, server.lane.checkpoint.name)))
    sock = bind(host, port)
    for warning in server.warnings:
        click.echo(f"note: {warning}", err=True)
    if not is_loopback(host):
        click.echo(f"note: listening on {host}: anybody who can reach this machine can use the endpoint.", err=True)
    shown = f"[{host}]" if ":" in host else host
    classes = ", ".join(s.name for s in server.shares)
    click.echo(
        f"{server.lane.name} on {classes} traffic at http://{shown}:{sock.getsockname()[1]}/v1 "
        f"(model {name!r}, speed {speed}, k by streams {server.schedule.text()}); metrics at /metrics",
        err=True,
    )
    run_app(make_app(engine, clock_of(), models=models, max_body_bytes=body_bytes), sock)
