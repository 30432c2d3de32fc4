"""Two JSON documents held against each other: what differs, by dotted key, numbers within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(old: Any, new: Any, tolerance: float = 0.0, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Triples (dotted key, old, new) of values that differ; numbers may differ by `tolerance` of the larger one.

    A key that only the new document has is no difference: keys may be added from version to version.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            name = f"{where}.{key}" if where else str(key)
            if key in new:
                yield from differences(value, new[key], tolerance, name)
            else:
                yield name, value, None
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: length", len(old), len(new)
            return
        for index, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, two, tolerance, f"{where}[{index}]")
    elif not _same(old, new, tolerance):
        yield where, old, new


def _same(old: Any, new: Any, tolerance: float) -> bool:
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (old, new))
    if numbers:
        return bool(old == new or abs(old - new) <= tolerance * max(abs(old), abs(new)))
    return type(old) is type(new) and bool(old == new)
