"""From the flags of `twin serve` to a server that can be driven."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twin.endpoint.clock import Clock, EventClock, WallClock
from twin.errors import PolicyError
from twin.planning.server import Server, make_server
from twin.planning.study import Option, TrafficShare, make_study


def served(lane: str, traffic: Sequence[str], given: Mapping[str, Any], roots: Sequence[Path], seed: int) -> Server:
    """The server of a lane under flags (`k`, `schedule`, `limits` ...). Raises TwinError for what cannot be."""
    from twin.lane.catalogue import load_lane

    names = list(traffic) or [load_lane(lane, roots).policy.traffic]
    option: dict[str, Any] = {"name": lane, "lane": lane, "set": list(given.get("settings") or ())}
    for key in ("k", "schedule", "verification", "max_seqs", "calibration"):
        if given.get(key) is not None:
            option[key] = given[key]
    option["limits"] = dict(_pair(text) for text in given.get("limits") or ())
    if given.get("replicas") is not None:
        option["deployment"] = {"replicas": given["replicas"]}
    shares = [_share(text, given.get("output_tokens")) for text in names]
    # A study checks the flags in one place and with one kind of message.
    raw = {"traffic": shares, "options": [option], "arrivals": {"kind": "closed", "users": 1}, "seed": seed}
    study = make_study(raw, "the command line")
    chosen: Option = study.options[0]
    classes: list[TrafficShare] = study.traffic
    return make_server(chosen, classes, roots, seed=seed)


def make_clock(text: str) -> Callable[[], Clock]:
    """What makes the clock of `--speed`; it starts when called. Raises PolicyError."""
    if text == "max":
        return EventClock
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0.001 <= speed <= 1e6:
        raise PolicyError(f"--speed {text!r}: expected a number such as 1 or 10, or max.")
    return lambda: WallClock(speed)


def parse_shifts(texts: Sequence[str]) -> dict[int, float]:
    """ "1:-0.1" as {1: -0.1}. Raises PolicyError."""
    found = {}
    for text in texts:
        position, colon, change = text.partition(":")
        try:
            place, moved = int(position), float(change)
        except ValueError:
            place, moved = 0, math.nan
        if not colon or place < 1 or not -1 <= moved <= 1:
            raise PolicyError(f'--acceptance-shift {text!r}: expected POSITION:CHANGE, for example "1:-0.1".')
        found[place] = moved
    return found


def _share(text: str, output_tokens: int | None) -> dict[str, Any]:
    name, colon, weight = text.partition(":")
    share: dict[str, Any] = {"name": name}
    if colon:
        try:
            share["weight"] = float(weight)
        except ValueError:
            raise PolicyError(f"--traffic {text!r}: {weight!r} is not a weight.") from None
    if output_tokens is not None:
        share["output_tokens"] = output_tokens
    return share


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise PolicyError(f"--limit {text!r}: expected KEY=VALUE, for example max_batched_tokens=4096.")
    plain = value.strip()
    try:
        return key.strip(), int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    except ValueError:
        return key.strip(), plain
