"""`twin schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.planning.schedule import Choice, Plan


@click.command("schedule")
@options.lane()
@click.option("--traffic", metavar="NAME", help="Traffic class; `twin traffic list` lists them. Default: the lane's.")
@click.option("--max-streams", default=32, show_default=True, help="Live streams to plan for: 1 to this.")
@click.option("--k", "ks", default="0..9", show_default=True, metavar="LIST", help="Block lengths to try.")
@click.option("--verification", metavar="RULE", help="token, block or greedy. Default: the lane's policy.")
@click.option("--context", "context_tokens", type=int, default=2048, show_default=True, help="Tokens of a stream.")
@click.option("--tpot", metavar="TIME", help='Largest mean time per output token of a stream, e.g. "8 ms".')
@click.option("--tolerance", metavar="SHARE", default="2 %", show_default=True, help="A smaller gain changes nothing.")
@options.calibration
@options.settings
@options.catalogue
@options.seed
@options.as_json
def command(
    lane_name: str, traffic: str | None, max_streams: int, ks: str, verification: str | None, context_tokens: int,
    tpot: str | None, tolerance: str, calibration: str | None, settings: tuple[str, ...], catalogue: str | None,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """The k with the most tok/s at every number of live streams, and the schedule in vLLM's own syntax.

    Within --tolerance of the most, k stays what it was with fewer streams; with one stream it is the k that the class
    was measured at. --tolerance 0 takes the best mean whatever its lead.
    """
    from twin.acceptance.model import RULES
    from twin.cli.acceptance import block_lengths
    from twin.errors import PolicyError, nearest
    from twin.lane.catalogue import catalogue_roots, load_lane
    from twin.lane.override import override
    from twin.planning.predict import make_predictor
    from twin.planning.schedule import plan_schedule
    from twin.units import parse_quantity

    roots = catalogue_roots(catalogue)
    lane = override(load_lane(lane_name, roots), settings)
    rule = verification or lane.policy.verification
    if rule not in RULES:
        raise PolicyError(f"--verification {rule!r}: {nearest(rule, RULES)}")
    if not 1 <= context_tokens <= 16_000_000:
        raise PolicyError(f"--context {context_tokens}: expected 1 to 16000000 tokens.")
    limit = parse_quantity(tpot, "time", where="--tpot") if tpot is not None else None
    if limit is not None and limit <= 0:
        raise PolicyError(f"--tpot {tpot!r}: expected a time above 0.")
    name = traffic or lane.policy.traffic
    predictor = make_predictor(lane, name, roots, calibration=calibration, seed=seed, samples=400)
    plan = plan_schedule(
        predictor, max_streams=max_streams, ks=block_lengths(ks), verification=rule, context_tokens=context_tokens,
        tpot_s=limit, tolerance=parse_quantity(tolerance, "number", where="--tolerance"),
    )  # fmt: skip
    if as_json:
        options.print_json(
            {
                "schema_version": 1, "command": "schedule", "lane": lane.name, "traffic": name, "verification": rule,
                "tolerance": plan.tolerance, "schedule": plan.schedule.text(),
                "num_speculative_tokens_per_batch_size": [list(r) for r in plan.schedule.ranges],
                "choices": [c.to_dict() for c in plan.choices], "warnings": list(plan.warnings),
            }
        )  # fmt: skip
        return
    _print(plan, f"{lane.name}, {name}, {rule} verification")


def _shown(choices: Sequence[Choice]) -> list[Choice]:
    """All rows of a short plan; of a long one the powers of two, the last, and those where k changes."""
    if len(choices) <= 12:
        return list(choices)
    changed = {c.streams for before, c in pairwise(choices) if before.k != c.k}
    return [c for c in choices if c.streams in changed or c.streams & (c.streams - 1) == 0 or c is choices[-1]]


def _print(plan: Plan, title: str) -> None:
    import json

    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("streams", "k", "tok/s", "90 %", "TPOT ms", "next k", "loses", "is best", "within"):
        table.add_column(column, justify="right", no_wrap=True)
    for c in _shown(plan.choices):
        interval, near = f"{c.tok_s_p05:.0f}-{c.tok_s_p95:.0f}", "" if c.next_k is None else str(c.next_k)
        table.add_row(
            str(c.streams), str(c.k), f"{c.tok_s:.0f}", interval, f"{c.tpot_s * 1e3:.2f}", near,
            f"{100 * c.next_loss:+.1f} %" if c.next_k is not None else "", f"{100 * c.confidence:.0f} %",
            f"{100 * c.confidence_within:.0f} %",
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    near = f"{100 * plan.tolerance:g} %"
    click.echo(f"loses: what the next best k loses. is best: share of draws. within: less than {near} off the best.\n")
    click.echo(f"schedule  {plan.schedule.text()}")
    longest = max(plan.schedule.ks)
    config = {"num_speculative_tokens": longest, "num_speculative_tokens_per_batch_size": plan.schedule.ranges}
    click.echo(f"vLLM      --speculative-config '{json.dumps(config)}'")
    for text in plan.warnings:
        click.echo(f"warning: {text}", err=True)
