"""Does the placement fit: what every memory of the lane must hold, and what it can."""

from __future__ import annotations

from dataclasses import dataclass

from twin.errors import CapacityError
from twin.lane.lane import Lane


@dataclass(frozen=True)
class MemorySum:
    """One memory: `parts` are (what, bytes) that it must hold, `capacity_bytes` what it has."""

    memory: str
    parts: tuple[tuple[str, float], ...]
    capacity_bytes: float

    @property
    def needed_bytes(self) -> float:
        """Sum of all parts."""
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        """Whether the parts fit."""
        return self.needed_bytes <= self.capacity_bytes


def kv_tokens(lane: Lane) -> float:
    """Tokens of context the KV memory holds.

    By the server's own bytes per token where they were measured; else by the checkpoint's, which is an upper bound: engines
    keep more than the sheet says (block padding, draft and index copies).
    """
    a_token = lane.placement.kv_bytes_per_token or lane.checkpoint.kv_bytes_per_token
    return lane.placement.kv_memory.value / a_token.value


def pinned_bytes(size: float, rounding: str) -> float:
    """Host memory a pinned allocation takes: PyTorch's caching host allocator rounds up to a power of two."""
    if rounding == "none":
        return size
    return float(1 << (int(size) - 1).bit_length())


def memory_sums(lane: Lane) -> tuple[MemorySum, ...]:
    """Every memory of the lane with what it must hold, a primary device first (all of them are alike)."""
    checkpoint, placement, ranks = lane.checkpoint, lane.placement, lane.ranks
    a_layer_s_expert = checkpoint.moe_layers.value * checkpoint.expert_bytes.value
    draft = checkpoint.draft
    draft_bytes = 0.0
    if draft is not None and placement.draft_resident:
        draft_bytes = draft.stages.value * draft.experts.value * draft.expert_bytes.value
    engram = checkpoint.engram.table_bytes if checkpoint.engram is not None else []
    tables = [table.value for table in engram]
    shared = {
        "hot experts": placement.hot.value * a_layer_s_expert,
        "dense weights": checkpoint.dense_bytes.value,
        "embedding and head": 2 * checkpoint.head_bytes.value,
        "draft head": draft_bytes,
        "KV memory": placement.kv_memory.value,
    }
    if placement.engram_on == "primary":
        shared["Engram tables"] = sum(tables)
    sums = [
        MemorySum(
            f"primary ({lane.devices['primary'].name})",
            tuple((n, b / ranks) for n, b in shared.items()),
            lane.devices["primary"].memory.value,
        )
    ]
    cold = lane.cold_experts * a_layer_s_expert
    if placement.cold_on == "sidecar":
        sidecars = placement.sidecars.value if placement.sidecars else float(ranks)
        device = lane.devices["sidecar"]
        sums.append(MemorySum(f"sidecar ({device.name})", (("cold experts", cold / sidecars),), device.memory.value))
    host: list[tuple[str, float]] = []
    if placement.cold_on == "host":
        host.append(("cold experts", cold))
    if placement.engram_on == "host":
        host += [("Engram table, pinned", pinned_bytes(size, placement.pinned_rounding)) for size in tables]
    if placement.host_prefix_memory is not None:
        host.append(("prefix tier", placement.host_prefix_memory.value))
    if host and "host" in lane.devices:
        sums.append(MemorySum(f"host ({lane.devices['host'].name})", tuple(host), lane.devices["host"].memory.value))
    return tuple(sums)


def require_fit(lane: Lane) -> None:
    """Raise CapacityError with the sum when some memory of the lane is too small for the placement."""
    for memory in memory_sums(lane):
        if not memory.fits:
            parts = " + ".join(f"{size / 2**30:.1f} GiB {name}" for name, size in memory.parts if size)
            raise CapacityError(
                f"lane {lane.name!r} does not fit: {memory.memory} must hold {memory.needed_bytes / 2**30:.1f} GiB ({parts}) "
                f"and has {memory.capacity_bytes / 2**30:.1f} GiB. Lower placement.hot or placement.kv_memory."
            )
