"""Lines of catalogue TOML: quoted texts, sourced values, bytes in a readable unit."""

from __future__ import annotations

import json


def text(value: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's, once everything beyond printable ASCII stays as it is."""
    return json.dumps("".join(c if c.isprintable() else " " for c in value), ensure_ascii=False)


def inline(key: str, value: str, source: str = "", kind: str = "", *, quote: bool = True) -> str:
    """`key = value`, or a sourced inline table when a source is given."""
    shown = text(value) if quote else value
    if not source:
        return f"{key} = {shown}"
    return f"{key} = {{ value = {shown}, source = {text(source)}, kind = {text(kind)} }}"


def table_lines(size_bytes: float, source: str, kind: str) -> str:
    """A sourced inline table of a number of bytes."""
    return f"{{ value = {text(nice_bytes(size_bytes))}, source = {text(source)}, kind = {text(kind)} }}"


def nice_bytes(size: float) -> str:
    """Bytes with a decimal unit and twelve significant digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.12g} {unit}"
    return f"{size:.12g} B"
