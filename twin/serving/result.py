"""The frozen record of one run, from which text, JSON and plots come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twin.serving.stats import Summary

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as good; None: not asked."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that finished and met the SLO: share of those that arrived in the window, a second, and their tokens a
    second."""

    slo: Slo
    fraction: float
    requests_per_s: float
    output_tok_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the requests of the whole run ended; they add up to `arrived`."""

    arrived: int
    finished: int
    cancelled: int
    refused: int
    failed: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Prefix cache: shares of the prompt tokens that were looked up."""

    looked_up_tokens: int
    hit_rate: float
    host_hit_rate: float


@dataclass(frozen=True, slots=True)
class Little:
    """Little's law on the whole run: requests in the system, counted event by event, against rate times time in
    system."""

    in_system: float
    rate_times_sojourn: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class ClassResult:
    """Latencies of one traffic class, seconds."""

    name: str
    finished: int
    ttft_s: Summary
    tpot_s: Summary
    e2e_s: Summary


@dataclass(frozen=True, slots=True)
class ServingResult:
    """A run, measured between `window_s`. Latencies are of requests that arrived in the window and finished.

    `itl_s` is the time between a stream's chunks: with speculation a chunk is a verify step's tokens. `utilisation`
    is the busy share of all replicas; `streams`, `waiting` and `in_prefill` are time averages over all replicas; KV
    is a fraction of all replicas' capacity (`kv_peak` of the fullest).
    """

    seed: int
    duration_s: float
    window_s: tuple[float, float]
    requests: Counts
    ttft_s: Summary
    tpot_s: Summary
    itl_s: Summary
    e2e_s: Summary
    queue_s: Summary
    classes: tuple[ClassResult, ...]
    offered_per_s: float
    finished_per_s: float
    output_tok_s: float
    output_tok_s_ci95: float | None
    prompt_tok_s: float
    goodput: Goodput | None
    steps: int
    utilisation: float
    streams: float
    in_prefill: float
    waiting: float
    kv_mean: float
    kv_peak: float
    preemptions: int
    cache: Cache | None
    little: Little
    steady: bool
    interrupted: bool
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data with `schema_version`."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}
