"""`twin init`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.ingest.lane_text import LaneChoices

_QUESTIONS = (
    ("checkpoint", "Checkpoint (twin show checkpoint NAME)"),
    ("engine", "Engine, the software stack (twin show engine NAME)"),
    ("primary", "Device that decodes (twin show device NAME)"),
    ("kv_memory", 'Memory for the KV cache over all of them, e.g. "20 GiB"'),
    ("k", "Draft tokens per step, 0 without speculation"),
    ("verification", "Verification rule: token, block or greedy"),
    ("traffic", "Traffic class it mostly serves (twin traffic)"),
)


@click.command("init")
@click.argument("name")
@click.option("--like", metavar="LANE", help="Start from a lane of the catalogue; flags override its values.")
@click.option("--title", default="", help="Title for people.")
@click.option("--checkpoint", help="Checkpoint of the catalogue.")
@click.option("--engine", help="Engine of the catalogue.")
@click.option("--primary", help="Device that decodes.")
@click.option(
    "--tensor-parallel", type=click.IntRange(1, 1024), help="How many primary devices share a step. Default 1."
)
@click.option(
    "--expert-parallel", type=click.IntRange(1, 1024), help="Ranks that whole experts are dealt to. Default 1."
)
@click.option("--peer-link", help="Link between the primary devices.")
@click.option("--sidecar", help="Device that computes cold experts.")
@click.option("--sidecar-link", help="Link to it.")
@click.option("--host", help="CPU with its memory.")
@click.option("--host-link", help="Link to it.")
@click.option("--hot", type=click.IntRange(0, 8192), help="Experts of a layer in the primary devices. Default: all.")
@click.option("--cold-on", type=click.Choice(["none", "sidecar", "host"]), help="Where the other experts live.")
@click.option("--engram-on", type=click.Choice(["none", "primary", "host", "nvme"]), help="Where Engram tables live.")
@click.option("--kv-memory", metavar="QUANTITY", help='Memory for the KV cache, e.g. "20 GiB".')
@click.option("--k", type=click.IntRange(0, 64), help="Draft tokens per step.")
@click.option("--verification", type=click.Choice(["token", "block", "greedy"]), help="Verification rule.")
@click.option("--traffic", help="Traffic class it mostly serves.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    show_default=True,
    help="Catalogue folder to write into: DIR/hardware/lanes/NAME.toml.",
)
@click.option("--force", is_flag=True, help="Replace the file that is there.")
@options.catalogue
def command(
    name: str, like: str | None, title: str, directory: Path, force: bool, catalogue: str | None, **flags: Any
) -> None:
    """Write a commented lane file NAME.toml that `twin check` accepts.

    Takes flags, or --like another lane; asks for what is missing when it runs on a terminal.
    """
    from twin.errors import CatalogueError
    from twin.files import write_text
    from twin.ingest.lane_text import lane_toml
    from twin.lane.catalogue import catalogue_roots

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name):
        raise CatalogueError(f"lane {name!r}: a name has letters, digits, dots and dashes only.")
    roots = catalogue_roots(catalogue)
    if directory.is_dir() and directory.resolve() not in [root.resolve() for root in roots]:
        roots = (directory, *roots)
    choices = _choices(name, like, title, flags, roots)
    path = directory / "hardware" / "lanes" / f"{name}.toml"
    content = lane_toml(choices)
    _check(name, content, roots)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, content, force=force)
    click.echo(
        f"{path}: written; check it with `twin check --catalogue {directory}`, then `twin predict --catalogue "
        f"{directory} --lane {name}`.",
        err=True,
    )


def _choices(name: str, like: str | None, title: str, flags: dict[str, Any], roots: tuple[Path, ...]) -> LaneChoices:
    from twin.acceptance.traffic import load_traffic
    from twin.errors import CatalogueError
    from twin.ingest.lane_text import LaneChoices
    from twin.lane.catalogue import load_entry, load_lane
    from twin.lane.checkpoint import Checkpoint

    values: dict[str, Any] = {}
    devices: dict[str, str] = {}
    links: dict[str, str] = {}
    extra: dict[str, Any] = {}
    if like:
        lane = load_lane(like, roots)
        place = lane.placement
        values = {
            "checkpoint": lane.checkpoint.name,
            "engine": lane.engine.name,
            "primary": lane.devices["primary"].name,
            "tensor_parallel": int(place.tensor_parallel.value),
            "expert_parallel": int(place.expert_parallel.value),
            "hot": int(place.hot.value),
            "cold_on": place.cold_on,
            "engram_on": place.engram_on,
            "kv_memory": place.kv_memory.text,
            "k": lane.policy.k,
            "verification": lane.policy.verification,
            "traffic": lane.policy.traffic,
        }
        extra = {"schedule": lane.policy.schedule, "like": place, "like_name": lane.name}
        devices = {role: d.name for role, d in lane.devices.items() if role != "primary"}
        links = {role: link.name for role, link in lane.links.items()}
    values |= {key: value for key, value in flags.items() if value is not None}
    if flags.get("k") is not None:
        extra.pop("schedule", None)
    missing = [(key, question) for key, question in _QUESTIONS if values.get(key) is None]
    if missing and not sys.stdin.isatty():
        names = ", ".join("--" + key.replace("_", "-") for key, _ in missing)
        raise CatalogueError(
            f"lane {name!r}: pass {names}, or --like LANE to start from one of the catalogue (`twin lanes`)."
        )
    for key, question in missing:
        values[key] = click.prompt(question, type=int if key == "k" else str)
    for role in ("sidecar", "host"):
        devices |= {role: values[role]} if values.get(role) else {}
        links |= {role: values[f"{role}_link"]} if values.get(f"{role}_link") else {}
    links |= {"peer": values["peer_link"]} if values.get("peer_link") else {}
    checkpoint = load_entry("checkpoints", values["checkpoint"], roots)
    assert isinstance(checkpoint, Checkpoint)
    load_traffic(values["traffic"], roots)
    experts = int(checkpoint.experts.value)
    hot = values["hot"] if values.get("hot") is not None else experts
    if hot < experts and values.get("cold_on", "none") == "none":
        raise CatalogueError(
            f"lane {name!r}: {hot} of {experts} experts are hot; pass --cold-on sidecar or host for the rest."
        )
    engram = values.get("engram_on")
    if engram is None:
        if checkpoint.engram is not None:
            raise CatalogueError(f"lane {name!r}: the checkpoint has Engram tables; pass --engram-on.")
        engram = "none"
    return LaneChoices(
        name=name,
        title=title or f"{name}: {checkpoint.title} on {values['primary']}",
        checkpoint=values["checkpoint"],
        engine=values["engine"],
        primary=values["primary"],
        tensor_parallel=values.get("tensor_parallel") or 1,
        expert_parallel=values.get("expert_parallel") or 1,
        experts=experts,
        hot=hot,
        cold_on=values.get("cold_on") or "none",
        kv_memory=values["kv_memory"],
        k=values["k"],
        verification=values["verification"],
        traffic=values["traffic"],
        engram_on=engram,
        devices=devices,
        links=links,
        **extra,
    )


def _check(name: str, content: str, roots: tuple[Path, ...]) -> None:
    """Resolve the lane and its capacity before anything is written, so that what is written passes `twin check`."""
    import tempfile

    from twin.errors import CatalogueError
    from twin.lane.capacity import require_fit
    from twin.lane.catalogue import load_lane
    from twin.lane.check import check_sources

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "hardware" / "lanes"
        base.mkdir(parents=True)
        (base / f"{name}.toml").write_text(content, encoding="utf-8")
        lane = load_lane(name, (Path(folder), *roots))
        require_fit(lane)
        errors = [f for f in check_sources(f"lanes/{name}", lane) if f.level == "error"]
    if errors:
        raise CatalogueError(f"{errors[0].where}: {errors[0].message}")
