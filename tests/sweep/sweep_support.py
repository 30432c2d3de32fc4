"""What the sweep tests share: a small grid and how to run it to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from twin.lane.catalogue import catalogue_roots
from twin.planning.grid import Design, make_design, parse_axis
from twin.planning.store import ChunkStore
from twin.planning.sweep import Inputs, plan_inputs, run
from twin.workers import InProcess

LANES = ("sidecar", "tp4")


def design(*axes: str, lanes: Sequence[str] = LANES, **chosen: int) -> Design:
    """A design from texts."""
    return make_design(lanes, [parse_axis(a) for a in axes], **chosen)


def inputs(of: Design, samples: int = 16) -> Inputs:
    """Planned on the shipped catalogue."""
    return plan_inputs(of, catalogue_roots(), calibration=None, seed=0, samples=samples)


def swept(of: Design, executor: Executor | None = None, *, samples: int = 16, store: ChunkStore | None = None) -> bytes:
    """All rows of a design."""
    return b"".join(run(of, inputs(of, samples), executor or InProcess(), store=store, ahead=8))
