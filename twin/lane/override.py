"""What-ifs on a lane by dotted key: `links.sidecar.latency="8 us"`, `placement.hot=330`, `engine.launch_mode=graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twin.errors import CatalogueError, nearest
from twin.lane.catalogue import build
from twin.lane.lane import Lane
from twin.lane.sourced import Sourced

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
            raise CatalogueError(f'--set {setting!r}: expected KEY=VALUE, for example --set links.sidecar.latency="8 us".')
        _set(raw, key.strip(), text.strip().strip('"'), lane)
    return build(Lane, raw, "after " + ", ".join(f"--set {s}" for s in settings))


def settable_keys(lane: Lane) -> list[str]:
    """Every dotted key that `override` takes for this lane."""
    return sorted(_walk(lane.model_dump(), ""))


def _walk(node: Any, prefix: str) -> list[str]:
    if isinstance(node, dict) and "text" in node and "value" in node:
        return [prefix]
    if isinstance(node, dict):
        return [key for name, child in node.items() for key in _walk(child, f"{prefix}.{name}" if prefix else str(name))]
    if isinstance(node, list):
        return [key for i, child in enumerate(node) if isinstance(child, dict) for key in _walk(child, f"{prefix}.{i}")]
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
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and isinstance(node.get(part), (dict, list)):
            node = node[part]
        else:
            raise CatalogueError(f"--set {key}: no such key in lane {lane.name!r}; {nearest(key, settable_keys(lane))}")
    last = parts[-1]
    if not isinstance(node, dict) or last not in node or (node[last] is None and last not in ("sidecars", "pipeline")):
        raise CatalogueError(f"--set {key}: no such key in lane {lane.name!r}; {nearest('.'.join(parts), settable_keys(lane))}")
    old = node[last]
    if old is None or (isinstance(old, dict) and "text" in old):
        node[last] = {"value": _plain(text), "source": _SOURCE, "kind": "assumed"}
    elif isinstance(old, bool):
        if text not in ("true", "false"):
            raise CatalogueError(f"--set {key}: expected true or false, got {text!r}.")
        node[last] = text == "true"
    elif isinstance(old, int):
        if not text.lstrip("-").isdigit():
            raise CatalogueError(f"--set {key}: expected a whole number, got {text!r}.")
        node[last] = int(text)
    elif isinstance(old, str):
        node[last] = text
    else:
        raise CatalogueError(f"--set {key}: this key is a list or a table; set one of its members.")


def _plain(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


__all__ = ["Sourced", "override", "settable_keys"]
