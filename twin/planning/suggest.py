"""`twin suggest`: which measurement would narrow an answer most, from the Jacobian and the posterior.

A question is the log ratio of tok/s of two settings. Its variance is g'Cg + the acceptance of both sides; a
measurement with gradient h and
noise s takes (g'Ch)^2 / (h'Ch + s^2) of it (linear-Gaussian design: Chaloner and Verdinelli 1995). The next
measurement is judged given
those already chosen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from twin.errors import PolicyError
from twin.fitting.calibration import Calibration
from twin.fitting.cells import FitNoise, predict_cell, resolve_cell
from twin.fitting.receipts import Receipt
from twin.planning.predict import CellRequest, Predictor
from twin.step.coefficients import coefficients

Array = npt.NDArray[np.float64]
_STEP = 1e-3
CELL_LOG_SD = 0.02
MICRO_LOG_SD = 0.03
#: Relative uncertainty of tokens per step after a run of some thousand draft blocks by several prompts.
COUNTED_ACCEPTANCE_SD = 0.015


@dataclass(frozen=True)
class Suggestion:
    """One measurement, the command that makes it, and what remains of the answer's 90 % half-width (relative)
    afterwards.
    """

    measurement: str
    how: str
    half_width_before: float
    half_width_after: float


@dataclass(frozen=True)
class Answer:
    """Today's answer to the question: ratio of tok/s, its 90 % interval, and the measurements that would narrow it."""

    question: str
    ratio: float
    p05: float
    p95: float
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True)
class _Candidate:
    measurement: str
    how: str
    gradient: Array
    log_sd: float
    acceptance_of: tuple[int, str] | None = None


def parse_question(text: str, usual: CellRequest) -> tuple[CellRequest, CellRequest]:
    """ "k=7 vs k=5", "k=5,c=8 vs k=3,c=8", keys k, c, context, verification; what a side does not say is as usual."""
    sides = re.split(r"\s+(?:vs\.?|against|or)\s+", text.strip())
    if len(sides) != 2:
        raise PolicyError(
            f'--question {text!r}: expected two settings, for example "k=7 vs k=5" or "k=5,c=8 vs k=3,c=8".'
        )
    return _side(sides[0], usual, text), _side(sides[1], usual, text)


def _side(side: str, usual: CellRequest, text: str) -> CellRequest:
    request = usual
    for part in side.split(","):
        match = re.fullmatch(r"\s*(k|c|context|verification)\s*=\s*([a-z0-9]+)\s*", part)
        if match is None:
            raise PolicyError(f"--question {text!r}: {part.strip()!r} is not k=, c=, context= or verification=.")
        name, value = match.groups()
        if name == "verification":
            if value not in ("token", "block", "greedy"):
                raise PolicyError(f"--question {text!r}: verification is token, block or greedy, got {value!r}.")
            request = replace(request, verification=value)
            continue
        if (
            not value.isdigit()
            or int(value) > {"k": 64, "c": 65536, "context": 16_000_000}[name]
            or (name != "k" and int(value) < 1)
        ):
            raise PolicyError(f"--question {text!r}: {name} = {value!r} is out of range.")
        if name == "k":
            request = replace(request, k=int(value))
        elif name == "c":
            request = replace(request, concurrency=int(value))
        else:
            request = replace(request, context_tokens=int(value))
    return request


def suggest(
    predictor: Predictor, calibration: Calibration, question: str, one: CellRequest, other: CellRequest, most: int = 3
) -> Answer:
    """Today's answer and up to `most` measurements, best first."""
    model = _Linear(predictor, calibration)
    log_one, g_one = model.step(one)
    log_other, g_other = model.step(other)
    sides = {(r.k, r.verification): predictor.acceptance(r.k, r.verification) for r in (one, other)}
    kept = [sides[r.k, r.verification].tokens_per_step for r in (one, other)]
    log_ratio = float(np.log(kept[0] * one.concurrency) - log_one - np.log(kept[1] * other.concurrency) + log_other)
    gradient = g_other - g_one
    same = (one.k, one.verification) == (other.k, other.verification)
    acceptance = {} if same else {key: side.relative_sd**2 for key, side in sides.items()}
    candidates = _candidates(predictor, model, one, other, same)
    covariance = model.covariance
    before = _half_width(gradient, covariance, acceptance)
    chosen: list[Suggestion] = []
    width = before
    for _ in range(most):
        best = min(candidates, key=lambda c: _half_width(gradient, *_after(c, covariance, acceptance)), default=None)
        if best is None:
            break
        covariance, acceptance = _after(best, covariance, acceptance)
        after = _half_width(gradient, covariance, acceptance)
        if after >= 0.99 * width:
            break
        chosen.append(Suggestion(best.measurement, best.how, width, after))
        candidates.remove(best)
        width = after
    return Answer(
        question,
        float(np.exp(log_ratio)),
        float(np.exp(log_ratio - before)),
        float(np.exp(log_ratio + before)),
        tuple(chosen),
    )


class _Linear:
    """Log step times and their gradients in the calibration's log factors."""

    def __init__(self, predictor: Predictor, calibration: Calibration) -> None:
        self.lane, self.traffic = predictor.lane, predictor.traffic
        self.keys = [p.key for p in calibration.parameters]
        self.names = {p.key: p for p in calibration.parameters}
        self.centre = np.array([p.log_factor for p in calibration.parameters])
        self.covariance = np.array(calibration.covariance, dtype=float).reshape(len(self.keys), len(self.keys))
        self._bases = {self.lane.name: coefficients(self.lane)}
        self._noise = FitNoise()

    def step(self, request: CellRequest) -> tuple[float, Array]:
        receipt = Receipt(
            id="asked", source="", lane=self.lane.name, traffic=self.traffic.name, k=request.k, verification=request.verification,  # type: ignore[arg-type]
            context_tokens=request.context_tokens, concurrency=request.concurrency, quantity="step_time", value=1.0, unit="ms",
        )  # fmt: skip
        vectors = np.tile(self.centre, (len(self.keys) + 1, 1))
        vectors[np.arange(1, len(vectors)), np.arange(len(self.keys))] += _STEP
        factors = {key: np.exp(vectors[:, i]) for i, key in enumerate(self.keys)}
        predicted = np.log(
            predict_cell(
                resolve_cell(receipt, self.lane, self.traffic), self._bases, factors, len(vectors), self._noise
            )
        )
        return float(predicted[0] - np.log(1e3)), (predicted[1:] - predicted[0]) / _STEP


def _candidates(
    predictor: Predictor, model: _Linear, one: CellRequest, other: CellRequest, same: bool
) -> list[_Candidate]:
    found = []
    streams = sorted({1, 4, 16, one.concurrency, other.concurrency})
    for k in sorted({0, one.k, other.k}):
        for c in streams:
            request = replace(
                one, k=k, concurrency=c, verification=one.verification if k == one.k else other.verification
            )
            how = (
                f"serve with num_speculative_tokens={k}, then `vllm bench serve --max-concurrency {c} --save-result ...`, "
                f"`twin import RESULT.json --lane {model.lane.name} -o receipts.csv`, `twin fit receipts.csv --lane {model.lane.name} -o mine.json`"
            )
            counted = (
                (k, request.verification)
                if k > 0 and not same and (k, request.verification) in {(r.k, r.verification) for r in (one, other)}
                else None
            )
            found.append(
                _Candidate(
                    f"a cell at k = {k}, {c} stream{'s' if c > 1 else ''} (step time and acceptance counters)",
                    how,
                    model.step(request)[1],
                    CELL_LOG_SD,
                    counted,
                )
            )
    for index, key in enumerate(model.keys):
        p = model.names[key]
        if p.log_sd > 0 and not key.startswith(("acceptance.", "sharing.")) and not key.endswith("rejected_weight"):
            gradient = np.zeros(len(model.keys))
            gradient[index] = 1.0
            found.append(
                _Candidate(
                    f"{key} by a micro-benchmark or a trace",
                    f"profile one step and read {key.rsplit('.', 1)[-1]}; `twin import TRACE` reports kernels by class",
                    gradient,
                    MICRO_LOG_SD,
                )
            )
    return found


def _after(
    candidate: _Candidate, covariance: Array, acceptance: dict[tuple[int, str], float]
) -> tuple[Array, dict[tuple[int, str], float]]:
    moved = covariance @ candidate.gradient
    covariance = covariance - np.outer(moved, moved) / (float(candidate.gradient @ moved) + candidate.log_sd**2)
    if candidate.acceptance_of is not None:
        variance = acceptance.get(candidate.acceptance_of, 0.0)
        counted = 1.0 / (1.0 / max(variance, 1e-12) + 1.0 / COUNTED_ACCEPTANCE_SD**2)
        acceptance = acceptance | {candidate.acceptance_of: counted}
    return covariance, acceptance


def _half_width(gradient: Array, covariance: Array, acceptance: dict[tuple[int, str], float]) -> float:
    return float(1.645 * np.sqrt(max(float(gradient @ covariance @ gradient), 0.0) + sum(acceptance.values())))
