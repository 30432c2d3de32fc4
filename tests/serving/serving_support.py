"""Shared by the serving tests: a step time with the shape of a real one, and short ways to run a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np

from twin.serving.config import Deployment, Limits
from twin.serving.draws import DrawSource, FixedAcceptance
from twin.serving.request import Request
from twin.serving.simulate import Run, simulate
from twin.serving.steptime import ConstantStepTime, StepTime


class AnalyticStepTime:
    """Seconds that rise with rows (concave), context and chunk, and jump at a bucket of 64 tokens."""

    def decode_s(self, streams: int, rows: int, context_tokens: float) -> float:
        jump = 4e-3 if rows > 64 else 0.0
        return 6e-3 + 0.9e-3 * rows**0.7 + 2e-8 * streams * context_tokens + jump

    def mixed_s(
        self, streams: int, rows: int, context_tokens: float, prefill_tokens: int, prefill_context_tokens: float
    ) -> float:
        return self.decode_s(streams, rows, context_tokens) + prefill_tokens * (25e-6 + 1e-10 * prefill_context_tokens)

    def prefill_s(self, prefill_tokens: int, prefill_context_tokens: float) -> float:
        return 6e-3 + prefill_tokens * (25e-6 + 1e-10 * prefill_context_tokens)


def one_token_requests(times: Iterable[float]) -> Iterator[Request]:
    """Requests of one prompt and one output token: each is exactly one engine step."""
    for i, time_s in enumerate(times):
        yield Request(i, time_s, 1, 1)


def queue_run(rate: float, n: int, *, step_time: StepTime, replicas: int = 1, seed: int = 0, **options: Any) -> Run:
    """Poisson one-token requests into servers that take one at a time from a common queue.

    The gaps are scaled to their exact mean, so that the load is what was asked for (less variance, same queue).
    """
    gaps = np.random.default_rng(seed).standard_exponential(n)
    times = np.cumsum(gaps / (gaps.mean() * rate)).tolist()
    deployment = Deployment(limits=Limits(max_seqs=1, max_batched_tokens=1), replicas=replicas, in_flight=1, **options)
    return simulate(deployment, step_time, [0, 0], lambda r, k: repeat(1), one_token_requests(times), warmup_s=0.0)


def exponential(seed: int, n: int) -> Iterator[float]:
    """`n` exponential factors of mean exactly 1, then plain ones."""
    factors = np.random.default_rng([seed, 1]).standard_exponential(n)
    yield from (factors / factors.mean()).tolist()
    yield from repeat(1.0)


def small_run(
    requests: list[Request], limits: Limits, *, k: int = 2, p: float = 0.6, step_s: float = 0.01, **options: Any
) -> Run:
    """Run a handful of requests with constant steps."""
    deployment = Deployment(limits=limits, **options)
    draws = DrawSource([[FixedAcceptance(p)]], 0)
    return simulate(
        deployment, ConstantStepTime(step_s), [k] * (limits.max_seqs + 1), draws, iter(requests), warmup_s=0.0
    )
