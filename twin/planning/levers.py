"""`twin levers`: what each change of a lane would gain, for a realistic step and for the part made free, ranked.

Every change is run through the step graph with the same draws, so an interval is that of the gain and not of two runs.
Two levers are *substitutes* when together they save less of the step than apart (both hide behind the same wait),
*complements* when more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.acceptance.model import Acceptance
from twin.acceptance.profile import survival_from_conditional
from twin.acceptance.traffic import TrafficClass
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.planning.draws import Draws, Sampled
from twin.planning.explain import Factor
from twin.planning.lever_list import Change, Lever, levers_of
from twin.planning.roofline import Roofline, roofline
from twin.planning.scenario import Resolved

Array = npt.NDArray[np.float64]
MOST_K = 16
#: A pair is flagged when together it saves this much more or less, in parts of the smaller of its two savings.
PAIR_SHARE = 0.15
_LEAST_SAVING = 0.003
_PAIRED = 10


@dataclass(frozen=True)
class Gain:
    """What one change gains: the factor on tok/s, tok/s of all streams, ms of the step (negative: slower)."""

    text: str
    settings: tuple[str, ...]
    factor: Factor
    more_tok_s: float
    saved_ms: float


@dataclass(frozen=True)
class Result:
    """One lever with its realistic step and its limit; None where there is no such step."""

    name: str
    step: Gain | None
    limit: Gain | None
    cost: str


@dataclass(frozen=True)
class Pair:
    """Two levers that interact: ms saved together and the sum of what each saves alone, `at` the step or the limit."""

    first: str
    second: str
    kind: str
    at: str
    together_ms: float
    apart_ms: float


@dataclass(frozen=True)
class Levers:
    """The answer of `twin levers`, best realistic step first."""

    title: str
    tok_s_aggregate: float
    step_ms: float
    levers: tuple[Result, ...]
    pairs: tuple[Pair, ...]
    roofline: Roofline
    seed: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract: keys may be added, never renamed."""
        return {"schema_version": 1, "command": "levers"} | asdict(self) | {"warnings": list(self.warnings)}


class Bench:
    """Runs changes of one setting on common draws."""

    def __init__(self, resolved: Resolved, seed: int, samples: int) -> None:
        self.resolved, self.draws = resolved, Draws(seed, samples)
        self.factors = self.draws.factors(resolved.lane, resolved.predictor.calibration)
        self.now = self.run(Change("as it is"))

    def run(self, change: Change) -> Sampled:
        """One setting after a change. Raises TwinError when the change cannot be."""
        lane, request = override(self.resolved.lane, change.settings), self.resolved.request
        if change.best_k:
            others = (self._run(change, lane, k) for k in self._ks())
            return max(others, key=lambda s: float(np.mean(np.log(s.tok_s))))
        return self._run(change, lane, request.k)

    def _run(self, change: Change, lane: Lane, k: int) -> Sampled:
        request = self.resolved.request
        rule = change.verification or request.verification
        accepted = _fewer_rejections(self.resolved.predictor.acceptance(k, rule), change.rejections)
        traffic = _colder(self.resolved.predictor.traffic, change.cold_share)
        sampled = self.draws.step(lane, traffic, self.factors, accepted, replace(request, k=k, verification=rule))
        for cost in change.free:
            if cost in sampled.durations:
                sampled.durations[cost] = np.zeros_like(sampled.durations[cost])
        return sampled

    def _ks(self) -> Iterable[int]:
        draft = self.resolved.lane.checkpoint.draft
        return range(MOST_K + 1) if draft is not None else (0,)

    def gain(self, change: Change) -> Gain:
        """What a change gains over the setting as it is."""
        then = self.run(change)
        text = f"{change.text}: {then.k}" if change.best_k else change.text
        more = float(np.mean(then.tok_s - self.now.tok_s))
        return Gain(text, change.settings, Factor.of(np.log(then.tok_s / self.now.tok_s)), more, self.saved_ms(then))

    def result(self, lever: Lever) -> Result:
        """Both steps of one lever."""
        step, limit = (self.gain(change) if change is not None else None for change in (lever.step, lever.limit))
        return Result(lever.name, step, limit, lever.cost)

    def saved_ms(self, then: Sampled) -> float:
        """Mean ms of the step saved."""
        return float(np.mean(self.now.times.step_s - then.times.step_s)) * 1e3


def levers(resolved: Resolved, *, seed: int = 0, samples: int = 500) -> Levers:
    """Every lever of one setting, ranked by its realistic step, then by its limit."""
    bench = Bench(resolved, seed, samples)
    request = resolved.request
    found = levers_of(resolved.lane, resolved.predictor.traffic.name, request.k, request.verification)
    results = [bench.result(lever) for lever in found]
    order = sorted(range(len(found)), key=lambda i: (_log(results[i].step), _log(results[i].limit)), reverse=True)
    ranked = [found[i] for i in order]
    pairs = [*_pairs(bench, ranked, "step"), *_pairs(bench, ranked, "limit")]
    return Levers(
        title=resolved.setting.title,
        tok_s_aggregate=float(np.mean(bench.now.tok_s)),
        step_ms=float(np.mean(bench.now.times.step_s)) * 1e3,
        levers=tuple(results[i] for i in order),
        pairs=tuple(pairs),
        roofline=roofline(resolved, seed=seed, samples=samples),
        seed=seed,
        warnings=resolved.cell.warnings,
    )


def _log(gain: Gain | None) -> float:
    return gain.factor.log if gain is not None else -1e-9


def _pairs(bench: Bench, ranked: list[Lever], at: str) -> list[Pair]:
    """Pairs among the best levers that save step time and interact, strongest first."""
    least = _LEAST_SAVING * float(np.mean(bench.now.times.step_s)) * 1e3
    alone = []
    for lever in ranked:
        change = lever.step if at == "step" else lever.limit
        if change is not None and (change.settings or change.free or change.cold_share != 1.0):
            saved = bench.saved_ms(bench.run(change))
            if saved > least:
                alone.append((lever.name, change, saved))
    alone.sort(key=lambda item: -item[2])
    found = []
    for (one, first, a), (other, second, b) in combinations(alone[:_PAIRED], 2):
        both = first.join(second)
        if both is None:
            continue
        together = bench.saved_ms(bench.run(both))
        if abs(together - a - b) > PAIR_SHARE * min(a, b):
            found.append(Pair(one, other, "complements" if together > a + b else "substitutes", at, together, a + b))
    return sorted(found, key=lambda pair: -abs(pair.together_ms - pair.apart_ms))


def _fewer_rejections(accepted: Acceptance, factor: float) -> Acceptance:
    if factor == 1.0 or accepted.k == 0:
        return accepted
    survival = survival_from_conditional(1.0 - factor * (1.0 - accepted.conditional))
    return replace(accepted, survival=survival, tokens_per_step=1.0 + float(survival.sum()))


def _colder(traffic: TrafficClass, factor: float) -> TrafficClass:
    """The class with its cold share scaled; never quite 0, where a share has no logarithm."""
    if factor == 1.0:
        return traffic
    shares = {
        name: share.model_copy(update={"value": max(share.value * factor, 1e-9)})
        for name, share in traffic.routing.cold_share.items()
    }
    return traffic.model_copy(update={"routing": traffic.routing.model_copy(update={"cold_share": shares})})
