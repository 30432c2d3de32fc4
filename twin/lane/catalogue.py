"""The catalogue: TOML files of devices, links, checkpoints, engines and lanes, searched in order of roots.

A user's folder (`--catalogue DIR`, `TWIN_CATALOGUE`) comes first, the shipped data last. Names are file names; a name
cannot leave its folder. An engine or a checkpoint may say `extends = "other"` and give only what differs.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from twin.errors import CatalogueError, nearest
from twin.lane.checkpoint import Checkpoint
from twin.lane.device import Device, Link
from twin.lane.engine import Engine
from twin.lane.lane import Lane, LaneFile
from twin.lane.sourced import Strict

MAX_FILE_BYTES = 1 << 20
#: a name of the catalogue, and of a file made for it: no separator, no leading dot
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_PACKAGE = Path(__file__).resolve().parent.parent
T = TypeVar("T", bound=Strict)

FOLDERS: dict[str, type[Strict]] = {
    "devices": Device, "links": Link, "checkpoints": Checkpoint, "engines": Engine, "lanes": LaneFile,
}  # fmt: skip


def shipped_root() -> Path:
    """The folder that holds hardware/, calibration/ and scenarios/: inside the wheel, or the source tree."""
    inside = _PACKAGE / "data"
    return inside if (inside / "hardware").is_dir() else _PACKAGE.parent


def catalogue_roots(extra: str | Path | None = None) -> tuple[Path, ...]:
    """Folders to search, first hit wins: `extra`, then TWIN_CATALOGUE, then what is shipped."""
    roots: list[Path] = []
    for given, name in ((extra, "--catalogue"), (os.environ.get("TWIN_CATALOGUE") or None, "TWIN_CATALOGUE")):
        if given is not None:
            path = Path(given)
            if not path.is_dir():
                raise CatalogueError(
                    f"{name}: {str(path)!r} is not a folder; expected one with hardware/lanes/ and so on inside."
                )
            roots.append(path)
    return (*roots, shipped_root())


def names(folder: str, roots: Sequence[Path]) -> list[str]:
    """Every name in `folder` (a key of FOLDERS) over all roots, sorted."""
    found = {p.stem for root in roots for p in (root / "hardware" / folder).glob("*.toml")}
    return sorted(found)


def find(folder: str, name: str, roots: Sequence[Path]) -> Path:
    """The file of one catalogue entry. Raises CatalogueError with the nearest names."""
    kind = folder.removesuffix("s")
    if not NAME.fullmatch(name):
        raise CatalogueError(
            f"{kind} {name!r}: a name has letters, digits, dots and dashes only; {nearest(name, names(folder, roots))}"
        )
    for root in roots:
        base = root / "hardware" / folder
        path = base / f"{name}.toml"
        if path.is_file():
            if not path.resolve().is_relative_to(root.resolve()):
                raise CatalogueError(f"{path}: a link that leaves its catalogue; copy the file in instead.")
            return path
    known = names(folder, roots)
    more = " `twin lanes` lists the lanes." if folder == "lanes" else ""
    raise CatalogueError(f"no {kind} named {name!r}; {nearest(name, known)}{more}")


def read_toml(path: Path) -> dict[str, Any]:
    """One TOML file as a dict, bounded in size. Raises CatalogueError naming file and line."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CatalogueError(f"{path}: larger than 1 MiB; a catalogue file is a page of text.")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise CatalogueError(f"{path}: nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise CatalogueError(f"{path}: not UTF-8 text (byte {error.start}).") from None
    except ValueError as error:
        # A TOMLDecodeError, or a number of more digits than Python converts.
        raise CatalogueError(f"{path}: not valid TOML: {error}.") from None
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read ({error.strerror}).") from None


def build(model: type[T], raw: dict[str, Any], where: str) -> T:
    """Validate `raw` as `model`; the error names the dotted key, what was expected and what was there."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(item, model, where) for item in error.errors()[:3]]
        more = error.error_count() - len(lines)
        raise CatalogueError("\n".join(lines) + (f"\n... and {more} more." if more > 0 else "")) from None


def _explain(item: Any, model: type[Strict], where: str) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = item["msg"].removeprefix("Value error, ").removeprefix("value: ")
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}; {nearest(key.split('.')[-1], list(model.model_fields))}"
    if item["type"] == "missing":
        return f"{where}: the key {key!r} is missing."
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def _load_raw(folder: str, name: str, roots: Sequence[Path], seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if name in seen or len(seen) > 8:
        raise CatalogueError(
            f"hardware/{folder}/{seen[0]}.toml: `extends` goes in a circle: {' -> '.join((*seen, name))}."
        )
    raw = read_toml(find(folder, name, roots))
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    if not isinstance(parent, str):
        raise CatalogueError(f"hardware/{folder}/{name}.toml: extends: expected a name, got {parent!r}.")
    return _merge(_load_raw(folder, parent, roots, (*seen, name)), raw)


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        both = isinstance(value, dict) and isinstance(old, dict) and "value" not in value
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


@lru_cache(maxsize=512)
def _load(folder: str, name: str, roots: tuple[Path, ...]) -> Strict:
    raw = _load_raw(folder, name, roots)
    path = find(folder, name, roots)
    entry = build(FOLDERS[folder], raw, str(path))
    if getattr(entry, "name", name) != name:
        raise CatalogueError(f"{path}: name is {entry.name!r} but the file is {name!r}; make them equal.")  # type: ignore[attr-defined]
    return entry


def load_entry(folder: str, name: str, roots: Sequence[Path]) -> Strict:
    """One validated catalogue entry; `folder` is a key of FOLDERS."""
    return _load(folder, name, tuple(roots))


def load_lane(name: str, roots: Sequence[Path]) -> Lane:
    """A lane with all its parts. Raises CatalogueError."""
    roots = tuple(roots)
    found = load_entry("lanes", name, roots)
    assert isinstance(found, LaneFile)
    path = find("lanes", name, roots)

    def part(folder: str, key: str, wanted: str) -> Strict:
        # A part that is missing is a mistake in the lane file: say which key asked for it.
        try:
            return load_entry(folder, wanted, roots)
        except CatalogueError as error:
            raise CatalogueError(f"{path}: {key}: {error}") from None

    parts: dict[str, Any] = {
        "devices": {role: part("devices", f"devices.{role}", device) for role, device in found.devices.items()},
        "links": {role: part("links", f"links.{role}", link) for role, link in found.links.items()},
        "checkpoint": part("checkpoints", "checkpoint", found.checkpoint),
        "engine": part("engines", "engine", found.engine),
    }
    keep = {
        key: getattr(found, key)
        for key in ("name", "title", "description", "aliases", "calibration", "placement", "policy")
    }
    return build(Lane, keep | parts, str(path))


def lane_sha256(lane: Lane) -> str:
    """A content hash of everything the lane resolves to, so that a result can say what it was computed from."""
    return hashlib.sha256(lane.model_dump_json().encode()).hexdigest()
