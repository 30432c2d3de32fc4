"""The parts of a lane that a person can change: for each a realistic step and the physical limit (the part made free).

A realistic step is an engineering guess and says what it stands for; the limit needs no guess. Which levers a lane has
follows from its placement and engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twin.lane.capacity import memory_sums
from twin.lane.lane import Lane
from twin.lane.override import override

#: A bandwidth that makes a read free without dividing by zero.
_FREE_BANDWIDTH = "1e9 GB/s"


@dataclass(frozen=True)
class Change:
    """What is different: `settings` as for --set, `free` costs that take no time, or what is drafted and kept.

    `best_k` takes the k with the most tok/s, `rejections` scales the chance that a draft is rejected, `cold_share` the
    share of routes that leave the hot set.
    """

    text: str
    settings: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    best_k: bool = False
    verification: str | None = None
    rejections: float = 1.0
    cold_share: float = 1.0

    def join(self, other: Change) -> Change | None:
        """Both at once; None when they turn the same knob."""
        mine, theirs = ({s.partition("=")[0] for s in c.settings} for c in (self, other))
        if mine & theirs or (self.best_k and other.best_k):
            return None
        return Change(
            text=f"{self.text}; {other.text}",
            settings=self.settings + other.settings,
            free=self.free + other.free,
            best_k=self.best_k or other.best_k,
            verification=self.verification or other.verification,
            rejections=self.rejections * other.rejections,
            cold_share=self.cold_share * other.cold_share,
        )


@dataclass(frozen=True)
class Lever:
    """One part with its two steps; None where there is no such step. `cost` is text: a price, or whose work it is."""

    name: str
    step: Change | None
    limit: Change | None
    cost: str = ""


def levers_of(lane: Lane, traffic: str, k: int, verification: str) -> list[Lever]:
    """Every lever this lane has under this policy, in no particular order."""
    return [*_policy(k, verification), *_kernels(lane, k), *_cold(lane, traffic), *_collectives(lane)]


def _policy(k: int, verification: str) -> Iterator[Lever]:
    yield Lever("k", Change("the k with the most tok/s, up to 16", best_k=True), None, "a flag")
    if k > 0:
        if verification == "token":
            yield Lever("verification", Change("block instead of token", verification="block"), None, "a flag")
        better, all_kept = (
            Change("a tenth fewer rejections", rejections=0.9),
            Change("every draft kept", rejections=0.0),
        )
        yield Lever("draft quality", better, all_kept, "training")


def _scaled(lane: Lane, key: str, factor: float) -> str:
    """The --set text that multiplies a catalogue value, written in the value's own unit."""
    node: object = lane
    for part in key.split("."):
        if isinstance(node, dict):
            node = node[part]
        elif isinstance(node, (list, tuple)):
            node = node[int(part)]
        else:
            node = getattr(node, part)
    number, _, unit = str(getattr(node, "text", "")).partition(" ")
    return f"{key}={float(number.replace('_', '')) * factor:.6g} {unit}".rstrip()


def _kernels(lane: Lane, k: int) -> Iterator[Lever]:
    def scaled(text: str, *keys: str, by: float) -> Change:
        return Change(text, settings=tuple(_scaled(lane, key, by) for key in keys))

    def free(text: str, *costs: str) -> Change:
        return Change(text, free=costs)

    engine, device = lane.engine, "devices.primary.read_bandwidth"
    yield Lever(
        "memory bandwidth",
        scaled("a tenth more", device, by=1.1),
        Change("reads are free", (f"{device}={_FREE_BANDWIDTH}",)),
        "another device",
    )
    count = ["engine.launches_per_step"] + (
        ["engine.launches_beside_sidecar"] if engine.launches_beside_sidecar else []
    )
    yield Lever(
        "small kernels",
        scaled("half of them fused away", *count, by=0.5),
        free("none", "launch", "launch_beside"),
        "kernel work",
    )
    floor = "engine.moe_floor"
    yield Lever(
        "expert-kernel floor", scaled("halved", floor, by=0.5), scaled("no floor", floor, by=0.0), "kernel work"
    )
    attention = ("engine.attention_layer_time", "engine.row_time")
    yield Lever("attention", scaled("a fifth faster", *attention, by=0.8), free("free", "attention"), "kernel work")
    dense = "checkpoint.dense_bytes"
    yield Lever(
        "dense weights",
        scaled("4 bits in place of 8", dense, by=0.5),
        free("free", "dense"),
        "requantised, quality to be checked",
    )
    if k > 0:
        yield Lever(
            "draft cost",
            scaled("its launches halved", "engine.draft_overhead", by=0.5),
            free("free", "draft"),
            "kernel work",
        )
    yield Lever(
        "sampling",
        scaled("halved", "engine.sampling_time", by=0.5),
        free("head and sampling free", "head", "sampling"),
        "kernel work",
    )
    yield Lever("host gap", scaled("halved", "engine.host_gap", by=0.5), free("none", "host_gap"), "engine work")
    if engine.engram_time is not None and lane.placement.engram_on != "none":
        yield Lever(
            "Engram gathers", scaled("halved", "engine.engram_time", by=0.5), free("free", "engram"), "engine work"
        )


def _cold(lane: Lane, traffic: str) -> Iterator[Lever]:
    """Levers of a lane whose cold experts live elsewhere."""
    if not lane.cold_experts:
        return
    hot, all_hot = int(lane.placement.hot.value), int(lane.checkpoint.experts.value)
    fill = most_hot(lane)
    # The sum of parts knows no workspace, so filling the memory to the brim is no realistic step.
    yield Lever("hot experts", _more_hot(hot, (hot + fill) // 2, "half of the memory left over"), None, "a placement")
    larger = override(lane, [_scaled(lane, "devices.primary.memory", 1.1)])
    limit = Change("everything is hot", (f"placement.hot={all_hot}",))
    yield Lever(
        "more memory", _more_hot(hot, hot + most_hot(larger) - fill, "a tenth more memory"), limit, "another device"
    )
    own = lane.placement.map_calibrated_on != traffic
    step = Change(f"a hot map made on {traffic}", (f"placement.map_calibrated_on={traffic}",)) if own else None
    yield Lever("map quality", step, Change("no route is cold, all reads primary", cold_share=0.0), "an hour of traces")
    if lane.placement.cold_on == "sidecar":
        yield from _sidecar(lane)
    if lane.placement.cold_on == "host":
        own = lane.placement.cold_computed_by == "host"
        key = "devices.host.read_bandwidth" if own else "links.host.bandwidth"
        yield Lever(
            "host memory" if own else "host link",
            Change("twice as fast", (_scaled(lane, key, 2.0),)),
            Change("free", free=("host_experts",)),
            "another box",
        )


def _sidecar(lane: Lane) -> Iterator[Lever]:
    link, latency = "links.sidecar.bandwidth", "links.sidecar.latency"
    yield Lever(
        "sidecar link latency",
        Change("halved: no detour through host memory", (_scaled(lane, latency, 0.5),)),
        Change("no latency", (_scaled(lane, latency, 0.0),)),
        "a driver that allows peer-to-peer",
    )
    yield Lever(
        "sidecar link bandwidth",
        Change("the next PCIe generation, twice", (_scaled(lane, link, 2.0),)),
        Change("no bytes to move", (f"{link}={_FREE_BANDWIDTH}",)),
        "another box",
    )
    call = "engine.sidecar_call_time"
    yield Lever(
        "sidecar call",
        Change("a quarter less", (_scaled(lane, call, 0.75),)),
        Change("no overhead", (_scaled(lane, call, 0.0),)),
        "kernel work",
    )
    memory, device = "devices.sidecar.read_bandwidth", lane.devices["sidecar"]
    yield Lever(
        "sidecar memory bandwidth",
        Change("a tenth more", (_scaled(lane, memory, 1.1),)),
        Change("reads are free", (f"{memory}={_FREE_BANDWIDTH}",)),
        "another device",
    )
    count = lane.placement.sidecars.value if lane.placement.sidecars else float(lane.ranks)
    price = f"{device.price.text} ({device.price.kind})" if device.price is not None else "unknown"
    yield Lever(
        "second sidecar" if count == 1 else "one more sidecar",
        Change(f"{count + 1:g} share the cold experts", (f"placement.sidecars={count + 1:g}",)),
        Change("any number", ("placement.sidecars=1000",)),
        price,
    )


def _collectives(lane: Lane) -> Iterator[Lever]:
    """Levers of a lane whose ranks reduce together."""
    if lane.ranks == 1 or not lane.engine.collectives_per_layer.value:
        return
    chunks = "engine.collective_chunks"
    yield Lever(
        "overlap of collectives",
        Change("twice as many chunks", (_scaled(lane, chunks, 2.0),)),
        Change("wholly hidden", free=("all_reduce",)),
        "kernel work",
    )
    for name, field in (("collective latency", "latency"), ("collective bandwidth", "inverse_bandwidth")):
        keys = [f"engine.collectives.{i}.{field}" for i in range(len(lane.engine.collectives))]
        half, none = (tuple(_scaled(lane, key, by) for key in keys) for by in (0.5, 0.0))
        yield Lever(name, Change("halved", half), Change("none", none), "another fabric")


def most_hot(lane: Lane) -> int:
    """The most hot experts a layer that fit into the primary devices, 0 when not even one does."""
    primary = memory_sums(lane)[0]
    a_rank_s_expert = lane.checkpoint.moe_layers.value * lane.checkpoint.expert_bytes.value / lane.ranks
    spare = primary.capacity_bytes - primary.needed_bytes
    return max(0, min(int(lane.checkpoint.experts.value), int(lane.placement.hot.value + spare // a_rank_s_expert)))


def least_hot(lane: Lane) -> int:
    """The fewest hot experts a layer for which the cold ones still fit where they go."""
    room = float(lane.placement.hot.value)
    for memory in memory_sums(lane)[1:]:
        cold = dict(memory.parts).get("cold experts", 0.0)
        if cold > 0:
            room = min(room, (memory.capacity_bytes - memory.needed_bytes) // (cold / lane.cold_experts))
    return int(lane.placement.hot.value - max(room, 0.0))


def _more_hot(hot: int, most: int, text: str) -> Change | None:
    return Change(f"{text}: {most}", (f"placement.hot={most}",)) if most > hot else None
