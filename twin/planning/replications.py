"""Independent replications of a serving simulation: other arrivals, lengths and acceptance, and another draw of the lane.

One run's interval (batch means) says how well that run knows its own mean. Replications say how far another day, and
another lane of the kind, would be from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

from twin.errors import PolicyError
from twin.planning.server import Server, serve
from twin.planning.study import Arrivals, Extent
from twin.serving.result import ServingResult, Slo
from twin.serving.stats import replication_half_width
from twin.workers import executor_map

MOST = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """One number of a result over replications: its mean, the 95 % half width of the mean, and the ends."""

    metric: str
    mean: float
    half_width: float | None
    least: float
    most: float


def speed_of(server: Server, index: int, replications: int) -> float:
    """A quantile of the lane's unknown speed for each replication, in no order of size that a seed could follow."""
    z = NormalDist().inv_cdf((index + 0.5) / replications)
    return math.exp(server.relative_sd * z)


def replicate(
    server: Server, arrivals: Arrivals, extent: Extent, *, replications: int, seed: int = 0, slo: Slo | None = None,
    executor: Executor | None = None,
) -> tuple[ServingResult, ...]:  # fmt: skip
    """The results in their order, the same whatever the executor. Raises PolicyError for a number that makes no sense."""
    if not 1 <= replications <= MOST:
        raise PolicyError(f"{replications} replications; expected 1 to {MOST:,}.")
    work = partial(_one, server, arrivals, extent, replications, seed, slo)
    return tuple(executor_map(executor, work, range(replications)))


def _one(
    server: Server, arrivals: Arrivals, extent: Extent, replications: int, seed: int, slo: Slo | None, index: int
) -> ServingResult:
    speed = speed_of(server, index, replications)
    result = serve(server, arrivals, extent, seed=seed + 1000 * index, slo=slo, speed=speed).result
    if result.interrupted:
        raise KeyboardInterrupt  # half a run is no replication
    return result


def spreads(results: Sequence[ServingResult]) -> tuple[Spread, ...]:
    """The numbers people compare, over replications: latencies in seconds, rates, occupancy."""
    rows: list[tuple[str, list[float]]] = [
        (f"{name}.{at}", [getattr(getattr(r, name), at) for r in results])
        for name in ("ttft_s", "tpot_s", "e2e_s")
        for at in ("mean", "p95")
    ]
    rows += [(name, [getattr(r, name) for r in results]) for name in ("output_tok_s", "finished_per_s", "utilisation")]
    good = [r.goodput.fraction for r in results if r.goodput is not None]
    rows += [("goodput.fraction", good)] if good else []
    return tuple(
        Spread(name, sum(values) / len(values), replication_half_width(values), min(values), max(values))
        for name, values in rows
        if values and all(v is not None and math.isfinite(v) for v in values)
    )
