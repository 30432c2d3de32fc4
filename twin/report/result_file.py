"""Reading a result that `--json` printed, of this version or an older one.

A document has `schema_version`; `MIGRATIONS[n]` turns one of version n into n + 1. What older files could not say is
reconstructed from what they do say, or refused: nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twin.errors import TwinError

SCHEMA_VERSION = 1
MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64


def read_result(path: Path) -> dict[str, Any]:
    """The document, migrated to today's version, with `settings`. Raises TwinError naming the file and the key."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TwinError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; a result is smaller.")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TwinError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TwinError(f"{path}: not a JSON result ({reason}); `twin predict --json` prints one.") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("command"), str):
        raise TwinError(f"{path}: expected a result with the key 'command', as `twin predict --json` prints it.")
    if _depth(raw) > MAX_DEPTH:
        raise TwinError(f"{path}: nested more than {MAX_DEPTH} deep; a result is not.")
    return migrate(raw, str(path))


def migrate(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """`raw` as a document of today's version. Raises TwinError for a version this program does not know."""
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= SCHEMA_VERSION:
        raise TwinError(
            f"{where}: schema_version is {version!r}; this version of twin reads 0 to {SCHEMA_VERSION}. "
            "A newer file needs a newer twin."
        )
    while version < SCHEMA_VERSION:
        raw = MIGRATIONS[version](raw)
        version += 1
    if "settings" not in raw:
        raw = raw | {"settings": settings_of(raw, where)}
    if not isinstance(raw["settings"], dict):
        raise TwinError(f"{where}: settings: expected the command's options by name.")
    return raw


def settings_of(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The options of a prediction printed before results recorded them, from its cells.

    What-ifs (`--set`) were not recorded then; a rerun notices them by the hash of the lane.
    """
    cells = raw.get("cells")
    if raw["command"] != "predict" or not isinstance(cells, list) or not cells:
        raise TwinError(f"{where}: the result does not record its settings, so it cannot be repeated; print it again.")
    try:
        first = cells[0]
        ks = {cell["k"] for cell in cells}
        settings = {
            "lane_name": raw["lane"], "concurrency": ",".join(str(cell["concurrency"]) for cell in cells),
            "traffic": first["traffic"], "verification": first["verification"],
            "context_tokens": first["context_tokens"], "calibration": raw["calibration"]["name"], "seed": raw["seed"],
        }  # fmt: skip
        if len(ks) == 1:
            return settings | {"k": first["k"]}
        ranges = ", ".join(f"{c['concurrency']}-{c['concurrency']}:{c['k']}" for c in cells)
        return settings | {"schedule": ranges}
    except (KeyError, TypeError) as error:
        raise TwinError(f"{where}: not a whole prediction ({error}); print it again.") from None


def _version_0(raw: dict[str, Any]) -> dict[str, Any]:
    # Before 0.1.0 the calibration was its name alone.
    calibration = raw.get("calibration")
    named = {"name": calibration} if isinstance(calibration, str) else calibration
    return raw | {"schema_version": 1, "calibration": named}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _version_0}


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        if deepest > MAX_DEPTH:
            break
        level = [
            inner for item in level if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]  # fmt: skip
    return deepest
