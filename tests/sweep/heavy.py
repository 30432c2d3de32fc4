"""Everything heavy in a size that takes a second: what each command hands to an executor, and its answer as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from sweep_support import design, swept

from twin.fitting.cells import ReceiptCell
from twin.fitting.fit import fit_lanes
from twin.fitting.load import read_all, receipt_files, resolve_receipts
from twin.fitting.validation import validate
from twin.lane.catalogue import catalogue_roots
from twin.planning.plan import make_plan
from twin.planning.replications import replicate
from twin.planning.server import make_server
from twin.planning.slo import parse_slo
from twin.planning.study import Arrivals, Extent, Option, Study, TrafficShare

SHARE = TrafficShare(name="mixed", prompt_tokens=100, output_tokens=30)
ARRIVALS, EXTENT = Arrivals(kind="poisson", rate=2.0), Extent(requests=40)


@lru_cache(maxsize=1)
def _cells() -> dict[str, list[ReceiptCell]]:
    """The receipts of the two lanes that have fewest of those with five or more."""
    roots = catalogue_roots()
    by_lane: dict[str, list[Any]] = {}
    for receipt in read_all(receipt_files(roots)):
        if receipt.use == "fit" and not receipt.versus_lane:
            by_lane.setdefault(receipt.lane, []).append(receipt)
    few = sorted((len(own), lane) for lane, own in by_lane.items() if len(own) >= 5)[:2]
    return {lane: resolve_receipts(by_lane[lane], roots) for _, lane in few}


def _fitted(cells: list[ReceiptCell], executor: Executor | None) -> str:
    result = fit_lanes(cells, seed=3, executor=executor)
    lanes = "".join(c.model_dump_json() for c in result.calibrations.values())
    return lanes + repr([r.predicted for r in result.residuals])


def fit_of_two_lanes(executor: Executor | None) -> str:
    """One task a lane, in two rounds."""
    return _fitted([c for own in _cells().values() for c in own], executor)


def fit_from_several_starts(executor: Executor | None) -> str:
    """One lane: one task a start."""
    return _fitted(next(iter(_cells().values())), executor)


def cross_validation(executor: Executor | None) -> str:
    """One task a lane."""
    result = validate([c for own in _cells().values() for c in own], executor=executor)
    return repr([(s.cell.receipt.id, s.predicted) for s in (*result.held_out, *result.by_source, *result.transfer)])


def replications(executor: Executor | None) -> str:
    """One task a run."""
    server = make_server(Option(name="tp4", lane="tp4"), [SHARE], catalogue_roots())
    return json.dumps([asdict(r) for r in replicate(server, ARRIVALS, EXTENT, replications=3, executor=executor)])


def plan(executor: Executor | None) -> str:
    """One task a replication of the search."""
    study = Study(
        schema_version=1, title="", traffic=[SHARE], arrivals=ARRIVALS, extent=EXTENT,
        options=[Option(name="tp4", lane="tp4")],
    )  # fmt: skip
    found = make_plan(
        study, parse_slo("p95 TTFT 2 s"), catalogue_roots(), seed=0, replications=2, pareto=False, executor=executor
    )
    return json.dumps(found.to_dict())


def sweep(executor: Executor | None) -> str:
    """One task a chunk."""
    return swept(design("k=0..3", "streams=1..5"), executor).decode()


HEAVY: list[Callable[[Executor | None], str]] = [
    sweep, fit_of_two_lanes, fit_from_several_starts, cross_validation, replications, plan,
]  # fmt: skip
