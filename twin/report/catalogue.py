"""Catalogue entries, capacity sums and check findings on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from twin.lane.capacity import MemorySum
from twin.lane.sourced import Sourced
from twin.report.terminal import console, literal, print_table


def value_rows(node: Any, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Dotted key, text, kind and source of every value of an entry; plain members have no kind."""
    if isinstance(node, Sourced):
        yield prefix, node.text, node.kind, node.source
    elif hasattr(type(node), "model_fields"):
        for name in type(node).model_fields:
            yield from value_rows(getattr(node, name), f"{prefix}.{name}" if prefix else name)
    elif isinstance(node, dict):
        for name, child in node.items():
            yield from value_rows(child, f"{prefix}.{name}")
    elif isinstance(node, (list, tuple)) and node and hasattr(type(node[0]), "model_fields"):
        for index, child in enumerate(node):
            yield from value_rows(child, f"{prefix}.{index}")
    elif node is not None and node != "" and node != [] and prefix not in ("name", "title", "notes", "description"):
        yield prefix, _plain(node), "", ""


def _plain(node: Any) -> str:
    text = str(node)
    return text if len(text) <= 60 else text[:57] + "..."


def print_entry(kind: str, entry: Any) -> None:
    """Every value of one entry with its kind and source."""
    out = console()
    from rich.markup import escape

    about = getattr(entry, "title", "") or getattr(entry, "description", "")
    out.print(f"[bold]{kind} {escape(entry.name)}[/bold]  {escape(about)}")
    print_table(
        "",
        ["value", "", "kind", "source"],
        literal([list(row) for row in value_rows(entry)]),
        left=(0, 1, 2, 3),
        out=out,
    )
    if getattr(entry, "notes", ""):
        out.print(escape(entry.notes))


def print_capacity(sums: Sequence[MemorySum]) -> None:
    """What every memory must hold, summed."""
    out = console()
    for memory in sums:
        rows = [[name, f"{size / 2**30:,.1f}"] for name, size in memory.parts if size]
        rows.append(["sum", f"{memory.needed_bytes / 2**30:,.1f}"])
        rows.append(["capacity", f"{memory.capacity_bytes / 2**30:,.1f}"])
        verdict = "fits" if memory.fits else "[bold red]does not fit[/bold red]"
        print_table(f"{memory.memory}: {verdict}", ["GiB", ""], rows, out=out)
