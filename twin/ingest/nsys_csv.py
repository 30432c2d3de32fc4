"""Nsight Systems CSV reports: `nsys stats -r cuda_gpu_trace` (a timeline) and `-r cuda_gpu_kern_sum` (a summary).

The summary has totals and instances by kernel but no times, so a step is inferred from the instance counts: a kernel
launched n times a step has n x steps instances, so the number of steps divides them. What comes out is busy time by
class per step; gaps and the step itself need the timeline.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator

import numpy as np

from twin.errors import IngestError
from twin.ingest.kernel_class import kernel_class
from twin.ingest.model import Cell, Found
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.source import Source
from twin.ingest.torch_trace import MAX_NAMES
from twin.ingest.trace_cell import add_cell
from twin.ingest.trace_steps import MAX_KERNELS, Kernels

TITLE = "an Nsight Systems CSV report"
_SUMMARY = re.compile(r'"?Time ?\(%\)"?,"?Total Time \((ns|us|ms|s)\)"?,"?Instances"?', re.IGNORECASE)
_TRACE = re.compile(r'"?Start ?\((ns|us|ms|s)\)"?,"?Duration \((ns|us|ms|s)\)"?', re.IGNORECASE)
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
MAX_KERNEL_ROWS = 100_000
#: share of kernels whose instances must be a multiple of the number of steps
DIVIDED_SHARE = 0.8


def score(head: Head) -> float:
    if head.json or head.binary:
        return 0.0
    return 0.95 if _SUMMARY.search(head.text) or _TRACE.search(head.text) else 0.3 if "cuda_gpu" in head.text else 0.0


def read(source: Source) -> Found:
    """A cell with a step time from a timeline, or with busy time by class from a summary."""
    found = Found(FORMAT.name, source.where, source.sha256())
    trace = summary = False
    for columns, rows in _sections(source):
        if any(c.lower().startswith("start") for c in columns) and not trace:
            trace = True
            add_cell(found, _timeline(columns, rows, source))
        elif any(c.lower() == "instances" for c in columns) and not summary:
            summary = True
            _summary(columns, rows, source, found)
        else:
            found.keep(f"section with columns {', '.join(columns)[:100]}", "not used")
            for _ in rows:
                pass
    if not found.cells:
        raise nothing_inside(source, TITLE, "no kernels")
    return found


def _sections(source: Source) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Header and rows of each CSV section; nsys puts progress lines and "**" titles between them."""
    lines = source.lines()
    pending: list[str] = []

    def rows() -> Iterator[list[str]]:
        for line in lines:
            if not line.strip() or line.startswith("**"):
                return
            if _SUMMARY.search(line) or _TRACE.search(line):
                pending.append(line)
                return
            yield _split(line, source.where)

    while True:
        line = (
            pending.pop()
            if pending
            else next((text for text in lines if _SUMMARY.search(text) or _TRACE.search(text)), None)
        )
        if line is None:
            return
        yield [c.strip() for c in _split(line, source.where)], rows()


def _split(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise IngestError(f"{where}: not a CSV line ({error}): {line[:60]!r}.") from None


def _column(columns: list[str], start: str) -> tuple[int, float]:
    """Index of the column that starts with `start`, and the factor of its unit to ns."""
    for index, column in enumerate(columns):
        if column.lower().startswith(start):
            unit = re.search(r"\((ns|us|ms|s)\)", column.lower())
            return index, _NS[unit[1]] if unit else 1.0
    return -1, 1.0


def _number(cells: list[str], index: int, where: str, what: str) -> float:
    text = cells[index].replace(",", "").strip() if 0 <= index < len(cells) else ""
    try:
        value = float(text)
    except ValueError:
        raise IngestError(
            f"{where}: {what} is {text[:30]!r}, expected a number; the report is cut off or damaged."
        ) from None
    if not 0 <= value < 9e18:
        raise IngestError(f"{where}: {what} is {text[:30]!r}; the report is damaged.")
    return value


def _timeline(columns: list[str], rows: Iterator[list[str]], source: Source) -> Kernels:
    (start_at, start_ns), (length_at, length_ns) = _column(columns, "start"), _column(columns, "duration")
    name_at, stream_at, device_at = (
        _column(columns, "name")[0],
        _column(columns, "strm")[0],
        _column(columns, "device")[0],
    )
    ids: dict[str, int] = {}
    name, device, start, end, stream = array("i"), array("i"), array("q"), array("q"), array("q")
    devices: dict[str, int] = {}
    for cells in rows:
        if len(name) >= MAX_KERNELS:
            raise IngestError(f"{source.where}: more than {MAX_KERNELS:,} kernels; trace fewer steps.")
        begin = _number(cells, start_at, source.where, "a start") * start_ns
        length = _number(cells, length_at, source.where, "a duration") * length_ns
        text = cells[name_at][:400] if 0 <= name_at < len(cells) else "?"
        if len(ids) >= MAX_NAMES and text not in ids:
            raise IngestError(f"{source.where}: more than {MAX_NAMES:,} kernel names; this is no trace of a model.")
        name.append(ids.setdefault(text, len(ids)))
        start.append(round(min(begin, 4e18)))
        end.append(round(min(begin + length, 4e18)))
        label = cells[device_at] if 0 <= device_at < len(cells) else ""
        device.append(devices.setdefault(label[:80], len(devices)) if len(devices) < 1000 else 0)
        stream.append(
            int(cells[stream_at].strip()[:18])
            if 0 <= stream_at < len(cells) and cells[stream_at].strip().isascii() and cells[stream_at].strip().isdigit()
            else 0
        )
    if not name:
        raise nothing_inside(source, TITLE, "no kernel in the timeline")
    return Kernels(
        list(ids),
        np.frombuffer(name, dtype=np.int32),
        np.frombuffer(start, dtype=np.int64),
        np.frombuffer(end, dtype=np.int64),
        np.frombuffer(device, dtype=np.int32),
        np.frombuffer(stream, dtype=np.int64),
    )


def _summary(columns: list[str], rows: Iterator[list[str]], source: Source, found: Found) -> None:
    (total_at, total_ns), count_at, name_at = (
        _column(columns, "total time"),
        _column(columns, "instances")[0],
        _column(columns, "name")[0],
    )
    kernels: list[tuple[str, float, int]] = []
    for cells in rows:
        if len(kernels) >= MAX_KERNEL_ROWS:
            raise IngestError(f"{source.where}: more than {MAX_KERNEL_ROWS:,} kernels in the summary.")
        count = int(_number(cells, count_at, source.where, "instances"))
        total = _number(cells, total_at, source.where, "a total time") * total_ns
        kernels.append((cells[name_at][:400] if 0 <= name_at < len(cells) else "?", total, count))
    if not kernels:
        return
    steps, share = steps_from_counts([count for _, _, count in kernels])
    by_class: dict[str, float] = {}
    for text, total, _ in kernels:
        by_class[kernel_class(text)] = by_class.get(kernel_class(text), 0.0) + total
    launches = sum(count for _, _, count in kernels)
    found.extras["kernel_summary"] = {
        "kernels": len(kernels),
        "launches": launches,
        "busy_ms": round(sum(t for _, t, _ in kernels) * 1e-6, 6),
        "steps_from_counts": steps,
        "share_of_kernels_that_divide": round(share, 4),
        "launches_per_step": round(launches / steps, 2) if steps else None,
        "ms_by_class": {name: round(total * 1e-6, 6) for name, total in sorted(by_class.items(), key=lambda c: -c[1])},
    }
    cell = Cell("kernel summary")
    if steps < 3:
        found.notes.append(
            "the instance counts have no common number of steps, so nothing can be said of one step; use -r "
            "cuda_gpu_trace"
        )
    else:
        by_class["other"] = by_class.get("other", 0.0) + by_class.pop("copy", 0.0)
        cell.stages_s = {name: total / steps * 1e-9 for name, total in by_class.items() if total > 0}
        cell.flag(
            "steps-from-counts",
            f"{steps} steps inferred from instance counts ({share:.0%} of the kernels have a multiple of it); check "
            "it against the run",
        )
    cell.flag(
        "busy-only",
        "a summary holds kernel time only, no gaps; the step time needs -r cuda_gpu_trace or the SQLite export",
    )
    found.cells.append(cell)


def steps_from_counts(counts: list[int]) -> tuple[int, float]:
    """The largest number of steps that divides the counts of DIVIDED_SHARE of the kernels, and the share it divides.

    Kernels are counted by name, not by launch: layers make up most launches, and layers x steps divides those too.
    """
    values = np.array([c for c in counts if c >= 3], dtype=np.int64)
    if not len(values):
        return 0, 0.0
    candidates = sorted({int(v) for v in values} | {int(np.gcd.reduce(values))}, reverse=True)[:5000]
    for steps in candidates:
        share = float(np.mean(values % steps == 0))
        if share >= DIVIDED_SHARE:
            return steps, share
    return 0, 0.0


FORMAT = Reader("nsys-csv", TITLE, score, read)
