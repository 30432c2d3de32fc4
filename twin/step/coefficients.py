"""The calibrated numbers of a lane's step: every one a catalogue value with a prior, shared by the lanes that share
the part.

A coefficient's key names the part it belongs to (`device.gb300.read_bandwidth`, `engine.NAME.launch_time`), so a fit
over several lanes
moves one number wherever the part is used. A calibration multiplies the catalogue value, so a what-if on the value
keeps
the calibrated ratio. The prior's width is by the kind of the value; the widths are stated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.lane.lane import Lane
from twin.lane.sourced import Kind, Sourced

FloatOrArray = float | npt.NDArray[np.float64]

#: Prior standard deviation of the logarithm by kind of value. A sheet or a measurement of the same part elsewhere is
#: off by
#: a few per cent, arithmetic by a quarter, a guess by a factor near two.
PRIOR_LOG_SD: dict[Kind, float] = {"spec": 0.05, "measured": 0.08, "derived": 0.25, "assumed": 0.5}
#: A memory micro-benchmark repeats within 1 % on one card; cards, clocks and kernels of one kind differ by about 2 %.
MEASURED_BANDWIDTH_LOG_SD = 0.02
#: A workload's own acceptance around its traffic class: prose of one harness against prose of another.
WORKLOAD_ACCEPTANCE_LOG_SD = 0.25
#: How alike the streams of one harness are: nearly unknown between prompts on one topic and one prompt repeated.
WORKLOAD_SHARING_LOG_SD = 1.0
#: Locality of routing: exponents measured on five models and their workloads span 0.65 to 0.97 (`twin.routing.table`),
#: log(0.97 / 0.65) / 3.92 as a normal's 95 % range.
ROUTING_LOCALITY_LOG_SD = 0.10
#: Keys of factors on what a traffic class says of routing. A lane has them only where receipts of routing brought them.
ROUTING_PREFIX = "routing."


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One calibrated number: `name` is its role in the formulas, `key` the part it belongs to, `value` in internal
    units.
    """

    name: str
    key: str
    value: float
    kind: Kind
    source: str
    unit: str

    @property
    def prior_log_sd(self) -> float:
        """Width of the prior of log(value)."""
        if self.key.startswith("acceptance."):
            return WORKLOAD_ACCEPTANCE_LOG_SD
        if self.key.startswith("sharing."):
            return WORKLOAD_SHARING_LOG_SD
        if self.key.startswith(ROUTING_PREFIX) and self.key.endswith(".beta"):
            return ROUTING_LOCALITY_LOG_SD
        if self.kind == "measured" and self.unit == "B/s":
            return MEASURED_BANDWIDTH_LOG_SD
        return PRIOR_LOG_SD[self.kind]


def locality_key(checkpoint: str, traffic: str) -> str:
    """Key of the factor on the locality exponent of a class on a checkpoint: routing is a property of model and text."""
    return f"{ROUTING_PREFIX}{checkpoint}.{traffic}.beta"


def cold_share_key(lane: str, traffic: str) -> str:
    """Key of the factor on the cold share of a class under a lane's own hot map (other maps: `map_mismatch`)."""
    return f"{ROUTING_PREFIX}{lane}.{traffic}.cold_share"


_ENGINE = {
    "launch_time": "s", "attention_layer_time": "s", "row_time": "s", "context_time": "s", "moe_floor": "s", "host_gap": "s",
    "sampling_time": "s", "draft_overhead": "s", "sidecar_call_time": "s", "sidecar_row_time": "s", "launches_beside_sidecar": "1", "host_read_efficiency": "1",
    "engram_time": "s", "prefill_efficiency": "1", "prefill_context_time": "s", "prefill_overhead": "s",
    "sidecar_bulk_row_time": "s", "tokenise_time": "s",
}  # fmt: skip


def coefficients(lane: Lane) -> dict[str, Coefficient]:
    """Every coefficient the lane's step and prefill use, by name."""
    found: dict[str, Coefficient] = {}

    def add(name: str, key: str, value: Sourced | None, unit: str) -> None:
        if value is not None and value.value > 0:
            found[name] = Coefficient(name, key, value.value, value.kind, value.source, unit)

    for role, device in lane.devices.items():
        if role in ("primary", "sidecar") or (role == "host" and lane.placement.cold_computed_by == "host"):
            add(f"{role}.read_bandwidth", f"device.{device.name}.read_bandwidth", device.read_bandwidth, "B/s")
    if lane.placement.cold_computed_by == "host":
        host = lane.devices["host"]
        add("host.compute", f"device.{host.name}.compute", host.compute, "flop/s")
    for role, link in lane.links.items():
        if role in ("sidecar", "host"):
            add(f"{role}_link.latency", f"link.{link.name}.latency", link.latency, "s")
            add(f"{role}_link.bandwidth", f"link.{link.name}.bandwidth", link.bandwidth, "B/s")
    engine = lane.engine
    for name, unit in _ENGINE.items():
        add(name, f"engine.{engine.name}.{name}", getattr(engine, name), unit)
    if lane.ranks > 1:
        for i, law in enumerate(engine.collectives):
            add(f"collective.{i}.latency", f"engine.{engine.name}.collective.{law.algorithm}.latency", law.latency, "s")
            add(
                f"collective.{i}.inverse_bandwidth",
                f"engine.{engine.name}.collective.{law.algorithm}.inverse_bandwidth",
                law.inverse_bandwidth,
                "s/B",
            )
    if lane.cold_experts:
        add("map_mismatch", f"lane.{lane.name}.map_mismatch", lane.placement.map_mismatch, "1")
    add("rejected_weight", f"lane.{lane.name}.rejected_weight", lane.placement.rejected_weight, "1")
    return found


class Values(Mapping[str, FloatOrArray]):
    """Coefficient values after calibration: floats, or `(samples,)` arrays of posterior draws. Missing names are 0.

    Factors on a class's routing are found under their keys, because the value they multiply is the class's.
    """

    def __init__(self, base: Mapping[str, Coefficient], multipliers: Mapping[str, FloatOrArray]) -> None:
        self._values: dict[str, FloatOrArray] = {
            name: c.value * multipliers.get(c.key, 1.0) for name, c in base.items()
        }
        self._values |= {key: factor for key, factor in multipliers.items() if key.startswith(ROUTING_PREFIX)}

    def with_value(self, name: str, value: FloatOrArray) -> Values:
        """A copy with one more named value."""
        copy = Values({}, {})
        copy._values = self._values | {name: value}
        return copy

    def part(self, samples: slice) -> Values:
        """The same values of some of the samples."""
        copy = Values({}, {})
        copy._values = {
            n: v[samples] if isinstance(v, np.ndarray) and v.size > 1 else v for n, v in self._values.items()
        }
        return copy

    def __getitem__(self, name: str) -> FloatOrArray:
        return self._values.get(name, 0.0)

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values
