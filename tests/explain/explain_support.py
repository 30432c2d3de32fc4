"""Settings that several tests ask about."""

from __future__ import annotations

from functools import lru_cache

from twin.lane.catalogue import catalogue_roots
from twin.planning.scenario import Resolved, parse_setting, resolve

ROOTS = catalogue_roots()
MISSION_A = "sidecar:k=5,verification=token,traffic=codegen-padded"
MISSION_B = "tp4:k=7,verification=block,traffic=codegen-padded"


@lru_cache(maxsize=64)
def setting(text: str) -> Resolved:
    """A setting of the shipped catalogue."""
    return resolve(parse_setting(text), ROOTS)
