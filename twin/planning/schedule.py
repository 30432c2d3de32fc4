"""The best k for every number of live streams, what the next best loses, and how sure the choice is.

    tok/s(k, streams) = streams x tokens per step(k) / step time(k, streams)

All k of one number of streams share their draws (coefficients, routing), because they would run on the same boot: only
what differs between them counts. Errors of acceptance at neighbouring k are alike: correlation exp(-|k - k'| / 4),
assumed. A difference below `tolerance` is smaller than what two boots of one lane differ by, so within it the choice is
the k of the fewer streams before it (fewer graphs to capture), at first the k that the class was measured at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.acceptance.model import Acceptance
from twin.acceptance.profile import Array
from twin.acceptance.schedule import Schedule
from twin.errors import PolicyError
from twin.planning.predict import Predictor
from twin.routing.batch import RoutingNoise
from twin.step.batch import Batch
from twin.step.model import draw_step_s, routing_shape

#: Two boots of one lane differ by 1 to 4 %; half of that is no reason to change k.
TOLERANCE = 0.02
_CORRELATION_DRAFTS = 4.0
_SAMPLES = 400


@dataclass(frozen=True)
class Choice:
    """The k for one number of live streams. Losses are relative, against the k with the most tok/s."""

    streams: int
    k: int
    tok_s: float
    tok_s_p05: float
    tok_s_p95: float
    tpot_s: float
    best_k: int
    loss: float  # of the chosen k against best_k, 0 when it is the best
    next_k: int | None  # the best of the others
    next_loss: float  # of next_k against the chosen k; negative when it is the (insignificantly) better one
    confidence: float  # share of draws in which the chosen k has the most tok/s
    confidence_within: float  # share of draws in which it is within the tolerance of the most
    meets_tpot: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Plan:
    """The choices and the schedule they add up to."""

    choices: tuple[Choice, ...]
    schedule: Schedule
    tolerance: float
    warnings: tuple[str, ...]


def plan_schedule(
    predictor: Predictor, *, max_streams: int, ks: Sequence[int], verification: str, context_tokens: int,
    tpot_s: float | None = None, tolerance: float = TOLERANCE,
) -> Plan:  # fmt: skip
    """Choose k for 1 to `max_streams` live streams; raises PolicyError for an impossible request."""
    if not 1 <= max_streams <= 4096:
        raise PolicyError(f"--max-streams {max_streams}: expected 1 to 4096.")
    if not 0.0 <= tolerance < 1.0:
        raise PolicyError(f"--tolerance {tolerance:g}: a share of tok/s from 0 to below 1.")
    candidates = sorted(set(ks))
    if not candidates:
        raise PolicyError("no k to choose from.")
    accepted = [predictor.acceptance(k, verification) for k in candidates]
    measured = {p.k for p in predictor.traffic.profiles}
    sampler = _Sampler(predictor, accepted, context_tokens)
    choices: list[Choice] = []
    for streams in range(1, max_streams + 1):
        rates, tpot = sampler.draw(streams)
        allowed = tpot.mean(axis=1) <= (np.inf if tpot_s is None else tpot_s)
        wanted = measured if not choices else {choices[-1].k}
        choices.append(_choose(streams, candidates, rates, tpot, allowed, wanted, tolerance))
    schedule = Schedule(tuple((c.streams, c.streams, c.k) for c in choices)).merged()
    used = {c.k for c in choices}
    warnings = [w for a in accepted if a.k in used for w in a.warnings]
    if tpot_s is not None and not all(c.meets_tpot for c in choices):
        first = next(c.streams for c in choices if not c.meets_tpot)
        limit = f"{tpot_s * 1e3:g} ms"
        warnings.append(f"at {first} streams no k meets the TPOT limit of {limit}; the k with the least TPOT is shown.")
    return Plan(tuple(choices), schedule, tolerance, tuple(dict.fromkeys(warnings)))


class _Sampler:
    """Paired draws of tok/s and TPOT of every candidate."""

    def __init__(self, predictor: Predictor, accepted: Sequence[Acceptance], context_tokens: int) -> None:
        self._predictor, self._accepted, self._context = predictor, accepted, context_tokens
        sizes = [int(np.size(value)) for value in predictor.values.values()]
        self._samples = max(sizes, default=1) if max(sizes, default=1) > 1 else _SAMPLES
        shape = routing_shape(predictor.lane)
        self._noise = RoutingNoise.draw(predictor.seed, shape.layers, self._samples)
        normals = np.random.default_rng([predictor.seed, 4]).standard_normal((len(accepted), self._samples))
        ks = np.array([a.k for a in accepted], dtype=float)
        covariance = np.exp(-np.abs(ks[:, None] - ks[None, :]) / _CORRELATION_DRAFTS)
        # The mean of a class is asked for, not one run: no scatter of streams or steps in it.
        errors = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(ks))) @ normals
        still = np.zeros(self._samples)
        self._kept = [a.draw_mean(np.vstack([errors[i], still]), streams=1, steps=1) for i, a in enumerate(accepted)]

    def draw(self, streams: int) -> tuple[Array, Array]:
        """tok/s of the lane and seconds per token of a stream, each (candidates, samples)."""
        rows = []
        for a, kept in zip(self._accepted, self._kept, strict=True):
            batch = Batch(streams, a.k, a.k + 1.0, a.tokens_per_step, self._context)
            p = self._predictor
            step_s = draw_step_s(p.lane, p.traffic, p.values, batch, self._noise)
            rows.append(kept / step_s)
        rate = np.array(rows)
        return streams * rate, 1.0 / rate


def _choose(
    streams: int, ks: Sequence[int], rates: Array, tpot: Array, allowed: Array, wanted: set[int], tolerance: float
) -> Choice:
    mean = rates.mean(axis=1)
    score = np.where(allowed, mean, -np.inf) if allowed.any() else -tpot.mean(axis=1)
    best = int(np.argmax(score))
    near = [i for i, k in enumerate(ks) if allowed[i] and mean[i] >= (1 - tolerance) * mean[best] and k in wanted]
    chosen = max(near, key=lambda i: float(mean[i]), default=best)
    others = [i for i in range(len(ks)) if i != chosen and (allowed[i] or not allowed.any())]
    second = max(others, key=lambda i: float(score[i]), default=None)
    open_to = np.flatnonzero(allowed) if allowed.any() else np.arange(len(ks))
    most = rates[open_to].max(axis=0)
    low, high = np.quantile(rates[chosen], [0.05, 0.95])
    return Choice(
        streams=streams, k=ks[chosen], tok_s=float(mean[chosen]), tok_s_p05=float(low), tok_s_p95=float(high),
        tpot_s=float(tpot[chosen].mean()), best_k=ks[best], loss=float(max(0.0, 1 - mean[chosen] / mean[best])),
        next_k=None if second is None else ks[second],
        next_loss=0.0 if second is None else float(1 - mean[second] / mean[chosen]),
        confidence=float((rates[chosen] >= most).mean()),
        confidence_within=float((rates[chosen] >= (1 - tolerance) * most).mean()),
        meets_tpot=bool(allowed[chosen]),
    )  # fmt: skip
