"""The controls of a lane: catalogue values a person can move, each a dotted key of `--set` in its written unit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twin.lane.lane import Lane
from twin.planning.lever_list import least_hot, most_hot

#: What makes a control where the lane has the value: key, what people call it, the most as a multiple of the value.
_PARTS = (
    ("links.sidecar.latency", "sidecar round trip", 2.0),
    ("links.sidecar.bandwidth", "sidecar link bandwidth", 2.0),
    ("engine.sidecar_call_time", "sidecar call", 2.0),
    ("devices.primary.read_bandwidth", "memory bandwidth", 2.0),
    ("engine.launches_per_step", "small kernels a step", 2.0),
    ("engine.launch_time", "time of a small kernel", 2.0),
    ("engine.attention_layer_time", "attention of a layer", 2.0),
    ("engine.collectives.0.latency", "all-reduce latency", 2.0),
    ("links.host.bandwidth", "link to host memory", 2.0),
)


@dataclass(frozen=True)
class Control:
    """A slider: from `low` to `high` by `step` in `unit` as the catalogue writes it; `value` is the catalogue's."""

    key: str
    label: str
    unit: str
    value: float
    low: float
    high: float
    step: float


def controls(lane: Lane) -> list[Control]:
    """Controls of one lane, in the order of the page."""
    found = []
    if lane.cold_experts:
        hot, experts = lane.placement.hot.value, lane.checkpoint.experts.value
        high = float(max(hot, min(experts, most_hot(lane))))
        found.append(Control("placement.hot", "hot experts a layer", "", hot, float(least_hot(lane)), high, 1.0))
    for key, name, reach in _PARTS:
        written = _text(lane, key)
        if written is None:
            continue
        value, unit = written
        whole = value == int(value) and value > 20
        step = 1.0 if whole and unit == "" else float(f"{value / 100:.1g}") if value else 0.1
        found.append(Control(key, name, unit, value, 0.0 if "bandwidth" not in key else step, reach * value, step))
    if lane.ranks > 1 and lane.engine.collectives_per_layer.value:
        chunks = lane.engine.collective_chunks.value
        found.append(Control("engine.collective_chunks", "all-reduce chunks", "", chunks, 1.0, max(8.0, chunks), 1.0))
    return found


def _text(lane: Lane, key: str) -> tuple[float, str] | None:
    """The number and unit a value is written with; None where the lane has no such value."""
    node: Any = lane
    for part in key.split("."):
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, (list, tuple)):
            node = node[int(part)] if int(part) < len(node) else None
        else:
            node = getattr(node, part, None)
        if node is None:
            return None
    number, _, unit = str(node.text).partition(" ")
    value = float(number.replace("_", ""))
    return (value, unit) if value > 0 else None


def lane_options(lane: Lane) -> dict[str, Any]:
    """What the page needs to know of a lane."""
    policy = lane.policy
    return {
        "name": lane.name,
        "title": lane.title,
        "traffic": policy.traffic,
        "verification": policy.verification,
        "k": policy.k,
        "drafts": lane.checkpoint.draft is not None,
        "controls": [asdict(control) for control in controls(lane)],
    }
