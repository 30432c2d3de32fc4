"""Nsight Systems exports as SQLite (`nsys export --type sqlite`, or the .sqlite beside a report).

Read are CUPTI_ACTIVITY_KIND_KERNEL (start, end in ns; device and stream; names as ids into StringIds) and the launches
in CUPTI_ACTIVITY_KIND_RUNTIME. The file is opened read-only, only plain tables are touched, and a query that does not
end is stopped.
"""

from __future__ import annotations

import sqlite3
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from twin.errors import IngestError
from twin.ingest.model import Found
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.source import CHUNK_BYTES, Source
from twin.ingest.torch_trace import MAX_NAMES
from twin.ingest.trace_cell import add_cell
from twin.ingest.trace_steps import MAX_KERNELS, Kernels

TITLE = "an Nsight Systems SQLite export"
MAGIC = b"SQLite format 3\x00"
_KERNELS, _RUNTIME, _STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"
#: virtual-machine steps after which a query is stopped
_MAX_VM_STEPS = 4_000_000_000
_VM_STRIDE = 1_000_000


def score(head: Head) -> float:
    return 1.0 if head.data.startswith(MAGIC) else 0.0


def read(source: Source) -> Found:
    """One cell; the kernel table and the evidence for its steps are in the extras."""
    found = Found(FORMAT.name, source.where, source.sha256())
    with _on_disk(source) as path:
        try:
            with closing(
                sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
            ) as database:
                _guard(database, source.where)
                kernels = _load(database, source, found)
        except sqlite3.Error as error:
            raise IngestError(
                f"{source.where}: the SQLite file is damaged or cut off ({error}); export it again."
            ) from None
    add_cell(found, kernels)
    return found


@contextmanager
def _on_disk(source: Source) -> Iterator[Path]:
    """SQLite needs a file: the original, or the decompressed copy of a gzip in a temporary folder."""
    if not source.gzipped:
        if source.path.stat().st_size > source.max_bytes:
            raise IngestError(
                f"{source.where}: more than {source.max_bytes / 2**30:.3g} GiB; export fewer steps, or raise "
                "--max-size."
            )
        yield source.path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        with source.open() as stream, path.open("wb") as out:
            while chunk := stream.read(CHUNK_BYTES):
                out.write(chunk)
        yield path


def _guard(database: sqlite3.Connection, where: str) -> None:
    spent = 0

    def tick() -> int:
        nonlocal spent
        spent += _VM_STRIDE
        return int(spent > _MAX_VM_STEPS)

    database.set_progress_handler(tick, _VM_STRIDE)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA query_only = ON")


def _load(database: sqlite3.Connection, source: Source, found: Found) -> Kernels:
    tables = {str(n) for (n,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 5000")}
    if _KERNELS not in tables:
        graph = (
            "; it holds whole-graph records, so trace with --cuda-graph-trace=node"
            if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables
            else ""
        )
        raise nothing_inside(source, TITLE, f"no table {_KERNELS}{graph} (was CUDA traced, -t cuda?)")
    for table in sorted(tables - {_KERNELS, _RUNTIME, _STRINGS}):
        found.keep(f"table {table}", "not used")
    columns = {str(row[1]) for row in database.execute(f"PRAGMA table_info({_KERNELS})")}
    if not {"start", "end"} <= columns:
        raise nothing_inside(source, TITLE, f"no start and end in {_KERNELS}")
    names = {}
    if _STRINGS in tables:
        for key, value in database.execute(f"SELECT id, value FROM {_STRINGS} LIMIT {MAX_NAMES * 10}"):
            names[key] = str(value)[:400]
    named = next((c for c in ("demangledName", "shortName", "mangledName", "name", "nameId") if c in columns), None)
    picked = ["start", '"end"', *(c if c in columns else "0" for c in ("deviceId", "streamId")), named or "0"]
    ids: dict[str, int] = {}
    name, device = array("i"), array("i")
    start, end, stream = array("q"), array("q"), array("q")
    for row in database.execute(f"SELECT {', '.join(picked)} FROM {_KERNELS} LIMIT {MAX_KERNELS + 1}"):
        if len(name) >= MAX_KERNELS:
            raise IngestError(f"{source.where}: more than {MAX_KERNELS:,} kernels; export fewer steps.")
        begin, finish, where, lane = (_whole(v, source.where) for v in row[:4])
        text = row[4] if isinstance(row[4], str) else names.get(row[4], f"kernel {row[4]}")
        if len(ids) >= MAX_NAMES and text not in ids:
            raise IngestError(f"{source.where}: more than {MAX_NAMES:,} kernel names; this is no trace of a model.")
        if finish < begin or begin < 0:
            raise IngestError(
                f"{source.where}: a kernel ends before it starts ({begin} to {finish} ns); the export is damaged."
            )
        name.append(ids.setdefault(text[:400], len(ids)))
        start.append(begin)
        end.append(finish)
        device.append(where % 2**31)
        stream.append(lane % 2**62)
    if not name:
        raise nothing_inside(source, TITLE, "no kernel")
    launches = _launches(database, tables, names, source.where)
    return Kernels(
        list(ids),
        np.frombuffer(name, dtype=np.int32),
        np.frombuffer(start, dtype=np.int64),
        np.frombuffer(end, dtype=np.int64),
        np.frombuffer(device, dtype=np.int32),
        np.frombuffer(stream, dtype=np.int64),
        launches,
    )


def _launches(
    database: sqlite3.Connection, tables: set[str], names: dict[object, str], where: str
) -> dict[str, npt.NDArray[np.int64]]:
    if _RUNTIME not in tables:
        return {}
    columns = {str(row[1]) for row in database.execute(f"PRAGMA table_info({_RUNTIME})")}
    if not {"start", "nameId"} <= columns:
        return {}
    found: dict[str, array[int]] = {}
    for begin, key in database.execute(f"SELECT start, nameId FROM {_RUNTIME} LIMIT {MAX_KERNELS * 4}"):
        text = names.get(key, "")
        if "aunch" in text and (text in found or len(found) < 100):
            found.setdefault(text[:60], array("q")).append(_whole(begin, where))
    return {api: np.array(times, dtype=np.int64) for api, times in found.items()}


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or not -(2**62) < value < 2**62:
        raise IngestError(f"{where}: a kernel table cell holds {str(value)[:40]!r}, expected a whole number.")
    return value


FORMAT = Reader("nsys-sqlite", TITLE, score, read)
