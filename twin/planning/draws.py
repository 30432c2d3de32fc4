"""Common random numbers for questions about differences: every unknown has its own draw, whoever asks for it.

A coefficient's normals depend on its key alone, so two lanes that share a part share its error and two that do not are
independent; a traffic class's depend on its name and k, with correlation exp(-|k - k'| / 4) between draft lengths
(assumed, as schedules do). So what two settings have in common cancels in their ratio, and swapping the two changes
nothing but the sign. Noise from boot to boot is left out: it belongs to a run, not to a reason.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from twin.acceptance.model import Acceptance
from twin.acceptance.traffic import TrafficClass
from twin.fitting.calibration import Calibration, prior_calibration
from twin.lane.lane import Lane
from twin.planning.predict import CellRequest
from twin.planning.scenario import Resolved
from twin.routing.batch import ExpertDraw, RoutingNoise
from twin.step.batch import Batch
from twin.step.builders import build_step_graph
from twin.step.coefficients import Values, coefficients
from twin.step.fast import StepTimes, step_breakdown
from twin.step.graph import StepGraph
from twin.step.model import resolve_step, routing_shape

Array = npt.NDArray[np.float64]
CORRELATION_DRAFTS = 4.0


@dataclass(frozen=True)
class Sampled:
    """One setting, `samples` times: the step's graph with its durations, and the tokens a stream keeps of a step."""

    k: int
    streams: int
    graph: StepGraph
    durations: dict[str, Array]
    kept: Array
    experts: ExpertDraw

    @cached_property
    def times(self) -> StepTimes:
        """Step time and its mechanisms in seconds, `(samples,)` each."""
        return step_breakdown(self.graph, self.durations)

    @property
    def tok_s(self) -> Array:
        """Tokens per second of all streams, `(samples,)`."""
        return self.streams * self.kept / self.times.step_s


class Draws:
    """`samples` draws of everything unknown, by seed."""

    def __init__(self, seed: int = 0, samples: int = 1000) -> None:
        self.seed, self.samples = seed, samples
        self._noise: dict[int, RoutingNoise] = {}

    def normals(self, what: str) -> Array:
        """Standard normals `(samples,)` that belong to one name."""
        return np.random.default_rng([self.seed, zlib.crc32(what.encode())]).standard_normal(self.samples)

    def noise(self, layers: int) -> RoutingNoise:
        """Routing noise of shape (layers, samples)."""
        if layers not in self._noise:
            self._noise[layers] = RoutingNoise.draw(self.seed, layers, self.samples)
        return self._noise[layers]

    def factors(self, lane: Lane, calibration: Calibration) -> dict[str, Array]:
        """Posterior draws of the factor on every coefficient of `lane`; what was not calibrated keeps its prior."""
        known = {p.key for p in calibration.parameters}
        unknown = prior_calibration(lane.name, {n: c for n, c in coefficients(lane).items() if c.key not in known})
        found: dict[str, Array] = {}
        for part in (calibration, unknown):
            rows = [self.normals(p.key) for p in part.parameters]
            found |= part.draw_factors(np.array(rows).reshape(len(rows), self.samples))
        return found

    def centre(self, calibration: Calibration) -> dict[str, Array]:
        """The factors at the posterior's centre: one typical boot, for a timeline rather than an interval."""
        return {key: np.full(self.samples, factor) for key, factor in calibration.mean_factors().items()}

    def kept(self, accepted: Acceptance, traffic: str) -> Array:
        """Tokens per step `(samples,)` with the class's own mean; only what is unknown of the class moves it."""
        if accepted.k == 0:
            return np.ones(self.samples)
        along = math.exp(-1.0 / CORRELATION_DRAFTS)
        z = self.normals(f"{traffic} k=0")
        for k in range(1, accepted.k + 1):
            z = along * z + math.sqrt(1.0 - along**2) * self.normals(f"{traffic} k={k}")
        drawn = accepted.draw_mean(np.stack([z, np.zeros(self.samples)]), streams=1, steps=1)
        return drawn * (accepted.tokens_per_step / float(np.mean(drawn)))

    def sample(self, resolved: Resolved) -> Sampled:
        """Everything about one setting that differs from draw to draw."""
        predictor, request = resolved.predictor, resolved.request
        factors = self.factors(resolved.lane, predictor.calibration)
        accepted = predictor.acceptance(request.k, request.verification)
        return self.step(resolved.lane, predictor.traffic, factors, accepted, request)

    def step(
        self, lane: Lane, traffic: TrafficClass, factors: dict[str, Array], accepted: Acceptance, request: CellRequest
    ) -> Sampled:
        """One step of `lane`, which may be a what-if on the lane that `factors` were drawn for."""
        values = Values(coefficients(lane), factors)
        batch = Batch(request.concurrency, request.k, request.k + 1.0, accepted.tokens_per_step, request.context_tokens)
        experts, durations = resolve_step(lane, traffic, values, batch, self.noise(routing_shape(lane).layers))
        graph = build_step_graph(lane, request.k)
        return Sampled(request.k, request.concurrency, graph, durations, self.kept(accepted, traffic.name), experts)


@lru_cache(maxsize=32)
def sample(resolved: Resolved, seed: int, samples: int) -> Sampled:
    """`Draws(seed, samples).sample(resolved)`, kept for the questions that follow about the same setting."""
    return Draws(seed, samples).sample(resolved)
