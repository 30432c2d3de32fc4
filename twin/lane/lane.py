"""A lane: one concrete box that serves one checkpoint with one engine, and where its experts live."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from twin.lane.checkpoint import Checkpoint
from twin.lane.device import Device, Link
from twin.lane.engine import Engine
from twin.lane.sourced import Amount, Bytes, Count, Number, Strict, within


class Placement(Strict):
    """Where a layer's experts live.

    `hot` experts of every layer are in the primary devices, the rest on `cold_on`: a sidecar GPU, host memory read
    over a
    link, or nowhere (all resident). `tensor_parallel` splits every matrix, `expert_parallel` deals whole experts to
    ranks.
    `map_mismatch` scales the cold share of routes of traffic that the hot map was not made for (1: as the class says).
    `kv_bytes_per_token` is what a token takes in this server's cache (padding, index and draft copies in), where that was measured.
    `map_kind` blind: tensors went to the cold place whole, without regard to which experts are popular; cache: the
    `hot` slots hold what was used last, and `cache_hit_rate` of a step's experts are found there (a measured rate of these slots: other slots need another).
    `cold_computed_by` says who works on cold experts in host memory: the primary devices, reading them over the link,
    or the host's own cores.
    """

    tensor_parallel: Count
    expert_parallel: Count
    pipeline: Count | None = None
    hot: Amount
    cold_on: Literal["none", "sidecar", "host"]
    kv_memory: Bytes
    kv_bytes_per_token: Bytes | None = None
    engram_on: Literal["none", "primary", "host", "nvme"]
    host_prefix_memory: Bytes | None = None
    pinned_rounding: Literal["none", "power_of_two"] = "none"
    draft_resident: bool = True
    rejected_weight: Annotated[Number, within(0, 100)]
    map_calibrated_on: str = ""
    map_mismatch: Annotated[Number, within(0, 1000)] | None = None
    map_kind: Literal["popularity", "blind", "cache"] = "popularity"
    cache_hit_rate: Annotated[Number, within(0, 1)] | None = None
    cold_computed_by: Literal["primary", "host"] = "primary"
    sidecars: Count | None = None


class Policy(Strict):
    """How the lane decodes unless asked otherwise: k, or a schedule [[first, last, k], ...] by live streams."""

    k: int = Field(ge=0, le=64)
    schedule: list[list[int]] | None = None
    verification: Literal["token", "block", "greedy"]
    traffic: str
    source: str
    kind: Literal["spec", "measured", "derived", "assumed"] = "measured"


class LaneFile(Strict):
    """A lane as its file says it, with its parts by name."""

    name: str
    title: str
    description: str = ""
    aliases: list[str] = Field(default=[], max_length=64)
    calibration: str = ""
    devices: dict[Literal["primary", "sidecar", "host"], str]
    links: dict[Literal["peer", "sidecar", "host"], str] = Field(default={}, max_length=8)
    checkpoint: str
    engine: str
    placement: Placement
    policy: Policy


class Lane(Strict):
    """A lane with its parts resolved from the catalogue."""

    name: str
    title: str
    description: str
    aliases: list[str]
    calibration: str
    devices: dict[str, Device]
    links: dict[str, Link]
    checkpoint: Checkpoint
    engine: Engine
    placement: Placement
    policy: Policy

    @model_validator(mode="after")
    def _whole(self) -> Lane:
        if "primary" not in self.devices:
            raise ValueError("devices.primary is missing: the device that runs the layers")
        experts, hot = int(self.checkpoint.experts.value), self.placement.hot.value
        if not 0 <= hot <= experts:
            raise ValueError(
                f"placement.hot is {hot:g}; the checkpoint has {experts} experts a layer, so expected 0 to {experts}"
            )
        if self.placement.cold_on == "none" and hot != experts:
            raise ValueError(
                f'placement.cold_on is "none" but only {hot:g} of {experts} experts are hot; say where the rest live'
            )
        if self.placement.cold_on == "sidecar":
            self._needs("sidecar", self.engine.sidecar_call_time is not None, "engine.sidecar_call_time")
        if self.placement.cold_on == "host":
            self._needs("host", self.engine.host_read_efficiency is not None, "engine.host_read_efficiency")
        if (self.placement.map_kind == "cache") != (self.placement.cache_hit_rate is not None):
            raise ValueError(
                'placement.map_kind "cache" and placement.cache_hit_rate go together: give both or neither'
            )
        if self.placement.cold_computed_by == "host" and self.placement.cold_on != "host":
            raise ValueError(
                'placement.cold_computed_by is "host" but placement.cold_on is not: nothing is there to compute'
            )
        if self.ranks > 1 and not self.engine.collectives:
            raise ValueError("placement.tensor_parallel is above 1 but the engine has no collectives")
        if self.ranks > 1 and "peer" not in self.links:
            raise ValueError("placement.tensor_parallel is above 1 but links.peer is missing")
        if self.ranks % self.placement.expert_parallel.value:
            raise ValueError("placement.expert_parallel must divide placement.tensor_parallel")
        return self

    def _needs(self, role: str, has_cost: bool, cost: str) -> None:
        if role not in self.devices or role not in self.links:
            raise ValueError(f'placement.cold_on is "{role}" but devices.{role} or links.{role} is missing')
        if not has_cost:
            raise ValueError(f'placement.cold_on is "{role}" but {cost} is missing')

    @property
    def ranks(self) -> int:
        """How many primary devices work on one step."""
        return int(self.placement.tensor_parallel.value)

    @property
    def cold_experts(self) -> int:
        """Experts of a layer that do not live in the primary devices."""
        return int(self.checkpoint.experts.value - self.placement.hot.value)

    @property
    def blind_cold_share(self) -> float | None:
        """Share of the experts a step touches that are cold, whichever they are; None where popularity decides."""
        if self.cold_experts == 0:
            return None
        if self.placement.map_kind == "cache" and self.placement.cache_hit_rate is not None:
            return 1.0 - self.placement.cache_hit_rate.value
        if self.placement.map_kind == "blind":
            return self.cold_experts / self.checkpoint.experts.value
        return None

    @property
    def tensor_shards(self) -> int:
        """Into how many pieces one expert's matrices are cut."""
        return self.ranks // int(self.placement.expert_parallel.value)
