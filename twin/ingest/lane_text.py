"""A commented lane file: every choice with its reason, what is only assumed said so."""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.ingest.toml_text import inline, text
from twin.lane.lane import Placement
from twin.lane.sourced import Sourced

_WRITTEN = {
    "tensor_parallel", "expert_parallel", "hot", "cold_on", "kv_memory", "engram_on", "rejected_weight",
}  # fmt: skip


@dataclass
class LaneChoices:
    """What a new lane is made of; names are catalogue names, memory sizes quantity texts."""

    name: str
    title: str
    checkpoint: str
    engine: str
    primary: str
    tensor_parallel: int
    expert_parallel: int
    experts: int
    hot: int
    cold_on: str
    kv_memory: str
    k: int
    verification: str
    traffic: str
    engram_on: str = "none"
    devices: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    schedule: list[list[int]] | None = None
    like: Placement | None = None
    like_name: str = ""
    source: str = "the lane's own setting, from twin init"


def lane_toml(lane: LaneChoices) -> str:
    """The file's text. Comments explain every line that a newcomer would ask about."""
    lines = [
        "# A lane: one concrete box that serves one model. Every value says where it is from (source) and what it is",
        "# (kind: spec, measured, derived, assumed). Run `twin check --catalogue DIR` after changes.",
        inline("name", lane.name),
        inline("title", lane.title),
        "",
        "# Parts by their catalogue names: `twin show checkpoint NAME`, `twin show engine NAME`.",
        inline("checkpoint", lane.checkpoint),
        inline("engine", lane.engine),
        "",
        "# primary: the device(s) that decode; sidecar: a GPU that computes cold experts; host: CPU memory.",
        "[devices]",
        inline("primary", lane.primary),
        *(inline(role, name) for role, name in lane.devices.items()),
        "",
    ]
    if lane.links:
        lines += ["# peer: between primary devices; sidecar, host: from the primary to that device.", "[links]"]
        lines += [inline(role, name) for role, name in lane.links.items()]
        lines.append("")
    everywhere = lane.hot == lane.experts
    lines += [
        "[placement]",
        "# tensor_parallel cuts every matrix over that many primary devices; expert_parallel deals whole experts "
        "instead.",
        _placed(lane, "tensor_parallel", str(lane.tensor_parallel)),
        _placed(lane, "expert_parallel", str(lane.expert_parallel)),
        f"# hot: experts of a layer (of {lane.experts}) that live in the primary devices; the rest on cold_on.",
        _placed(lane, "hot", str(lane.hot), "all experts resident" if everywhere else ""),
        f"cold_on = {text(lane.cold_on)}",
        "# Memory kept for the KV cache, over all primary devices.",
        _placed(lane, "kv_memory", lane.kv_memory),
        f"engram_on = {text(lane.engram_on)}",
        "# Rejected draft tokens route like accepted ones until somebody measures it.",
        inline(
            "rejected_weight",
            "1.0",
            "rejected rows routing like accepted ones; not measured on this lane",
            "assumed",
            quote=False,
        ),
        *_others(lane),
        "",
        "# How the lane decodes unless a prediction asks otherwise; a schedule by live streams is",
        "# schedule = [[1, 4, 5], [5, 8, 3]]: k = 5 for 1 to 4 streams, 3 for 5 to 8.",
        "[policy]",
        f"k = {lane.k}",
        *([f"schedule = {lane.schedule}"] if lane.schedule else []),
        inline("verification", lane.verification),
        inline("traffic", lane.traffic),
        inline("source", lane.source),
        "",
        "# Next: three cells of your own (`twin import ... -o receipts.csv`) and `twin fit receipts.csv --lane "
        f"{lane.name}` make the predictions yours.",
    ]
    return "\n".join(lines) + "\n"


def _placed(lane: LaneChoices, key: str, value: str, source: str = "") -> str:
    """A placement value: with the source of the lane it was taken from when it is the same there."""
    quote = key == "kv_memory"
    old = getattr(lane.like, key) if lane.like is not None else None
    if isinstance(old, Sourced) and (old.text == value or (not quote and old.value == float(value))):
        return inline(key, value, f"as lane {lane.like_name}: {old.source}", old.kind, quote=quote)
    return inline(key, value, source or lane.source, "spec", quote=quote)


def _others(lane: LaneChoices) -> list[str]:
    """What else the placement of the lane that was taken as a start says."""
    lines = []
    for key in Placement.model_fields if lane.like is not None else ():
        value, default = getattr(lane.like, key), Placement.model_fields[key].default
        if key in _WRITTEN or value is None or value == default:
            continue
        if isinstance(value, Sourced):
            plain = value.text.replace(".", "", 1).isdigit()
            lines.append(
                inline(key, value.text, f"as lane {lane.like_name}: {value.source}", value.kind, quote=not plain)
            )
        elif isinstance(value, bool):
            lines.append(f"{key} = {'true' if value else 'false'}")
        else:
            lines.append(inline(key, str(value)))
    return lines
