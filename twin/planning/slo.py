"""What is promised: "p95 TTFT 2 s, p99 TPOT 25 ms, mean E2E 10 s"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from twin.errors import PolicyError, nearest
from twin.serving.request import FINISHED, Request
from twin.serving.result import ServingResult, Slo
from twin.units import parse_quantity

METRICS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s", "QUEUE": "queue_s"}
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_CLAUSE = re.compile(r"^\s*(\w+)\s+(\w+?)(?:\s*<=?\s*|\s+)(\S.*?)\s*$")
_HOW = 'for example "p95 TTFT 2 s, p99 TPOT 25 ms"'


@dataclass(frozen=True, slots=True)
class Clause:
    """One promise: a statistic of a latency is at most `limit_s`."""

    statistic: str
    metric: str
    limit_s: float

    def value_s(self, result: ServingResult) -> float | None:
        """What a run measured; None when nothing finished."""
        value: float | None = getattr(getattr(result, METRICS[self.metric]), self.statistic)
        return value

    def text(self) -> str:
        """As it was written."""
        limit = f"{self.limit_s:g} s" if self.limit_s >= 1 else f"{self.limit_s * 1e3:g} ms"
        return f"{self.statistic} {self.metric} {limit}"


def parse_slo(text: str) -> tuple[Clause, ...]:
    """The clauses of an SLO, in order. Raises PolicyError saying which part is wrong."""
    clauses = [_clause(part, text) for part in text.split(",") if part.strip()]
    if not clauses:
        raise PolicyError(f"the SLO is empty; {_HOW}.")
    return tuple(clauses)


def _clause(part: str, text: str) -> Clause:
    match = _CLAUSE.match(part)
    if match is None:
        raise PolicyError(f"SLO {text!r}: {part.strip()!r} is not STATISTIC LATENCY TIME; {_HOW}.")
    statistic, metric = match[1].lower(), match[2].upper()
    if statistic not in STATISTICS:
        raise PolicyError(f"SLO {text!r}: {match[1]!r}: {nearest(statistic, STATISTICS)}")
    if metric not in METRICS:
        raise PolicyError(f"SLO {text!r}: {match[2]!r}: {nearest(metric, METRICS)}")
    limit_s = parse_quantity(match[3], "time", where=f"SLO {text!r}")
    if limit_s <= 0:
        raise PolicyError(f"SLO {text!r}: the limit {match[3]!r} is not above 0.")
    return Clause(statistic, metric, limit_s)


def per_request(clauses: Sequence[Clause]) -> Slo:
    """The limits a single request is held against for goodput: the tightest of each latency."""

    def tightest(metric: str) -> float | None:
        return min((c.limit_s for c in clauses if c.metric == metric), default=None)

    return Slo(ttft_s=tightest("TTFT"), tpot_s=tightest("TPOT"), e2e_s=tightest("E2E"))


class Watch:
    """Stops a run of `requests` requests as soon as it cannot keep a promise: too many are already beyond the limit.

    Half as many again as the quantile allows, and three, are let pass, because a warm-up will be left out.
    """

    def __init__(self, clauses: Sequence[Clause], requests: int) -> None:
        self.broken: Clause | None = None
        self._left = [
            (c, [round(1.5 * requests * (100 - int(c.statistic[1:])) / 100) + 3])
            for c in clauses
            if c.statistic.startswith("p") and c.metric in ("TTFT", "TPOT", "E2E")
        ]

    def __call__(self, request: Request) -> bool:
        """Count an ended request; True when the run may stop."""
        if request.status != FINISHED:
            return False
        for clause, left in self._left:
            if _latency_s(request, clause.metric) > clause.limit_s:
                left[0] -= 1
                if left[0] < 0:
                    self.broken = clause
                    return True
        return False


def _latency_s(request: Request, metric: str) -> float:
    if metric == "TTFT":
        return request.first_token_s - request.arrival_s
    if metric == "E2E":
        return request.finish_s - request.arrival_s
    return (request.last_token_s - request.first_token_s) / max(request.output_tokens - 1, 1)


def broken(clauses: Sequence[Clause], result: ServingResult) -> list[str]:
    """The promises a run did not keep, in words."""
    missed = []
    for clause in clauses:
        value_s = clause.value_s(result)
        if value_s is None:
            missed.append(f"{clause.text()}: nothing finished")
        elif value_s > clause.limit_s:
            missed.append(f"{clause.text()}: {value_s:.4g} s")
    return missed
