"""`twin show`."""

from __future__ import annotations

from typing import Any

import click

from twin.cli import options

_FOLDERS = {"lane": "lanes", "device": "devices", "link": "links", "checkpoint": "checkpoints", "engine": "engines"}


@click.command("show")
@click.argument("kind", metavar="KIND")
@click.argument("name", metavar="NAME")
@options.catalogue
@options.as_json
def command(kind: str, name: str, catalogue: str | None, as_json: bool) -> None:
    """Show one entry with the source and kind of every value. KIND: lane, device, link, checkpoint, engine or traffic."""
    from twin.errors import CatalogueError, nearest
    from twin.lane.capacity import memory_sums
    from twin.lane.catalogue import catalogue_roots, load_entry, load_lane
    from twin.report.catalogue import print_capacity, print_entry

    roots = catalogue_roots(catalogue)
    entry: Any
    if kind == "traffic":
        from twin.acceptance.traffic import load_traffic

        entry = load_traffic(name, roots)
    elif kind in _FOLDERS:
        entry = load_entry(_FOLDERS[kind], name, roots)
    else:
        raise CatalogueError(f"show {kind!r}: {nearest(kind, [*_FOLDERS, 'traffic'])}")
    if as_json:
        options.print_json(
            {"schema_version": 1, "command": "show", "kind": kind, "entry": entry.model_dump(mode="json")}
        )
        return
    print_entry(kind, entry)
    if kind == "lane":
        print_capacity(memory_sums(load_lane(name, roots)))
