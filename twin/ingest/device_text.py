"""Catalogue files of a device and of a link from what the driver says and what only a measurement knows."""

from __future__ import annotations

from dataclasses import dataclass

from twin.errors import IngestError
from twin.ingest.nvidia_smi import Connection, Gpu, pcie_bytes_per_s
from twin.ingest.toml_text import inline, nice_bytes
from twin.lane.device import Device, Link
from twin.lane.sourced import Sourced


@dataclass(frozen=True)
class Measured:
    """Values the driver does not know, as quantity texts; None: take them from `like`."""

    read_bandwidth: str | None = None
    kernel_floor: str | None = None
    compute: str | None = None
    source: str = "given on the command line"


def device_toml(gpu: Gpu, name: str, title: str, given: Measured, like: Device | None) -> str:
    """The file of one GPU. Raises IngestError naming the flags of what neither the driver nor `like` says."""
    missing = [
        flag
        for flag, value in (
            ("--read-bandwidth", given.read_bandwidth),
            ("--kernel-floor", given.kernel_floor),
            ("--compute", given.compute),
        )
        if value is None and like is None
    ]
    if missing:
        raise IngestError(
            "the driver does not know what a large read achieves, how long the smallest kernel takes, or the dense "
            f"peak; pass {', '.join(missing)}, "
            "or --like DEVICE to take them from a catalogue device of the same kind."
        )
    if gpu.memory_bytes is None:
        raise IngestError(f"{gpu.name}: the report has no memory size (fb_memory_usage/total).")
    report = f"nvidia-smi -q -x, driver {gpu.driver or '?'}"
    lines = [
        inline("name", name),
        inline("title", title or gpu.name),
        inline("kind", "gpu"),
        inline("memory", gpu.memory_text, f"{report}: fb_memory_usage/total", "measured"),
    ]
    for key in ("read_bandwidth", "kernel_floor", "compute"):
        text = getattr(given, key)
        if text is not None:
            lines.append(inline(key, text, given.source, "measured" if key != "compute" else "spec"))
        elif like is not None:
            lines.append(_borrowed(key, getattr(like, key), like.name))
    if gpu.power_w is not None:
        lines.append(inline("power", f"{gpu.power_w:g} W", f"{report}: power limit", "measured"))
    notes = f"PCIe {gpu.pcie_generation} x{gpu.pcie_width} at most." if gpu.pcie_generation and gpu.pcie_width else ""
    return "\n".join([*lines, *([inline("notes", notes)] if notes else [])]) + "\n"


def link_toml(
    connection: Connection, gpu: Gpu | None, name: str, latency: str | None, bandwidth: str | None, like: Link | None
) -> str:
    """The file of the link between two GPUs. Peer-to-peer is what the topology allows, not what a driver grants."""
    report = f"nvidia-smi topo -m: {connection.first} to {connection.second} is {connection.word}, {connection.meaning}"
    lines = [
        inline("name", name),
        inline("title", f"{connection.first} to {connection.second}: {connection.meaning}"),
        inline("kind", connection.kind),
    ]
    if latency is not None:
        lines.append(inline("latency", latency, "given on the command line", "measured"))
    elif like is not None:
        lines.append(_borrowed("latency", like.latency, like.name))
    else:
        raise IngestError(
            "the driver does not know a link's latency; pass --link-latency (a polled round trip), or --like-link LINK."
        )
    if bandwidth is not None:
        lines.append(inline("bandwidth", bandwidth, "given on the command line", "measured"))
    elif connection.kind == "pcie" and gpu and gpu.pcie_generation and gpu.pcie_generation <= 6 and gpu.pcie_width:
        rate = pcie_bytes_per_s(gpu.pcie_generation, gpu.pcie_width)
        source = (
            f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}, one direction, line code taken off; transfers achieve less"
        )
        lines.append(inline("bandwidth", f"{nice_bytes(rate)}/s", source, "spec"))
    elif like is not None:
        lines.append(_borrowed("bandwidth", like.bandwidth, like.name))
    else:
        raise IngestError(
            "pass --link-bandwidth (or a report with the PCIe link, or --like-link LINK): the topology does not say it."
        )
    peer = connection.kind == "nvlink" or connection.word in ("PIX", "PXB")
    lines.append(f"peer_to_peer = {'true' if peer else 'false'}")
    if not peer:
        lines.append("staged = true")
    lines.append(inline("notes", f"{report}. Check peer-to-peer with `nvidia-smi topo -p2p r`."))
    return "\n".join(lines) + "\n"


def _borrowed(key: str, value: Sourced, origin: str) -> str:
    kind = "assumed" if value.kind == "assumed" else "derived"
    return inline(key, value.text, f"taken from catalogue entry {origin}: {value.source}", kind)
