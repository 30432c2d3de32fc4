"""Small named checks of a catalogue: each finding says what, where, and the repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twin.errors import CatalogueError, TwinError
from twin.lane.capacity import memory_sums
from twin.lane.catalogue import FOLDERS, load_entry, load_lane, names
from twin.lane.lane import Lane
from twin.lane.sourced import Sourced

Level = Literal["assumed", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found; an `error` fails the check, `assumed` is listed and does not."""

    check: str
    level: Level
    where: str
    message: str


def check_catalogue(roots: Sequence[Path]) -> list[Finding]:
    """Every finding over all entries of all folders."""
    findings: list[Finding] = []
    for folder in FOLDERS:
        for name in names(folder, roots):
            try:
                entry = load_entry(folder, name, roots)
            except CatalogueError as error:
                findings.append(Finding("readable", "error", f"{folder}/{name}", str(error)))
                continue
            findings += check_sources(f"{folder}/{name}", entry)
            if folder == "lanes":
                findings += _check_lane(name, roots)
    return findings


def check_sources(where: str, entry: Any) -> Iterator[Finding]:
    """A value without a source is an error; an assumed one is listed."""
    for key, value in sourced_values(entry):
        if not value.source.strip():
            yield Finding(
                "source",
                "error",
                f"{where}: {key}",
                f'{value.text} has no source; add source = "..." and kind = "...".',
            )
        elif value.kind == "assumed":
            yield Finding("assumed", "assumed", f"{where}: {key}", f"{value.text}: {value.source}")


def sourced_values(node: Any, prefix: str = "") -> Iterator[tuple[str, Sourced]]:
    """Every sourced value of a model with its dotted key."""
    if isinstance(node, Sourced):
        yield prefix, node
    elif hasattr(type(node), "model_fields"):
        for name in type(node).model_fields:
            yield from sourced_values(getattr(node, name), f"{prefix}.{name}" if prefix else name)
    elif isinstance(node, dict):
        for name, child in node.items():
            yield from sourced_values(child, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(node, (list, tuple)):
        for index, child in enumerate(node):
            yield from sourced_values(child, f"{prefix}.{index}")


def _check_lane(name: str, roots: Sequence[Path]) -> Iterator[Finding]:
    where = f"lanes/{name}"
    try:
        lane = load_lane(name, roots)
    except TwinError as error:
        yield Finding("lane", "error", where, str(error))
        return
    yield from _check_capacity(where, lane)
    yield from _check_units(where, lane)
    yield from _check_policy(where, lane)


def _check_capacity(where: str, lane: Lane) -> Iterator[Finding]:
    for memory in memory_sums(lane):
        if not memory.fits:
            parts = " + ".join(f"{size / 2**30:.1f} GiB {part}" for part, size in memory.parts if size)
            yield Finding(
                "capacity",
                "error",
                where,
                f"{memory.memory}: {parts} = {memory.needed_bytes / 2**30:.1f} GiB, more than {memory.capacity_bytes / 2**30:.1f} GiB.",
            )


def _check_units(where: str, lane: Lane) -> Iterator[Finding]:
    """Values a factor of 1,000 from anything built are a unit slip."""
    ranges = {
        "read_bandwidth": (1e9, 2e13), "memory": (1e9, 4e12), "latency": (1e-8, 1e-2), "bandwidth": (1e8, 1e13), "launch_time": (1e-8, 1e-3),
        "moe_floor": (1e-7, 1e-2), "expert_bytes": (1e5, 1e9), "host_gap": (0.0, 0.1),
    }  # fmt: skip
    for key, value in sourced_values(lane):
        low, high = ranges.get(key.rsplit(".", 1)[-1], (float("-inf"), float("inf")))
        if not low <= value.value <= high:
            yield Finding(
                "plausible",
                "warning",
                f"{where}: {key}",
                f"{value.text} is outside {low:g} to {high:g} in base units; check the unit.",
            )


def _check_policy(where: str, lane: Lane) -> Iterator[Finding]:
    if lane.policy.schedule is not None:
        from twin.acceptance.policy import parse_schedule

        try:
            parse_schedule(lane.policy.schedule)
        except TwinError as error:
            yield Finding("policy", "error", where, str(error))
    if not lane.policy.source.strip():
        yield Finding("source", "error", f"{where}: policy", "the policy has no source.")
