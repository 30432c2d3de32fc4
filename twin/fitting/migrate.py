"""Older calibration files, step by step to today's version.

`MIGRATIONS[n]` turns a document of version n into one of n + 1 and changes nothing that a fit has learnt. Version 0 is
the format before priors learnt from other lanes (`prior_log_factor`) and ranges in tokens in flight. Version 1 held the
time of a cold expert in host memory, where today's holds the share of the link's bandwidth it reaches: one factor is the
other's inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA_VERSION = 2


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


_OLD, _NEW = ".host_expert_time", ".host_read_efficiency"


def _version_1(raw: dict[str, Any]) -> dict[str, Any]:
    parameters = raw.get("parameters")
    covariance = raw.get("covariance")
    if not isinstance(parameters, list) or not isinstance(covariance, list):
        return raw | {"schema_version": 2}
    turned = [isinstance(p, dict) and str(p.get("key", "")).endswith(_OLD) for p in parameters]
    if not any(turned):
        return raw | {"schema_version": 2}
    signs = [-1.0 if turn else 1.0 for turn in turned]
    if any(not isinstance(row, list) or len(row) != len(signs) for row in covariance) or len(covariance) != len(signs):
        return raw | {"schema_version": 2}  # the reader says what is wrong with it
    return raw | {
        "schema_version": 2,
        "parameters": [_inverse(p) if turn else p for p, turn in zip(parameters, turned, strict=True)],
        "covariance": [
            [s * t * v if isinstance(v, (int, float)) else v for t, v in zip(signs, row, strict=True)]
            for s, row in zip(signs, covariance, strict=True)
        ],
    }


def _inverse(parameter: dict[str, Any]) -> dict[str, Any]:
    key = str(parameter["key"]).removesuffix(_OLD) + _NEW
    # A share of a bandwidth the file does not name: the factor is what counts, its catalogue value is left at one.
    turned: dict[str, Any] = parameter | {"key": key, "unit": "1", "catalogue_value": 1.0}
    for name in ("log_factor", "prior_log_factor"):
        if isinstance(turned.get(name), (int, float)):
            turned[name] = -turned[name]
    return turned


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _version_0, 1: _version_1}
