"""How much a lane can promise: the largest load that keeps an SLO, replicas for a target, and their cost.

The load is the rate of open arrivals, the users of a closed loop, or the speed of a trace's clock. Every replication is
a run with its own arrivals, lengths and acceptance, and with its own speed of the lane: the z-th quantile of what is
unknown of it (boot noise, scatter of the receipts, the mean of acceptance). Inside a replication the same requests come
at every load, closer together or further apart, so whether the SLO is kept has one edge, found by bracketing and
bisection. The answer is the mean of the edges with a Student-t interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from twin.errors import PolicyError
from twin.planning.replications import speed_of
from twin.planning.server import Server, serve
from twin.planning.slo import Clause, Watch, broken, per_request
from twin.planning.study import Arrivals, Extent
from twin.serving.result import ServingResult
from twin.serving.stats import replication_half_width
from twin.workers import executor_map

REQUESTS = 1000
REPLICATIONS = 4
#: relative width at which a bisection stops; below the noise of any measured lane
TOLERANCE = 0.02
_SMALLEST = 1e-3  # of the first guess; what cannot be kept there is not kept at all
_MOST_USERS = 4096

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge of one replication: the largest load that kept the SLO (0: none did), and what ended it above."""

    load: float
    kept: ServingResult | None
    missed: tuple[str, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest load that keeps the SLO: mean over replications, 95 % interval (None for a single one)."""

    unit: str  # "requests/s", "users" or "times the trace"
    load: float
    half_width: float | None
    edges: tuple[float, ...]
    limited_by: tuple[str, ...]
    at_load: ServingResult | None  # the run closest below the edge, of the replication nearest to the mean
    runs: int


def largest_load(
    server: Server, arrivals: Arrivals, extent: Extent, clauses: Sequence[Clause], *, seed: int = 0,
    replications: int = REPLICATIONS, replicas: int | None = None, executor: Executor | None = None,
    said: Said | None = None,
) -> Capacity:  # fmt: skip
    """Search the largest load that keeps `clauses`. Raises PolicyError for a workload that has no load to vary."""
    if arrivals.ramp_to is not None:
        raise PolicyError("a ramp has no one rate to search for; give constant arrivals.")
    if not 1 <= replications <= 100:
        raise PolicyError(f"{replications} replications; expected 1 to 100.")
    pilot = _replication(
        server, arrivals, _pilot(extent, arrivals), tuple(clauses), replicas, seed + 7, 1, _guess(server, arrivals), 0
    )
    start = pilot.load or _guess(server, arrivals)
    work = partial(_replication, server, arrivals, extent, tuple(clauses), replicas, seed, replications, start)
    edges: list[Edge] = []
    for index, edge in enumerate(executor_map(executor, work, range(replications))):
        edges.append(edge)
        if said is not None:
            said(f"{server.option.name}: replication {index + 1} of {replications}, {edge.load:.3g}")
    loads = [e.load for e in edges]
    mean = sum(loads) / len(loads)
    nearest = min(edges, key=lambda e: abs(e.load - mean))
    limited = [reason.split(":")[0] for e in edges for reason in e.missed]
    return Capacity(
        unit=_unit(arrivals), load=mean, half_width=replication_half_width(loads), edges=tuple(loads),
        limited_by=tuple(sorted(set(limited), key=limited.count, reverse=True)), at_load=nearest.kept,
        runs=pilot.runs + sum(e.runs for e in edges),
    )  # fmt: skip


def replicas_for(
    server: Server, arrivals: Arrivals, extent: Extent, clauses: Sequence[Clause], target: float, *, single: float,
    seed: int = 0, replications: int = REPLICATIONS, most: int = 256,
) -> int | None:  # fmt: skip
    """The fewest replicas that keep the SLO at the load `target` in every replication; None when `most` do not.

    `single` is what one replica sustains: the search starts at target / single, and a shared router may need fewer.
    """
    if single <= 0:
        return None
    work = partial(_kept_at, server, arrivals, extent, tuple(clauses), target, seed, replications)
    count = max(1, min(math.ceil(target / single), most))
    # The first replication has the slowest lane: it decides, and the others only confirm.
    while count > 1 and work(count - 1, 0):
        count -= 1
    while count <= most:
        if all(work(count, i) for i in range(replications)):
            return count
        count += max(1, count // 8)
    return None


def _kept_at(
    server: Server, arrivals: Arrivals, extent: Extent, clauses: tuple[Clause, ...], load: float, seed: int,
    replications: int, replicas: int, index: int,
) -> bool:  # fmt: skip
    longer = extent
    if extent.duration is None and arrivals.kind != "trace":
        longer = extent.model_copy(update={"requests": (extent.requests or REQUESTS) * min(replicas, 3)})
    speed = speed_of(server, index, replications)
    return not _run(server, arrivals, longer, clauses, load, seed + 1000 * index, speed, replicas)[1]


def _run(
    server: Server, arrivals: Arrivals, extent: Extent, clauses: Sequence[Clause], load: float, seed: int,
    speed: float, replicas: int | None,
) -> tuple[ServingResult, list[str]]:  # fmt: skip
    """One run at one load, and the promises it did not keep. A run that can no longer keep one is cut short."""
    watch = Watch(clauses, extent.requests) if extent.requests is not None else None
    result = serve(
        server, _at(arrivals, load), extent, seed=seed, slo=per_request(clauses), speed=speed, replicas=replicas,
        stop=watch,
    ).result  # fmt: skip
    if result.interrupted:
        raise KeyboardInterrupt  # half a run says nothing of a promise
    if watch is not None and watch.broken is not None:
        return result, [watch.broken.text()]
    return result, _missed(clauses, result)


def _pilot(extent: Extent, arrivals: Arrivals) -> Extent:
    if extent.duration is not None or arrivals.kind == "trace":
        return extent
    return extent.model_copy(update={"requests": max((extent.requests or REQUESTS) // 3, 100)})


def _replication(
    server: Server, arrivals: Arrivals, extent: Extent, clauses: tuple[Clause, ...], replicas: int | None, seed: int,
    replications: int, start: float, index: int,
) -> Edge:  # fmt: skip
    speed = speed_of(server, index, replications)
    enough = extent
    if extent.duration is None and extent.requests is None and arrivals.kind != "trace":
        enough = extent.model_copy(update={"requests": REQUESTS})
    runs = 0

    def tried(load: float) -> tuple[ServingResult, list[str]]:
        nonlocal runs
        runs += 1
        return _run(server, arrivals, enough, clauses, load, seed + 1000 * index, speed, replicas)

    whole = arrivals.kind == "closed"
    low, high, kept, missed = _bracket(tried, start, whole)
    while kept is not None and not _close(low, high, whole):
        middle = float((int(low) + int(high)) // 2) if whole else math.sqrt(low * high)
        result, reasons = tried(middle)
        if reasons:
            high, missed = middle, reasons
        else:
            low, kept = middle, result
    return Edge(low if kept is not None else 0.0, kept, tuple(missed), runs)


def _bracket(
    tried: Callable[[float], tuple[ServingResult, list[str]]], guess: float, whole: bool
) -> tuple[float, float, ServingResult | None, list[str]]:
    """(a load that keeps the SLO, one that does not, the run of the first, what the second missed)."""
    load, kept = guess, None
    low = 0.0
    result, missed = tried(load)
    while not missed:
        low, kept = load, result
        if whole and load >= _MOST_USERS:
            return low, low, kept, ["no limit found"]
        load = min(load + max(1, load // 4), _MOST_USERS) if whole else load * 1.2
        if load > guess * 100 and not whole:
            return low, low, kept, ["no limit found"]
        result, missed = tried(load)
    high = load
    while kept is None:
        load = float(int(load) - max(1, int(load) // 4)) if whole else load / 1.25
        if load < (1 if whole else guess * _SMALLEST):
            return 0.0, high, None, missed
        result, reasons = tried(load)
        if reasons:
            high, missed = load, reasons
        else:
            low, kept = load, result
    return low, high, kept, missed


def _close(low: float, high: float, whole: bool) -> bool:
    return high - low <= 1 if whole else high <= low * (1.0 + TOLERANCE)


def _missed(clauses: Sequence[Clause], result: ServingResult) -> list[str]:
    missed = broken(clauses, result)
    if not missed and any("not steady" in w for w in result.warnings):
        missed = ["the queue grows without end"]
    lost = result.requests.refused + result.requests.failed
    if not missed and lost > 0:
        missed = [f"{lost} requests were refused or failed"]
    return missed


def _guess(server: Server, arrivals: Arrivals) -> float:
    """About what the lane could do with every slot full: a first load to try."""
    if arrivals.kind == "trace":
        return 1.0
    seqs = server.limits.max_seqs
    if arrivals.kind == "closed":
        return float(max(1, seqs // 2))
    k = server.k_by_streams[seqs]
    total = sum(s.weight for s in server.shares)
    load_s = 0.0  # seconds of the whole lane that a mean request takes
    for share, predictor in zip(server.shares, server.predictors, strict=True):
        lengths = predictor.traffic.length
        prompt = share.prompt_tokens or lengths.prompt.mean_tokens
        output = share.output_tokens or lengths.output.mean_tokens
        kept = server.acceptance(predictor.traffic, k).tokens_per_step
        step_s = server.table.decode_s(seqs, seqs * (k + 1), prompt + output / 2)
        load_s += share.weight / total * (output / kept * step_s / seqs + server.table.prefill_s(int(prompt), 0.0))
    return 0.7 * server.deployment.replicas / load_s


def _at(arrivals: Arrivals, load: float) -> Arrivals:
    if arrivals.kind == "closed":
        return arrivals.model_copy(update={"users": int(load)})
    if arrivals.kind == "trace":
        return arrivals.model_copy(update={"time_scale": arrivals.time_scale / load})
    return arrivals.model_copy(update={"rate": load})


def _unit(arrivals: Arrivals) -> str:
    return {"closed": "users", "trace": "times the trace"}.get(arrivals.kind, "requests/s")
