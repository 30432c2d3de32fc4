"""The step graph: ops, each with a resource, a named cost and predecessors. One description, two engines.

Resources serve in issue order (the order of `ops`), as CUDA streams, copy queues and NIC queues do. A cost is named,
not a
number: engines look its durations up in a table `{name: array}`, either `(samples,)` or `(layers, samples)` for ops
that
carry a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Durations = Mapping[str, npt.NDArray[np.float64]]

#: What a piece of the step's time is called in results; every op names one.
MECHANISMS = (
    "attention", "dense", "experts", "sidecar_exposed", "all_reduce_exposed", "launch", "draft", "sampling", "other",
)  # fmt: skip
#: Mechanisms of a verify step that a prompt chunk beside it pays for by itself: weights read, hops and collectives.
CHUNK_MECHANISMS = ("dense", "experts", "sidecar_exposed", "all_reduce_exposed")


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of work: `cost` names its duration, `after` are indices of ops that must finish before it starts."""

    name: str
    resource: str
    cost: str
    mechanism: str
    after: tuple[int, ...] = ()
    layer: int | None = None


@dataclass(frozen=True, eq=False)  # compared by identity: engines remember what they worked out for a graph
class StepGraph:
    """Ops in issue order. `primary` is the resource whose waiting is counted as exposed time."""

    ops: tuple[Op, ...]
    primary: str

    def __post_init__(self) -> None:
        for index, op in enumerate(self.ops):
            if any(not 0 <= before < index for before in op.after):
                raise ValueError(f"op {index} ({op.name}): a predecessor must be issued before it, got {op.after}")
            if op.mechanism not in MECHANISMS:
                raise ValueError(f"op {index} ({op.name}): unknown mechanism {op.mechanism!r}")

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource in order of first use."""
        return tuple(dict.fromkeys(op.resource for op in self.ops))


class GraphBuilder:
    """Collects ops in issue order; `add` returns the index to put into `after` of later ops."""

    def __init__(self, primary: str) -> None:
        self._ops: list[Op] = []
        self._primary = primary

    def add(self, name: str, resource: str, cost: str, mechanism: str, *after: int, layer: int | None = None) -> int:
        """Issue one op after those already there."""
        self._ops.append(Op(name, resource, cost, mechanism, tuple(after), layer))
        return len(self._ops) - 1

    def build(self) -> StepGraph:
        """The finished, immutable graph."""
        return StepGraph(tuple(self._ops), self._primary)


def duration_of(op: Op, durations: Durations) -> npt.NDArray[np.float64]:
    """The `(samples,)` durations of one op in seconds."""
    table = durations[op.cost]
    return table if op.layer is None or table.ndim == 1 else table[op.layer]
