"""`twin watch`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options

FILE = click.Path(dir_okay=False, path_type=Path)

LONGEST_S = 365 * 86_400.0


@click.command("watch")
@click.argument("url")
@options.lane()
@click.option(
    "--traffic", multiple=True, metavar="NAME[:WEIGHT]", help="Traffic class; again for a mix. Default: the lane's."
)
@click.option("--interval", default="5 s", show_default=True, metavar="TIME", help="Time between readings.")
@click.option("--for", "duration", metavar="TIME", help='Stop after this long, e.g. "10 min". Default: Ctrl-C.')
@click.option("--once", is_flag=True, help="Two readings, one comparison.")
@click.option(
    "--false-alarm-every",
    default="8 h",
    show_default=True,
    metavar="TIME",
    help="Mean time between false alarms at the edge of the twin's intervals.",
)
@click.option("--record", type=FILE, metavar="FILE.csv", help="Append each window's receipts to this table.")
@click.option(
    "--refit",
    type=FILE,
    metavar="OUT.json",
    help="At the end, fit a calibration with these windows and write it here; the one in use stays.",
)
@click.option(
    "--prometheus",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Export predictions and residuals on this port of this machine.",
)
@click.option("--timeout", default="5 s", show_default=True, metavar="TIME", help="Longest wait for one reading.")
@click.option("--ca-file", type=FILE, help="Certificates of a private authority (PEM).")
@click.option("--k", "k", type=int, help="Drafted tokens a step. Default: the lane's policy.")
@click.option("--schedule", metavar="TEXT", help='k by live streams: "1-4:5, 5-8:3, 9-32:3".')
@click.option("--verification", type=click.Choice(["token", "block", "greedy"]), help="Default: the lane's policy.")
@click.option("--max-seqs", type=int, help="Sequences the server runs at once.")
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
def command(
    url: str, lane_name: str, traffic: tuple[str, ...], interval: str, duration: str | None, once: bool,
    false_alarm_every: str, record: Path | None, refit: Path | None, port: int | None, timeout: str,
    ca_file: Path | None, k: int | None, schedule: str | None, verification: str | None, max_seqs: int | None,
    calibration: str | None, settings: tuple[str, ...], catalogue: str | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Follow the vLLM server at URL beside the twin of its lane: step time, acceptance by position, throughput, queue.

    Only /metrics is read. A drift alarm names the factor that left the twin's interval; with --for or --once the exit
    code is then 3.
    """
    import json
    import math
    import time

    from twin.endpoint.setup import served
    from twin.errors import GateFailed, TwinError
    from twin.lane.catalogue import catalogue_roots
    from twin.units import parse_quantity
    from twin.watch.client import PageClient
    from twin.watch.expect import Expectations
    from twin.watch.export import Exporter
    from twin.watch.record import append_receipts, propose, receipts_of
    from twin.watch.session import Watch
    from twin.watch.show import HEADER, line, to_json

    def seconds(text: str, flag: str) -> float:
        value = parse_quantity(text, "time", where=flag)
        if not 0.001 <= value <= LONGEST_S:
            raise TwinError(f"{flag} {text!r}: expected a time from 1 ms to {LONGEST_S / 86400:.0f} days.")
        return value

    interval_s = seconds(interval, "--interval")
    for_s = interval_s if once else seconds(duration, "--for") if duration is not None else math.inf
    if refit is not None and refit.exists():
        raise TwinError(f"--refit {refit}: exists already and is never overwritten; name another file.")
    if len(traffic) > 1 and (record is not None or refit is not None):
        raise TwinError("--record and --refit: a receipt is of one traffic class; watch with one --traffic for them.")
    client = PageClient(url, timeout_s=seconds(timeout, "--timeout"), ca_file=ca_file)
    given = {
        "k": k, "schedule": schedule, "verification": verification, "max_seqs": max_seqs, "calibration": calibration,
        "settings": settings,
    }  # fmt: skip
    roots = catalogue_roots(catalogue)
    server = served(lane_name, traffic, given, roots, seed)
    start_s = time.monotonic()
    watch = Watch(
        Expectations(server), client.fetch, lambda: time.monotonic() - start_s, time.sleep, interval_s=interval_s,
        false_alarm_every_s=max(seconds(false_alarm_every, "--false-alarm-every"), interval_s),
    )  # fmt: skip
    exporter = Exporter(port, server.lane.name) if port is not None else None
    if exporter is not None:
        click.echo(f"predictions and residuals at http://127.0.0.1:{exporter.port}/metrics", err=True)
    class_name = server.shares[0].name
    receipts, factors, compared = [], [], 0
    if not as_json:
        click.echo(HEADER)
    try:
        for observation in watch.run(for_s):
            click.echo(json.dumps(to_json(observation), allow_nan=False) if as_json else line(observation))
            compared += observation.window is not None
            factors += [a.factor for a in observation.alarms]
            if exporter is not None:
                exporter.show(observation, watch)
            found = receipts_of(observation, server, class_name, client.url)
            receipts += found
            if record is not None:
                append_receipts(record, found)
    except KeyboardInterrupt:
        click.echo("stopped.", err=True)
    finally:
        if exporter is not None:
            exporter.close()
    if refit is not None:
        click.echo("\n".join(propose(receipts, server, roots, refit, seed=seed)), err=as_json)
    if for_s < math.inf and not compared:
        raise TwinError(f"{client.url}: no interval could be compared; {watch.polls_failed} readings failed.")
    if factors and for_s < math.inf:
        raise GateFailed(f"drift: {', '.join(dict.fromkeys(factors))}.")
