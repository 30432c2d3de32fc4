"""A device: a GPU, or a CPU with its memory."""

from __future__ import annotations

from typing import Annotated, Literal

from twin.lane.sourced import Bytes, BytesPerSecond, Flops, Money, Number, Seconds, Strict, Watts, within


class Device(Strict):
    """One kind of processor with its memory.

    `read_bandwidth` is what a large read achieves, not the sheet's figure; `kernel_floor` is how long the smallest
    kernel
    keeps the device busy under graph replay; `compute` is the dense peak the prefill roofline uses.
    """

    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    memory: Bytes
    read_bandwidth: BytesPerSecond
    kernel_floor: Seconds
    compute: Flops
    power: Watts | None = None
    price: Money | None = None
    notes: str = ""


class Link(Strict):
    """A way between devices: PCIe, NVLink, C2C, RoCE.

    `latency` is one round trip of an empty message between the two ends (a polled flag where the engine polls);
    `staged` says that traffic goes through pinned host memory because peer-to-peer does not work.
    """

    name: str
    title: str
    kind: Literal["pcie", "nvlink", "c2c", "roce", "memory"]
    latency: Seconds
    bandwidth: BytesPerSecond
    peer_to_peer: bool
    staged: bool = False
    read_overhead: Annotated[Number, within(0, 1e6)] | None = None
    notes: str = ""
