"""A catalogue lane as a server: its step times in a table, its acceptance as draws, its limits.

A step that carries a prompt chunk beside decode reads the weights once for both. So it costs the fixed part of the
verify step (attention, small kernels, draft, sampling, host) and, in place of its weights part W, the chunk's:

    mixed = fixed + max(W, min(W + chunk(n), chunk(n + rows) + U))

which is the verify step at n = 0, and `fixed + chunk(n + rows) + U` once the chunk touches every expert anyway. U is
what the two do not share: in layers that a chunk passes with its last window only, verified rows touch experts that
the window does not; their part of W, less the share of experts that the window reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from twin.acceptance.mixture import StreamMixture, spread_streams
from twin.acceptance.model import Acceptance
from twin.acceptance.schedule import Schedule
from twin.acceptance.traffic import TrafficClass
from twin.lane.capacity import kv_tokens
from twin.lane.lane import Lane
from twin.routing.batch import RoutingNoise
from twin.serving.config import Deployment, Limits
from twin.serving.draws import DrawSource, ProfileDraw
from twin.serving.steptime import TableAxes, TableStepTime
from twin.step.batch import Batch
from twin.step.coefficients import Values
from twin.step.graph import CHUNK_MECHANISMS
from twin.step.model import draw_step, draw_step_s
from twin.step.prefill import chunk_s, largest_chunk, unshared_share

#: a verify step is straight in context but for a window at its start
_CONTEXTS = (256.0, 16_384.0)

#: (class, k) -> its acceptance on this lane
AcceptanceOf = Callable[[TrafficClass, int], Acceptance]


class LaneStepTime:
    """The step model asked directly; mean over the samples of `values` and `noise`. Slow: build a table from it.

    A mix of classes is served as the average of its classes' step times, weighted by `classes` [(class, share), ...].
    """

    def __init__(
        self, lane: Lane, classes: Sequence[tuple[TrafficClass, float]], values: Values, noise: RoutingNoise,
        acceptance: AcceptanceOf,
    ) -> None:  # fmt: skip
        total = sum(share for _, share in classes)
        self._lane, self._values, self._noise, self._acceptance = lane, values, noise, acceptance
        self._classes = [(c, share / total) for c, share in classes]
        self._parts: dict[tuple[int, int, float], tuple[float, float]] = {}

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        """One verify step, seconds."""
        return sum(
            share * float(np.mean(draw_step_s(self._lane, c, self._values, batch, self._noise)))
            for c, share, batch in self._batches(streams, rows, context_tokens)
        )

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        """A verify step with a prompt chunk, seconds."""
        whole_s, weights_s = self._whole_and_weights_s(streams, rows, context_tokens)
        alone_s = self.prefill_s(prefill_tokens, prefill_context_tokens)
        together_s = self.prefill_s(prefill_tokens + rows, prefill_context_tokens)
        together_s += weights_s * unshared_share(self._lane, float(prefill_tokens))
        return whole_s - weights_s + max(weights_s, min(weights_s + alone_s, together_s))

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        """A prompt chunk alone, seconds."""
        tokens = float(prefill_tokens)
        return sum(
            share * float(np.mean(chunk_s(self._lane, self._values, tokens, prefill_context_tokens, c)))
            for c, share in self._classes
        )

    def _whole_and_weights_s(self, streams: int, rows: int, context_tokens: float) -> tuple[float, float]:
        key = (streams, rows, context_tokens)
        if key not in self._parts:
            whole_s = weights_s = 0.0
            for c, share, batch in self._batches(*key):
                times = draw_step(self._lane, c, self._values, batch, self._noise).times
                whole_s += share * float(np.mean(times.step_s))
                weights_s += share * sum(float(np.mean(times.mechanism_s[m])) for m in CHUNK_MECHANISMS)
            self._parts[key] = whole_s, weights_s
        return self._parts[key]

    def _batches(self, streams: int, rows: int, context: float) -> list[tuple[TrafficClass, float, Batch]]:
        k = max(round(rows / streams) - 1, 0)
        found = []
        for c, share in self._classes:
            kept = self._acceptance(c, k).tokens_per_step
            found.append((c, share, Batch(streams, k, k + 1.0, kept, context)))
        return found


def lane_step_time(
    lane: Lane, classes: Sequence[tuple[TrafficClass, float]], values: Values, noise: RoutingNoise,
    acceptance: AcceptanceOf, *, k_by_streams: Sequence[int], limits: Limits,
) -> TableStepTime:  # fmt: skip
    """The step times of a lane under a mix of classes, as a table for up to `limits.max_seqs` streams."""
    source = LaneStepTime(lane, classes, values, noise, acceptance)
    cap = limits.max_batched_tokens
    longest = float(max(limits.max_context_tokens, 1))
    contexts = (*(c for c in _CONTEXTS if c < longest), longest)
    chunks = sorted({1, *(n for n in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384) if n < cap), cap})
    axes = TableAxes(
        max_streams=limits.max_seqs,
        rows_per_stream=tuple(sorted({k + 1 for k in k_by_streams[1:]})),
        context_tokens=contexts,
        prefill_tokens=tuple(chunks),
        prefill_context_tokens=(0.0, longest),
        token_buckets=tuple(lane.engine.token_buckets),
    )
    return TableStepTime(source, axes)


def k_for_streams(schedule: Schedule | int, max_seqs: int) -> list[int]:
    """Draft length at 0 ... max_seqs streams; the last range of a schedule goes on beyond its end."""
    if isinstance(schedule, int):
        return [schedule] * (max_seqs + 1)
    return [schedule.k_for(min(max(n, 1), schedule.max_streams)) for n in range(max_seqs + 1)]


@dataclass(frozen=True)
class LaneProfiles:
    """Acceptance of a mix, ready to be drawn: `sources[class][level]`, and the share of requests on each level."""

    sources: Sequence[Sequence[ProfileDraw]]
    weights: Sequence[Sequence[float]]

    def draws(self, seed: int) -> DrawSource:
        """Fresh draws."""
        return DrawSource(self.sources, seed, weights=self.weights)


@lru_cache(maxsize=256)
def _levels(survival: tuple[float, ...], stream_sd: float) -> StreamMixture:
    return spread_streams(np.asarray(survival, dtype=float), stream_sd)


def lane_profiles(
    classes: Sequence[TrafficClass], acceptance: AcceptanceOf, k_by_streams: Sequence[int]
) -> LaneProfiles:
    """Acceptance of a mix: each request follows one level of its class for life (`stream_sd`).

    A class's tokens per step is a mean over verify steps, and slow streams take more of them for the same answer. The
    share of requests on a level is therefore its share of steps times the tokens it keeps.
    """
    sources: list[list[ProfileDraw]] = []
    weights: list[list[float]] = []
    usual = k_by_streams[-1]
    for c in classes:
        survivals: list[dict[int, Any]] = []
        shares = np.ones(1)
        for k in sorted(set(k_by_streams)):
            found = acceptance(c, k)
            mixture = _levels(tuple(found.survival.tolist()), found.stream_sd if k else 0.0)
            survival = mixture.survival if k else np.zeros((0, len(mixture.weights)))
            if not survivals:
                survivals = [{} for _ in mixture.weights]
            for level, table in enumerate(survivals):
                table[k] = survival[:, level]
            if k == usual or len(shares) == 1:
                shares = mixture.weights * (1.0 + survival.sum(axis=0))
        sources.append([ProfileDraw(table) for table in survivals])
        weights.append(shares.tolist())
    return LaneProfiles(sources, weights)


def lane_limits(lane: Lane, *, max_seqs: int, **changes: Any) -> Limits:
    """The limits the lane's files state; `changes` replace any of them."""
    tier = lane.placement.host_prefix_memory
    stated: dict[str, Any] = {
        "max_batched_tokens": int(lane.engine.max_batched_tokens.value),
        "max_seqs": max_seqs,
        "long_prefill_tokens": largest_chunk(lane) if lane.engine.long_prefill_tokens is not None else 0,
        "kv_capacity_tokens": int(kv_tokens(lane)),
        "page_tokens": 64,
        "prefix_block_tokens": 64,
        "plans_ahead": lane.engine.plans_ahead,
        "prefix_replay_tokens": int(lane.checkpoint.replay_window.value),
        "host_tier_tokens": int(tier.value / lane.checkpoint.kv_bytes_per_token.value) if tier else 0,
    }
    return Limits(**(stated | changes))


def lane_deployment(lane: Lane, values: Values, limits: Limits, **changes: Any) -> Deployment:
    """One replica of the lane; `changes` replace any field of the deployment.

    The calibrated prefill overhead of a lone request (connection, scheduling, first sample) and the tokenisation of
    its prompt pass before the engine.
    """
    stated: dict[str, Any] = {
        "limits": limits,
        "kv_bytes_per_token": lane.checkpoint.kv_bytes_per_token.value,
        "frontend_s": float(np.mean(values["prefill_overhead"])),
        "frontend_s_per_token": float(np.mean(values["tokenise_time"])),
    }
    if (handling := lane.engine.stream_handling_time) is not None:
        stated["frontend_s_per_stream"] = handling.value
    if "host" in lane.links:
        stated["host_bytes_per_s"] = lane.links["host"].bandwidth.value
    return Deployment(**(stated | changes))
