"""Chrome / Perfetto JSON traces of the torch profiler.

`traceEvents` holds complete events (`"ph": "X"`) with `ts` and `dur` in microseconds; kernels have `cat` "kernel",
copies "gpu_memcpy" and "gpu_memset", launches "cuda_runtime" or "cuda_driver". The device and stream are in `args`
(else `pid` and `tid`). The trace is read event by event; only kernels and launches are kept, as arrays.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Any

import numpy as np

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream
from twin.ingest.model import Found
from twin.ingest.reader import Head, Reader, key_score, nothing_inside
from twin.ingest.source import Source
from twin.ingest.trace_cell import add_cell
from twin.ingest.trace_steps import MAX_KERNELS, Kernels

TITLE = "a torch profiler trace (Chrome / Perfetto JSON)"
_GPU = frozenset(("kernel", "Kernel", "gpu_memcpy", "gpu_memset"))
_HOST = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
MAX_EVENTS = 40_000_000
MAX_NAMES = 200_000


def score(head: Head) -> float:
    if head.json and {"ph", "ts"} <= head.keys and head.keys & {"cat", "dur", "pid"}:
        return 1.0
    return key_score(head, ("traceEvents",), ("schemaVersion", "deviceProperties", "ph", "displayTimeUnit"), enough=1)


class _Collector:
    """Kernels and launches of a trace in arrays."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.names: dict[str, int] = {}
        self.name, self.device = array("i"), array("i")
        self.start, self.end, self.stream = array("q"), array("q"), array("q")
        self.launches: dict[str, array[int]] = {}
        self.events = 0
        self.categories: Counter[str] = Counter()

    def take(self, event: Any) -> None:
        self.events += 1
        if self.events > MAX_EVENTS:
            raise IngestError(f"{self.where}: more than {MAX_EVENTS:,} events; trace fewer steps.")
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        category = event.get("cat")
        if category in _GPU:
            self._kernel(event)
        elif category in _HOST and "aunch" in str(event.get("name"))[:80]:
            self.launches.setdefault(str(event["name"])[:60], array("q")).append(self._ns(event, "ts"))
            if len(self.launches) > 100:
                raise IngestError(f"{self.where}: more than 100 kinds of launch calls; this is no CUDA trace.")
        elif len(self.categories) < 100:
            self.categories[str(category)[:40]] += 1

    def _kernel(self, event: dict[str, Any]) -> None:
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        start, duration = self._ns(event, "ts"), self._ns(event, "dur")
        name = str(event.get("name"))[:400]
        if len(self.names) >= MAX_NAMES and name not in self.names:
            raise IngestError(f"{self.where}: more than {MAX_NAMES:,} kernel names; this is no trace of a model.")
        if len(self.name) >= MAX_KERNELS:
            raise IngestError(f"{self.where}: more than {MAX_KERNELS:,} kernels; trace fewer steps.")
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.start.append(start)
        self.end.append(start + duration)
        self.device.append(_small(args.get("device", event.get("pid")), 31))
        self.stream.append(_small(args.get("stream", event.get("tid")), 62))

    def _ns(self, event: dict[str, Any], key: str) -> int:
        try:
            value = float(event.get(key))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise IngestError(
                f"{self.where}: an event has no {key!r} in microseconds (got {str(event.get(key))[:40]!r})."
            ) from None
        if not math.isfinite(value) or value < 0 or value > 9e15:
            raise IngestError(f"{self.where}: an event has {key} = {value:g} microseconds; the trace is damaged.")
        return round(value * 1e3)

    def kernels(self) -> Kernels:
        return Kernels(
            list(self.names),
            np.frombuffer(self.name, dtype=np.int32),
            np.frombuffer(self.start, dtype=np.int64),
            np.frombuffer(self.end, dtype=np.int64),
            np.frombuffer(self.device, dtype=np.int32),
            np.frombuffer(self.stream, dtype=np.int64),
            {name: np.array(times, dtype=np.int64) for name, times in self.launches.items()},
        )


def _small(value: Any, bits: int) -> int:
    try:
        return int(value) % (1 << bits)
    except (TypeError, ValueError, OverflowError):
        return 0


def read(source: Source) -> Found:
    """One cell; the kernel table and the evidence for its steps are in the extras."""
    found = Found(FORMAT.name, source.where, source.sha256())
    collector = _Collector(source.where)
    with JsonStream(source) as stream:
        if stream.peek() == "[":
            for _ in stream.elements():
                collector.take(stream.value())
        else:
            for key in stream.members():
                if key == "traceEvents" and stream.peek() == "[":
                    for _ in stream.elements():
                        collector.take(stream.value())
                elif key in ("deviceProperties", "distributedInfo", "schemaVersion", "displayTimeUnit"):
                    found.extras[key] = str(stream.value())[:500]
                else:
                    found.keep(key, f"{stream.skip()} values")
    for category, count in collector.categories.most_common(20):
        found.keep(f"events of category {category!r}", count)
    if not collector.name:
        raise nothing_inside(source, TITLE, "no GPU kernel (profile with CUDA activities)")
    add_cell(found, collector.kernels())
    return found


FORMAT = Reader("torch-trace", TITLE, score, read)
