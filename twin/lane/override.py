"""What-ifs on a lane by dotted key: `links.sidecar.latency="8 us"`, `placement.hot=330`, `engine.launch_mode=graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twin.errors import CatalogueError, nearest
from twin.lane.catalogue import build
from twin.lane.lane import Lane

_LINK_WORDS = {"pcie": "sidecar", "c2c": "host", "roce": "peer", "nvlink": "peer"}
_SOURCE = "what-if on the command line"


def override(lane: Lane, settings: Sequence[str]) -> Lane:
    """A copy of `lane` with every "dotted.key=value" of `settings` applied. Raises CatalogueError."""
    if not settings:
        return lane
    raw = lane.model_dump()
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            example = '--set links.sidecar.latency="8 us"'
            raise CatalogueError(f"--set {setting!r}: expected KEY=VALUE, for example {example}.")
        _set(raw, key.strip(), text.strip().strip('"'), lane)
    return build(Lane, raw, "after " + ", ".join(f"--set {s}" for s in settings))


def settable_keys(lane: Lane) -> list[str]:
    """Every dotted key that `override` takes for this lane."""
    return sorted(_walk(lane.model_dump(), ""))


def _walk(node: Any, prefix: str) -> list[str]:
    if _is_value(node):
        return [prefix]
    dot = f"{prefix}." if prefix else ""
    if isinstance(node, dict):
        return [key for name, child in node.items() for key in _walk(child, f"{dot}{name}")]
    if isinstance(node, list):
        return [key for i, child in enumerate(node) if isinstance(child, dict) for key in _walk(child, f"{dot}{i}")]
    return [] if node is None else [prefix]


def _set(raw: dict[str, Any], key: str, text: str, lane: Lane) -> None:
    parts = key.removeprefix("lane.").split(".")
    if parts[0] in ("links", "devices") and len(parts) > 1 and parts[1] not in raw[parts[0]]:
        # People say "pcie" for the link that is PCIe in this lane.
        named = [role for role, part in raw[parts[0]].items() if parts[1] in (part.get("kind"), part.get("name"))]
        word = _LINK_WORDS.get(parts[1])
        if named:
            parts[1] = named[0]
        elif word is not None and word in raw[parts[0]]:
            parts[1] = word
    node: Any = raw
    for part in parts[:-1]:
        node = node[_place(node, part, parts, lane)]
    last = _place(node, parts[-1], parts, lane)
    old = node[last]
    if old is None or _is_value(old):
        node[last] = {"value": _plain(text), "source": _SOURCE, "kind": "assumed"}
    elif isinstance(old, bool):
        if text not in ("true", "false"):
            raise CatalogueError(f"--set {key}: expected true or false, got {text!r}.")
        node[last] = text == "true"
    elif isinstance(old, int):
        if not text.removeprefix("-").isdecimal() or len(text) > 18:
            raise CatalogueError(f"--set {key}: expected a whole number, got {text[:40]!r}.")
        node[last] = int(text)
    elif isinstance(old, str):
        node[last] = text
    else:
        raise CatalogueError(f"--set {key}: this key is a list or a table; set one of its members.")


def _is_value(node: Any) -> bool:
    return isinstance(node, dict) and "value" in node and "source" in node


def _place(node: Any, part: str, parts: list[str], lane: Lane) -> Any:
    """Where in `node` the part of a key is: a name, or the position in a list. Raises CatalogueError."""
    if isinstance(node, dict) and not _is_value(node) and part in node:
        return part
    if isinstance(node, list) and part.isdecimal() and len(part) < 6 and int(part) < len(node):
        return int(part)
    key = ".".join(parts)
    raise CatalogueError(f"--set {key}: no such key in lane {lane.name!r}; {_nearest_key(key, lane)}")


def _nearest_key(key: str, lane: Lane) -> str:
    """People leave out the front of a key more often than they misspell it."""
    keys = settable_keys(lane)
    last = key.removesuffix(".value").rsplit(".", 1)[-1]
    return nearest(key, [k for k in keys if k.rsplit(".", 1)[-1] == last] or keys)


def _plain(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


__all__ = ["override", "settable_keys"]
