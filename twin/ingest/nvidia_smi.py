"""`nvidia-smi -q -x` and `nvidia-smi topo -m`: what the driver knows of a GPU and of the ways between GPUs.

The driver knows the memory, the power limit and the PCIe link, not the bandwidth a large read achieves nor how long the
smallest kernel takes; those are measured, or taken from a catalogue device of the same kind. The XML is read event by
event; entity declarations, which such a report never has, are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast
from xml.etree import ElementTree

from twin.errors import IngestError, QuantityError
from twin.ingest.source import Source
from twin.units import parse_quantity

MAX_REPORT_BYTES = 16 * 2**20
MAX_GPUS = 256
_MAX_DEPTH = 40


@dataclass(frozen=True)
class Gpu:
    """One GPU of the report; None where the driver does not say."""

    name: str
    memory_bytes: float | None
    memory_text: str
    power_w: float | None
    pcie_generation: int | None
    pcie_width: int | None
    driver: str


def read_report(source: Source) -> list[Gpu]:
    """Every GPU of `nvidia-smi -q -x`. Raises IngestError with the command to run when it is something else."""
    text = source.text(MAX_REPORT_BYTES)
    if "<nvidia_smi_log" not in text[:4000]:
        raise IngestError(f"{source.where}: not an nvidia-smi report; run `nvidia-smi -q -x > gpus.xml`.")
    if "<!ENTITY" in text:
        raise IngestError(f"{source.where}: declares XML entities, which nvidia-smi never does; refused.")
    parser: ElementTree.XMLPullParser[Any] = ElementTree.XMLPullParser(events=("start", "end"))
    gpus: list[Gpu] = []
    driver, path = "", []
    values: dict[str, str] = {}
    try:
        parser.feed(text)
        parser.close()
        for event, element in cast("list[tuple[str, ElementTree.Element]]", list(parser.read_events())):
            tag = str(element.tag)
            if event == "start":
                path.append(tag)
                if len(path) > _MAX_DEPTH:
                    raise IngestError(f"{source.where}: XML nested deeper than {_MAX_DEPTH} levels; this is no report.")
                if tag == "gpu":
                    values = {}
                continue
            values["/".join(path[path.index("gpu") + 1 :] if "gpu" in path else path[1:])] = (
                element.text or ""
            ).strip()
            driver = values.get("driver_version", driver)
            path.pop()
            if tag == "gpu":
                gpus.append(_gpu(values, driver, f"{source.where}, GPU {len(gpus)}"))
                if len(gpus) > MAX_GPUS:
                    raise IngestError(f"{source.where}: more than {MAX_GPUS} GPUs.")
                element.clear()
    except ElementTree.ParseError as error:
        raise IngestError(f"{source.where}: broken XML ({error}); run `nvidia-smi -q -x` again.") from None
    if not gpus:
        raise IngestError(f"{source.where}: no GPU in the report.")
    return gpus


def _gpu(values: dict[str, str], driver: str, where: str) -> Gpu:
    memory = values.get("fb_memory_usage/total", "")
    power = next(
        (
            values[key]
            for key in (
                "gpu_power_readings/current_power_limit",
                "power_readings/power_limit",
                "gpu_power_readings/power_limit",
                "power_readings/enforced_power_limit",
            )
            if key in values
        ),
        "",
    )
    link = "pci/pci_gpu_link_info/"
    return Gpu(
        name=values.get("product_name", "").strip()[:100] or "unnamed GPU",
        memory_bytes=_quantity(memory, "bytes", where),
        memory_text=memory[:40],
        power_w=_quantity(power, "power", where),
        pcie_generation=_small(values.get(link + "pcie_gen/max_link_gen", "")),
        pcie_width=_small(values.get(link + "link_widths/max_link_width", "").rstrip("x")),
        driver=driver[:40],
    )


def _quantity(text: str, dimension: str, where: str) -> float | None:
    if not text or text.upper() in ("N/A", "[N/A]", "REQUESTED FUNCTIONALITY HAS BEEN DEPRECATED"):
        return None
    try:
        return parse_quantity(text, dimension, where=where)
    except QuantityError as error:
        raise IngestError(str(error)) from None


def _small(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


#: what a cell of the topology matrix means, and the catalogue kind of the link
CONNECTIONS = {
    "NV": ("nvlink", "NVLink"),
    "PIX": ("pcie", "one PCIe bridge"),
    "PXB": ("pcie", "several PCIe bridges"),
    "PHB": ("pcie", "a PCIe host bridge (the CPU)"),
    "NODE": ("pcie", "PCIe and the interconnect inside a NUMA node"),
    "SYS": ("pcie", "PCIe and the interconnect between NUMA nodes"),
}


@dataclass(frozen=True)
class Connection:
    """The way between two GPUs: the driver's word, how many NVLinks, the catalogue kind, and what it means."""

    first: str
    second: str
    word: str
    lanes: int
    kind: str
    meaning: str


def read_topology(source: Source) -> list[Connection]:
    """Pairs of GPUs of `nvidia-smi topo -m`. Raises IngestError when there is no matrix in it."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in source.text(2**20).splitlines()[:5000]]
    head = next((i for i, line in enumerate(lines) if re.search(r"(^|\s)GPU0\s", line + " ")), None)
    if head is None:
        raise IngestError(f"{source.where}: no GPU0 column; run `nvidia-smi topo -m > topo.txt`.")
    columns = re.split(r"\t+|\s{2,}", lines[head].strip())
    found: list[Connection] = []
    for line in lines[head + 1 :]:
        cells = re.split(r"\t+|\s{2,}", line.strip())
        if not re.fullmatch(r"GPU[0-9]{1,3}", cells[0]):
            continue
        for column, cell in zip(columns, cells[1:], strict=False):
            if re.fullmatch(r"GPU[0-9]{1,3}", column) and int(column[3:]) > int(cells[0][3:]):
                found.append(_connection(cells[0], column, cell.strip(), source.where))
                if len(found) > MAX_GPUS**2:
                    raise IngestError(f"{source.where}: more than {MAX_GPUS} GPUs.")
    if not found:
        raise IngestError(f"{source.where}: one GPU only; there is no link to read.")
    return found


def _connection(first: str, second: str, word: str, where: str) -> Connection:
    key = "NV" if re.fullmatch(r"NV[0-9]{1,3}", word) else word
    if key not in CONNECTIONS:
        raise IngestError(f"{where}: {first} to {second} is {word[:20]!r}; expected one of {', '.join(CONNECTIONS)}.")
    kind, meaning = CONNECTIONS[key]
    return Connection(first, second, word, int(word[2:]) if key == "NV" else 0, kind, meaning)


def pcie_bytes_per_s(generation: int, width: int) -> float:
    """Data rate of a PCIe link in one direction: transfers x lanes / 8, less the line code (8b/10b, 128b/130b)."""
    transfers = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}[generation]
    code = 0.8 if generation <= 2 else 128 / 130 if generation <= 5 else 242 / 256
    return transfers * width / 8 * code
