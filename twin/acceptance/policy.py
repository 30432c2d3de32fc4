"""Decode policies: what a step drafts, verifies and keeps, stream by stream.

A policy is asked with the live streams and a source of survival by block length, and answers with a `Decision`. Draft
and verification are two lengths: an adaptive policy drafts k and verifies only the prefix worth its cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from twin.acceptance.profile import Array
from twin.acceptance.schedule import MAX_STREAMS, Schedule, fixed, parse_schedule
from twin.acceptance.traffic import MAX_K
from twin.errors import PolicyError

__all__ = [
    "MAX_STREAMS", "Adaptive", "ByStreams", "ConfidenceCap", "Decision", "PerRequest", "Policy", "Schedule", "StepCost",
    "fixed", "parse_schedule",
]  # fmt: skip

#: Survival of a block of k: (k,) for all streams alike, or (k, streams).
SurvivalOf = Callable[[int], Array]


@dataclass(frozen=True)
class Decision:
    """One step: drafted tokens, verified rows (bonus row included), expected tokens kept; each (streams,)."""

    drafted: Array
    rows: Array
    kept: Array

    @property
    def total_rows(self) -> float:
        """Rows that the verification forward has to run."""
        return float(self.rows.sum())


class Policy(Protocol):
    """Anything that decides a step."""

    def decide(self, streams: int, survival_of: SurvivalOf) -> Decision:
        """Decide one step of `streams` live streams."""
        ...


def _columns(survival: Array, streams: int) -> Array:
    wide = survival if survival.ndim == 2 else np.repeat(survival[:, None], streams, axis=1)
    if wide.shape[1] != streams:
        raise PolicyError(f"survival of {wide.shape[1]} streams was given for {streams} live streams.")
    return wide


def _full(k: int, survival: Array) -> tuple[Array, Array, Array]:
    streams = survival.shape[1]
    return np.full(streams, float(k)), np.full(streams, k + 1.0), 1.0 + survival.sum(axis=0)


@dataclass(frozen=True)
class ByStreams:
    """k from a schedule by live streams; `ByStreams(fixed(5))` is a fixed k. All of the block is verified."""

    schedule: Schedule

    def decide(self, streams: int, survival_of: SurvivalOf) -> Decision:
        """Draft and verify the schedule's k for every stream."""
        k = self.schedule.k_for(streams)
        return Decision(*_full(k, _columns(survival_of(k), streams)))


@dataclass(frozen=True)
class PerRequest:
    """Every live stream has its own k, in the order of the streams."""

    ks: tuple[int, ...]

    def __post_init__(self) -> None:
        for k in self.ks:
            if not 0 <= k <= MAX_K:
                raise PolicyError(f"per-request k = {k}: a draft block has 0 to {MAX_K} tokens.")

    def decide(self, streams: int, survival_of: SurvivalOf) -> Decision:
        """Draft and verify each stream's own k."""
        if streams != len(self.ks):
            raise PolicyError(f"{len(self.ks)} per-request k were given for {streams} live streams; give one a stream.")
        kept = np.ones(streams)
        for k in set(self.ks):
            mine = np.array(self.ks) == k
            kept[mine] += _columns(survival_of(k), streams).sum(axis=0)[mine]
        ks = np.array(self.ks, dtype=float)
        return Decision(ks, ks + 1.0, kept)


@dataclass(frozen=True)
class StepCost:
    """Seconds of a verification forward by total rows: a table, straight between its points and beyond the last."""

    rows: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.seconds) or not self.rows:
            raise PolicyError("a step-cost table has as many rows as seconds, at least one.")
        if any(b <= a for a, b in pairwise(self.rows)) or self.rows[0] < 1:
            raise PolicyError("a step-cost table lists rows in rising order, from 1 on.")
        if any(not s > 0 for s in self.seconds) or any(b < a for a, b in pairwise(self.seconds)):
            raise PolicyError("a step-cost table holds positive seconds that do not fall with rows.")

    def seconds_at(self, rows: Array) -> Array:
        """Interpolated seconds; beyond the table the last slope goes on."""
        x, y = np.array(self.rows), np.array(self.seconds)
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0
        at = np.asarray(rows, dtype=float)
        seconds: Array = np.interp(at, x, y) + slope * np.maximum(0.0, at - x[-1])
        return seconds


@dataclass(frozen=True)
class Adaptive:
    """Draft k, verify the prefixes that give the most tokens per second by a step-cost table.

    The chance that draft p of a stream is kept is its survival, which falls with p. So the best R rows to add to the
    bonus rows are the R largest survivals over all streams, and they are prefixes by themselves; R maximises
        (streams + sum of the R largest) / (draft_s + cost(streams + R))
    exactly. The draft pass still costs a full k.
    """

    k: int
    cost: StepCost
    draft_s: float = 0.0

    def decide(self, streams: int, survival_of: SurvivalOf) -> Decision:
        """Draft k, verify the prefix of each stream that is worth its cost."""
        survival = _columns(survival_of(self.k), streams)
        order = np.argsort(-survival, axis=None, kind="stable")
        gained = streams + np.concatenate([[0.0], np.cumsum(survival.ravel()[order])])
        rate = gained / (self.draft_s + self.cost.seconds_at(streams + np.arange(float(len(gained)))))
        chosen = np.zeros(survival.size, dtype=bool)
        chosen[order[: int(np.argmax(rate))]] = True
        verified = chosen.reshape(survival.shape)
        return Decision(
            np.full(streams, float(self.k)), 1.0 + verified.sum(axis=0), 1.0 + (survival * verified).sum(axis=0)
        )


@dataclass(frozen=True)
class ConfidenceCap:
    """Draft k, verify a stream's prefix while its survival is at least `threshold` (a chance)."""

    k: int
    threshold: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise PolicyError(f"confidence threshold {self.threshold:g}; a chance lies between 0 and 1.")

    def decide(self, streams: int, survival_of: SurvivalOf) -> Decision:
        """Draft k, verify what is likely enough."""
        survival = _columns(survival_of(self.k), streams)
        verified = survival >= self.threshold
        return Decision(
            np.full(streams, float(self.k)), 1.0 + verified.sum(axis=0), 1.0 + (survival * verified).sum(axis=0)
        )


def per_request(ks: Sequence[int]) -> PerRequest:
    """A policy from one k a request."""
    return PerRequest(tuple(ks))
