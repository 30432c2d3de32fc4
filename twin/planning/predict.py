"""`twin predict`: step time, tokens per step and tok/s of a lane, each with an interval, and where the time goes.

    tok/s = streams x (tokens kept per step) / (step time)

An interval is for what a run would measure: about `RUN_STEPS` steps after a fresh boot. It holds the posterior of the
coefficients, the
routing draw, the uncertainty of acceptance with its run-to-run part, boot noise, and the scatter of the lane's
receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.acceptance.model import Acceptance, resolve_acceptance
from twin.acceptance.traffic import TrafficClass, load_traffic
from twin.errors import PolicyError
from twin.fitting.calibration import Calibration, load_calibration, prior_calibration
from twin.lane.capacity import kv_tokens
from twin.lane.catalogue import lane_sha256
from twin.lane.lane import Lane
from twin.routing.batch import ExpertDraw, RoutingNoise
from twin.step.batch import Batch
from twin.step.coefficients import Values, coefficients
from twin.step.graph import MECHANISMS
from twin.step.model import draw_step, resolve_step, routing_shape
from twin.step.prefill import ttft_s

Array = npt.NDArray[np.float64]
SAMPLES = 1000
RUN_STEPS = 200
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean and quantiles of what a run would measure."""

    mean: float
    p05: float
    p50: float
    p95: float

    @classmethod
    def of(cls, samples: Array) -> Interval:
        """Mean and 5, 50, 95 % quantiles of the last axis."""
        low, middle, high = quantiles(samples)
        return cls(float(np.mean(samples)), float(low), float(middle), float(high))


def quantiles(samples: Array, levels: Sequence[float] = (0.05, 0.5, 0.95)) -> list[Array]:
    """Quantiles along the last axis, the numbers of `np.quantile` (linear) at a tenth of its cost for small arrays."""
    ordered = np.sort(samples, axis=-1)
    found = []
    for level in levels:
        place = level * (ordered.shape[-1] - 1)
        index = min(int(place), ordered.shape[-1] - 2) if ordered.shape[-1] > 1 else 0
        share = place - index
        low, high = ordered[..., index], ordered[..., min(index + 1, ordered.shape[-1] - 1)]
        # From the nearer end, as NumPy does, so that the last bits agree too.
        found.append(low + (high - low) * share if share < 0.5 else high - (high - low) * (1.0 - share))
    return found


@dataclass(frozen=True)
class Cell:
    """One predicted cell; times in ms because people read it (the keys are the contract of `--json`)."""

    k: int
    concurrency: int
    traffic: str
    verification: str
    context_tokens: int
    tokens_per_step: Interval
    step_ms: Interval
    tok_s_per_stream: Interval
    tok_s_aggregate: Interval
    unique_experts_per_layer: Interval
    cold_experts_per_layer: Interval
    ttft_ms: Interval
    prefill_tok_s: Interval
    breakdown_ms: dict[str, float]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """What `twin predict` answers; `to_dict` is its JSON."""

    lane: str
    lane_sha256: str
    checkpoint: str
    engine: str
    calibration: dict[str, Any]
    seed: int
    cells: tuple[Cell, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract: keys may be added, never renamed."""
        head = {"schema_version": SCHEMA_VERSION, "command": "predict"}
        body = {
            name: getattr(self, name) for name in ("lane", "lane_sha256", "checkpoint", "engine", "calibration", "seed")
        }
        cells = [asdict(cell) | {"warnings": list(cell.warnings)} for cell in self.cells]
        return head | body | {"cells": cells}


@dataclass(frozen=True)
class CellRequest:
    """One cell to predict: `k` drafts, `concurrency` live streams."""

    k: int
    concurrency: int
    verification: str
    context_tokens: int
    cached_tokens: int = 0


class Predictor:
    """A lane, a traffic class and a calibration, ready to answer cells; noise is drawn once (common random numbers)."""

    def __init__(
        self,
        lane: Lane,
        traffic: TrafficClass,
        calibration: Calibration,
        *,
        calibration_sha256: str = "",
        seed: int = 0,
        samples: int = SAMPLES,
    ) -> None:
        self.lane, self.traffic, self.calibration, self.seed = lane, traffic, calibration, seed
        self._sha256 = calibration_sha256
        self._accepted: dict[tuple[int, str], Acceptance] = {}
        base = coefficients(lane)
        self._noise, self._run = _noise(seed, routing_shape(lane).layers, samples)
        known = {p.key for p in calibration.parameters}
        # What the calibration does not know keeps its prior, so that a what-if on a new part stays honestly wide.
        self.prior = prior_calibration(lane.name, {n: c for n, c in base.items() if c.key not in known})
        fitted = np.random.default_rng([seed, 1]).standard_normal((len(calibration.parameters), samples))
        prior = np.random.default_rng([seed, 2]).standard_normal((len(self.prior.parameters), samples))
        self.values = Values(base, calibration.draw_factors(fitted) | self.prior.draw_factors(prior))
        # Boot noise and the receipts' scatter around the model both change the whole run.
        self.run_log_sd = float(np.hypot(lane.engine.boot_noise.value, calibration.residual_log_sd))

    def acceptance(self, k: int, verification: str) -> Acceptance:
        """Acceptance of the class at this k and rule."""
        if (k, verification) not in self._accepted:
            self._accepted[k, verification] = self._acceptance(k, verification)
        return self._accepted[k, verification]

    def _acceptance(self, k: int, verification: str) -> Acceptance:
        draft = self.lane.checkpoint.draft
        if k > 0 and draft is None:
            raise PolicyError(f"k = {k}: checkpoint {self.lane.checkpoint.name!r} has no draft head; expected k = 0.")
        trained = int(draft.trained_block.value) if draft is not None and draft.trained_block is not None else None
        return resolve_acceptance(self.traffic, k, verification, trained_block=trained)

    def batch(self, request: CellRequest) -> Batch:
        """What a verify step of this cell is asked to do."""
        kept = self.acceptance(request.k, request.verification).tokens_per_step
        return Batch(request.concurrency, request.k, request.k + 1.0, kept, request.context_tokens)

    def resolve(self, request: CellRequest) -> tuple[ExpertDraw, dict[str, Array]]:
        """The experts a step of this cell touches and the durations of its ops, before an engine adds them up."""
        return resolve_step(self.lane, self.traffic, self.values, self.batch(request), self._noise)

    @cached_property
    def run_factor(self) -> Array:
        """What a run is slower or faster as a whole: boot noise and the receipts' scatter, `(samples,)`."""
        factor: Array = np.exp(self.run_log_sd * self._run[0])
        return factor

    def kept(self, request: CellRequest) -> Array:
        """Tokens per step averaged over a run, `(samples,)`."""
        accepted = self.acceptance(request.k, request.verification)
        return _centred(accepted, accepted.draw_mean(self._run[1:3], streams=request.concurrency, steps=RUN_STEPS))

    def first_token_s(self, request: CellRequest) -> Array:
        """Seconds to the first token of a lone request, `(samples,)`."""
        cached = request.cached_tokens
        first = ttft_s(self.lane, self.values, request.context_tokens, cached_tokens=cached, traffic=self.traffic)
        return np.broadcast_to(first, self.run_factor.shape) * self.run_factor

    def cell(self, request: CellRequest) -> Cell:
        """Predict one cell."""
        accepted = self.acceptance(request.k, request.verification)
        draw = draw_step(self.lane, self.traffic, self.values, self.batch(request), self._noise)
        step_s = draw.times.step_s * self.run_factor
        kept = self.kept(request)
        per_stream = kept / step_s
        scale = float(np.mean(step_s) / np.mean(draw.times.step_s))
        first = self.first_token_s(request)
        return Cell(
            k=request.k, concurrency=request.concurrency, traffic=self.traffic.name, verification=request.verification,
            context_tokens=request.context_tokens, tokens_per_step=Interval.of(kept), step_ms=Interval.of(step_s * 1e3),
            tok_s_per_stream=Interval.of(per_stream), tok_s_aggregate=Interval.of(per_stream * request.concurrency),
            unique_experts_per_layer=Interval.of(draw.experts.unique.mean(axis=0)),
            cold_experts_per_layer=Interval.of(draw.experts.cold.mean(axis=0)),
            ttft_ms=Interval.of(first * 1e3), prefill_tok_s=Interval.of(request.context_tokens / first),
            breakdown_ms={name: float(np.mean(draw.times.mechanism_s[name])) * 1e3 * scale for name in MECHANISMS},
            warnings=tuple(dict.fromkeys([*accepted.warnings, *self._range_warnings(request)])),
        )  # fmt: skip

    def in_range(self, request: CellRequest) -> bool:
        """Whether the lane's receipts cover k, streams, context and traffic of this cell."""
        covered = self.calibration.range
        if covered is None or self.traffic.name not in covered.traffic:
            return False
        asked = {
            "k": request.k,
            "concurrency": request.concurrency,
            "tokens_in_flight": request.concurrency * (request.k + 1),
            "context_tokens": request.context_tokens,
        }
        return all(getattr(covered, name)[0] <= value <= getattr(covered, name)[1] for name, value in asked.items())

    def _range_warnings(self, request: CellRequest) -> list[str]:
        warnings = []
        most = kv_tokens(self.lane)
        if request.concurrency * request.context_tokens > most:
            warnings.append(
                f"{request.concurrency} streams of {request.context_tokens} tokens need more than the {most:,.0f} tokens of KV memory; "
                "the server would queue or preempt."
            )
        if self.calibration.name == "priors":
            warnings.append(
                "no receipts of this lane: catalogue values only; `twin fit` with three cells of your own narrows it most."
            )
        covered = self.calibration.range
        if covered is None:
            return warnings
        asked = {
            "k": request.k,
            "concurrency": request.concurrency,
            "tokens_in_flight": request.concurrency * (request.k + 1),
            "context_tokens": request.context_tokens,
        }
        for name, value in asked.items():
            low, high = getattr(covered, name)
            if not low <= value <= high:
                warnings.append(f"{name} outside the {low} to {high} of the lane's receipts: an extrapolation.")
        if self.traffic.name not in covered.traffic:
            warnings.append(f"no receipt of this lane was measured on {self.traffic.name!r} traffic.")
        return warnings

    def predict(self, requests: Sequence[CellRequest]) -> Prediction:
        """Predict cells in the order asked."""
        counts = {"receipts": self.calibration.receipts, "fitted_parameters": self.calibration.fitted_parameters}
        return Prediction(
            lane=self.lane.name, lane_sha256=lane_sha256(self.lane), checkpoint=self.lane.checkpoint.name, engine=self.lane.engine.name,
            calibration={"name": self.calibration.name, "sha256": self._sha256} | counts, seed=self.seed,
            cells=tuple(self.cell(request) for request in requests),
        )  # fmt: skip


def _centred(accepted: Acceptance, kept: Array) -> Array:
    """Draws with the class's own mean: skewed draws must not move the centre of what was measured."""
    drafts = float(np.mean(kept)) - 1.0
    if drafts <= 0.0:
        return kept
    return np.clip(1.0 + (kept - 1.0) * ((accepted.tokens_per_step - 1.0) / drafts), 1.0, accepted.k + 1.0)


@lru_cache(maxsize=8)
def _noise(seed: int, layers: int, samples: int) -> tuple[RoutingNoise, Array]:
    return RoutingNoise.draw(seed, layers, samples), np.random.default_rng([seed, 3]).standard_normal((3, samples))


def make_predictor(
    lane: Lane,
    traffic_name: str,
    roots: Sequence[Path],
    *,
    calibration: str | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
) -> Predictor:
    """A predictor from names: the lane's own calibration unless another is named; without any, the priors."""
    base = coefficients(lane)
    name = calibration or lane.calibration or lane.name
    if calibration is None:
        from twin.fitting.calibration import find_calibration

        name = name if find_calibration(name, roots) is not None else "priors"
    found, sha256 = load_calibration(name, lane.name, base, roots)
    return Predictor(
        lane, load_traffic(traffic_name, roots), found, calibration_sha256=sha256, seed=seed, samples=samples
    )
