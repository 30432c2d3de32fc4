"""Older calibration files, step by step to today's version.

`MIGRATIONS[n]` turns a document of version n into one of n + 1 and changes nothing that a fit has learnt. Version 0 is
the format before priors learnt from other lanes (`prior_log_factor`) and ranges in tokens in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA_VERSION = 1


def migrate(raw: dict[str, Any]) -> dict[str, Any] | None:
    """`raw` as a document of SCHEMA_VERSION; None when its version is not one that this program knows."""
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= SCHEMA_VERSION:
        return None
    for step in range(version, SCHEMA_VERSION):
        raw = MIGRATIONS[step](raw)
    return raw


def _version_0(raw: dict[str, Any]) -> dict[str, Any]:
    covered = raw.get("range")
    if isinstance(covered, dict) and "tokens_in_flight" not in covered:
        ends = [[covered.get(name, [0, 0])[i] for name in ("k", "concurrency")] for i in (0, 1)]
        covered = covered | {"tokens_in_flight": [(k + 1) * streams for k, streams in ends]}
    return raw | {"schema_version": 1, "range": covered}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _version_0}
