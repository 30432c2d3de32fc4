"""`twin explain`: why the tok/s of two settings differ, taken apart so that the parts multiply to the whole.

    log(tok/s B / tok/s A) = log(streams) + log(tokens per step) + log(steps per second),  each B over A

The step's term is shared among mechanisms by the Shapley value: v(S) = -log(step with the mechanisms S as in B, the
others as in A), and a mechanism gets the mean of what it adds to v over all orders in which mechanisms can be switched
(L. S. Shapley, A value for n-person games, 1953). The value is exact here, over all 2^n sets of the n mechanisms that
differ, so the parts add up to the term, order does not matter, and (B, A) gives the same parts with the other sign.

What is switched. Two settings with the same step graph (one lane under two policies or what-ifs): the *durations* of
the mechanism's ops, and every mixed step runs through the engine, so a read that hid behind the sidecar's hop counts
only by what it uncovers. Two lanes with different graphs have no mixed graph; there it is the mechanism's *time on the
primary device*, busy or waited for, which adds up to the step in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.planning.draws import Sampled, sample
from twin.planning.scenario import Resolved
from twin.step.fast import step_times
from twin.step.graph import MECHANISMS

Array = npt.NDArray[np.float64]
#: Samples a call of the engine takes at once when it runs mixed steps.
_CHUNK = 4096


@dataclass(frozen=True)
class Factor:
    """A factor of the ratio B over A: the exponential of the mean logarithm, and of its 5 and 95 % quantiles."""

    log: float
    factor: float
    p05: float
    p95: float

    @classmethod
    def of(cls, logs: Array) -> Factor:
        """From draws of the logarithm, `(samples,)`."""
        mean = float(np.mean(logs))
        low, high = np.quantile(logs, [0.05, 0.95])
        return cls(mean, float(np.exp(mean)), float(np.exp(low)), float(np.exp(high)))


@dataclass(frozen=True)
class Part:
    """One mechanism: its mean time in A and B (ms on the primary device), its share of the difference, its factor.

    `difference_ms` is the Shapley value of the step time itself; by device time it is plainly b_ms - a_ms, by durations
    it also holds what the mechanism hides or uncovers of others.
    """

    mechanism: str
    a_ms: float
    b_ms: float
    difference_ms: float
    difference_ms_p05: float
    difference_ms_p95: float
    factor: Factor


@dataclass(frozen=True)
class Side:
    """One setting of the comparison, means over the draws."""

    title: str
    lane: str
    k: int
    verification: str
    traffic: str
    concurrency: int
    context_tokens: int
    tokens_per_step: float
    step_ms: float
    tok_s_per_stream: float
    tok_s_aggregate: float


@dataclass(frozen=True)
class Explanation:
    """The ratio of tok/s of all streams, B over A: `tok_s` = `streams` x `tokens_per_step` x `steps_per_s`.

    `parts` multiply to `steps_per_s`, largest first. `run_noise` is the relative standard deviation that two runs add
    to a measured ratio (boots and the scatter of receipts), which no part contains.
    """

    a: Side
    b: Side
    basis: str
    tok_s: Factor
    streams: Factor
    tokens_per_step: Factor
    steps_per_s: Factor
    parts: tuple[Part, ...]
    run_noise: float
    seed: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract: keys may be added, never renamed."""
        return {"schema_version": 1, "command": "explain"} | asdict(self) | {"warnings": list(self.warnings)}


def shapley(values: Sequence[Array], players: int) -> Array:
    """Shapley values `(players, samples)`; `values[mask]` is v, `(samples,)`, of the players whose bits are set.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! (v(S + i) - v(S)); they add up to v(all) - v(none).
    """
    if len(values) != 1 << players:
        raise ValueError(f"a game of {players} players has {1 << players} values, got {len(values)}")
    phi: Array = _weights(players) @ np.stack(values)
    return phi


@lru_cache(maxsize=16)
def _weights(players: int) -> Array:
    """What v of every set counts for every player, `(players, 2^players)`: as S + i where i is in it, else as S."""
    size = np.array([mask.bit_count() for mask in range(1 << players)])
    inside = np.array([[mask >> i & 1 for mask in range(1 << players)] for i in range(players)], dtype=bool)
    orders = [factorial(s) * factorial(players - s - 1) / factorial(players) for s in range(players)]
    weight = np.array([*orders, 0.0])
    found: Array = np.where(inside, weight[size - 1], -weight[size]).reshape(players, 1 << players)
    return found


def explain(a: Resolved, b: Resolved, *, seed: int = 0, samples: int = 1000) -> Explanation:
    """Take the ratio of tok/s of `b` over `a` apart. Raises what the policy of either side raises."""
    one, other = sample(a, seed, samples), sample(b, seed, samples)
    same = one.graph is other.graph
    players, mixed = (_switch_durations if same else _switch_times)(one, other)
    logs = dict(zip(players, shapley([-np.log(step) for step in mixed], len(players)), strict=True))
    seconds = dict(zip(players, shapley(mixed, len(players)), strict=True))
    none = np.zeros(samples)
    parts = [_part(name, one, other, logs.get(name, none), seconds.get(name, none)) for name in MECHANISMS]
    kept = np.log(other.kept / one.kept)
    steps = np.log(one.times.step_s / other.times.step_s)
    streams = np.full(samples, np.log(other.streams / one.streams))
    warnings = [*a.cell.warnings, *b.cell.warnings]
    return Explanation(
        a=_side(a, one),
        b=_side(b, other),
        basis="durations" if same else "device time",
        tok_s=Factor.of(streams + kept + steps),
        streams=Factor.of(streams),
        tokens_per_step=Factor.of(kept),
        steps_per_s=Factor.of(steps),
        parts=tuple(sorted((p for p in parts if p.a_ms or p.b_ms), key=lambda p: -abs(p.factor.log))),
        run_noise=float(np.hypot(_run_noise(a), _run_noise(b))),
        seed=seed,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _run_noise(side: Resolved) -> float:
    return float(np.hypot(side.lane.engine.boot_noise.value, side.predictor.calibration.residual_log_sd))


def _switch_times(a: Sampled, b: Sampled) -> tuple[list[str], list[Array]]:
    """Mechanisms that differ, and the mixed step in seconds for every set of them, by time on the primary device."""
    one, other = a.times.mechanism_s, b.times.mechanism_s
    players = [name for name in MECHANISMS if np.any(one[name] != other[name])]
    steps = [np.sum([one[name] for name in MECHANISMS], axis=0)]
    for mask in range(1, 1 << len(players)):
        name = players[mask.bit_length() - 1]
        steps.append(steps[mask ^ (1 << mask.bit_length() - 1)] + (other[name] - one[name]))
    return players, steps


def _switch_durations(a: Sampled, b: Sampled) -> tuple[list[str], list[Array]]:
    """Mechanisms whose ops differ, and the mixed step for every set of them, by running the shared graph."""
    costs: dict[str, set[str]] = {}
    for op in a.graph.ops:
        if not np.array_equal(a.durations[op.cost], b.durations[op.cost]):
            costs.setdefault(op.mechanism, set()).add(op.cost)
    players = [name for name in MECHANISMS if name in costs]
    samples, masks = len(a.kept), list(range(1 << len(players)))
    a_chunk = max(1, _CHUNK // samples)
    steps: list[Array] = []
    for start in range(0, len(masks), a_chunk):
        some = masks[start : start + a_chunk]
        mixed = {}
        for cost in {op.cost for op in a.graph.ops}:
            bits = [i for i, name in enumerate(players) if cost in costs[name]]
            sides = [b if any(mask >> i & 1 for i in bits) else a for mask in some]
            mixed[cost] = np.concatenate([side.durations[cost] for side in sides], axis=-1)
        steps += np.split(step_times(a.graph, mixed), len(some))
    return players, steps


def _part(name: str, a: Sampled, b: Sampled, log: Array, seconds: Array) -> Part:
    share = seconds * 1e3
    low, high = np.quantile(share, [0.05, 0.95])
    one, other = float(a.times.mechanism_s[name].mean() * 1e3), float(b.times.mechanism_s[name].mean() * 1e3)
    return Part(name, one, other, float(share.mean()), float(low), float(high), Factor.of(log))


def _side(resolved: Resolved, sampled: Sampled) -> Side:
    request = resolved.request
    step, per_stream = sampled.times.step_s, sampled.kept / sampled.times.step_s
    return Side(
        title=resolved.setting.title,
        lane=resolved.lane.name,
        k=request.k,
        verification=request.verification,
        traffic=resolved.predictor.traffic.name,
        concurrency=request.concurrency,
        context_tokens=request.context_tokens,
        tokens_per_step=float(sampled.kept.mean()),
        step_ms=float(step.mean() * 1e3),
        tok_s_per_stream=float(per_stream.mean()),
        tok_s_aggregate=float(per_stream.mean() * request.concurrency),
    )
