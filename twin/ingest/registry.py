"""All readers, and which of them a file belongs to, by content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from twin.errors import IngestError, nearest
from twin.ingest import (
    acceptance_lengths,
    aiperf,
    counter_window,
    expert_trace,
    inferencex,
    llama_batched,
    llama_bench,
    llama_server_log,
    nsys_csv,
    nsys_sqlite,
    peer_table,
    routing_counts,
    sglang_bench,
    sglang_log,
    step_cost,
    torch_trace,
    trtllm_bench,
    vllm_bench,
    vllm_log,
    vllm_metrics,
)
from twin.ingest.meaning import settle
from twin.ingest.model import Found
from twin.ingest.reader import ACCEPT, Head, Reader
from twin.ingest.source import DEFAULT_MAX_BYTES, Source, source

READERS: tuple[Reader, ...] = (
    vllm_bench.FORMAT,
    vllm_metrics.FORMAT,
    vllm_log.FORMAT,
    counter_window.FORMAT,
    sglang_bench.FORMAT,
    sglang_log.FORMAT,
    trtllm_bench.FORMAT,
    aiperf.FORMAT,
    inferencex.FORMAT,
    llama_bench.FORMAT,
    llama_batched.FORMAT,
    llama_server_log.FORMAT,
    peer_table.FORMAT,
    step_cost.FORMAT,
    torch_trace.FORMAT,
    nsys_sqlite.FORMAT,
    nsys_csv.FORMAT,
    routing_counts.FORMAT,
    expert_trace.FORMAT,
    acceptance_lengths.FORMAT,
)
_LOGS = (vllm_log.FORMAT, sglang_log.FORMAT, llama_server_log.FORMAT)
#: how far into a text the logs are searched for their lines; servers print much before the first request
LOG_HEAD_BYTES = 16 * 2**20


def recognise(file: Source) -> Reader:
    """The reader of a file. Raises IngestError naming the formats known and the closest one."""
    head = Head(file.head)
    scored = sorted(((reader.score(head), reader.name, reader) for reader in READERS), key=lambda s: (-s[0], s[1]))
    if scored[0][0] < ACCEPT and not head.json and not head.binary:
        with file.open() as stream:
            more = Head(stream.read(LOG_HEAD_BYTES))
        scored = sorted([*scored, *((r.score(more), r.name, r) for r in _LOGS)], key=lambda s: (-s[0], s[1]))
    best, _, reader = scored[0]
    if best < ACCEPT:
        known = "; ".join(sorted(r.title for r in READERS))
        close = f" The closest is {reader.title} ({reader.name}), but its marks are not all there." if best > 0 else ""
        raise IngestError(f"{file.where}: no known format.{close} Known: {known}. To force one, pass --format.")
    tied = [r for s, _, r in scored if s == best and r is not reader]
    if tied:
        raise IngestError(
            f"{file.where}: could be {reader.title} or {tied[0].title}; pass --format {reader.name} or --format "
            f"{tied[0].name}."
        )
    return reader


def by_name(name: str) -> Reader:
    """The reader called `name`."""
    for reader in READERS:
        if reader.name == name:
            return reader
    raise IngestError(f"--format {name!r}: no such format; {nearest(name, [r.name for r in READERS])}")


def read_file(path: Path | str, *, format_name: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> Found:
    """Read one file with the reader it belongs to and settle the meaning of its cells.

    Raises IngestError with a message a person can act on for anything that is not a readable result.
    """
    file = source(path, max_bytes)
    head = file.head
    reader = by_name(format_name) if format_name else recognise(file)
    del head
    try:
        found = reader.read(file)
        for cell in found.cells:
            settle(cell)
    except ArithmeticError as error:
        raise IngestError(
            f"{file.where}: a number in it is too large, or zero where it divides ({error}); the file is damaged."
        ) from None
    except RecursionError:
        raise IngestError(f"{file.where}: nested too deeply; this is no result file.") from None
    except OSError as error:
        raise IngestError(f"{file.where}: cannot be read ({error.strerror or error}).") from None
    return found


def read_files(
    paths: Sequence[Path | str], *, format_name: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Found]:
    """Read several files; two metrics pages of one call, in order, become their difference."""
    found = [read_file(path, format_name=format_name, max_bytes=max_bytes) for path in paths]
    pages = [f for f in found if f.format == vllm_metrics.FORMAT.name]
    if len(pages) == 2:
        both = vllm_metrics.difference(pages[0], pages[1])
        for cell in both.cells:
            settle(cell)
        return [f for f in found if f not in pages] + [both]
    if len(pages) > 2:
        raise IngestError(
            f"{len(pages)} metrics pages; give one, or the one before and the one after a run "
            f"({', '.join(p.where for p in pages[:4])})."
        )
    return found


def formats() -> Iterable[tuple[str, str]]:
    """Names and titles of all formats."""
    return ((reader.name, reader.title) for reader in READERS)
