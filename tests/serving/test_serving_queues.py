"""Analytic limits: with one-token requests the simulation is a textbook queue.

Means in closed form (Kleinrock, Queueing Systems I; service rate mu = 1 / s, load rho = lambda s / c):

    M/M/1   T = s / (1 - rho)
    M/D/1   T = s + rho s / (2 (1 - rho))                          (Pollaczek-Khinchine)
    M/M/c   T = s + C(c, lambda s) s / (c (1 - rho)),  C the Erlang C probability of waiting

Tolerance 2 %: 40,000 to 100,000 requests at an exact load leave at most 1 % of sampling error; seeds are fixed.
"""

from __future__ import annotations

import math
from itertools import repeat

import numpy as np
import pytest
from serving_support import exponential, queue_run

from twin.serving.config import Deployment, Limits
from twin.serving.request import Request
from twin.serving.simulate import simulate
from twin.serving.steptime import ConstantStepTime, NoisyStepTime

STEP_S = 0.02


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival of M/M/c waits, offered load in erlangs."""
    rho = offered / servers
    below = sum(offered**n / math.factorial(n) for n in range(servers))
    full = offered**servers / math.factorial(servers) / (1.0 - rho)
    return full / (below + full)


@pytest.mark.parametrize("rho", [0.3, 0.6])
def test_md1(rho: float) -> None:
    result = queue_run(rho / STEP_S, 60_000, step_time=ConstantStepTime(STEP_S)).result
    assert result.e2e_s.mean == pytest.approx(STEP_S + rho * STEP_S / (2 * (1 - rho)), rel=0.02)
    assert result.utilisation == pytest.approx(rho, rel=0.01)
    assert result.queue_s.mean == pytest.approx(rho * STEP_S / (2 * (1 - rho)), rel=0.02)


@pytest.mark.parametrize(("rho", "n"), [(0.3, 40_000), (0.6, 100_000)])
def test_mm1(rho: float, n: int) -> None:
    step_time = NoisyStepTime(ConstantStepTime(STEP_S), exponential(0, n))
    result = queue_run(rho / STEP_S, n, step_time=step_time).result
    assert result.e2e_s.mean == pytest.approx(STEP_S / (1 - rho), rel=0.02)
    # The time in an M/M/1 is exponential, so its quantiles are known too.
    assert result.e2e_s.p90 == pytest.approx(STEP_S / (1 - rho) * math.log(10), rel=0.03)


@pytest.mark.parametrize(("servers", "rho", "n"), [(2, 0.5, 60_000), (5, 0.8, 100_000)])
def test_mmc(servers: int, rho: float, n: int) -> None:
    rate = rho * servers / STEP_S
    step_time = NoisyStepTime(ConstantStepTime(STEP_S), exponential(1, n))
    result = queue_run(rate, n, step_time=step_time, replicas=servers).result
    wait_s = erlang_c(servers, rate * STEP_S) * STEP_S / (servers * (1 - rho))
    assert result.e2e_s.mean == pytest.approx(STEP_S + wait_s, rel=0.02)


def test_slots_of_one_engine_are_servers() -> None:
    """A lane with c sequences and geometric answers of many short steps is M/M/c, up to the step.

    One step is 2 % of the mean service; on average half of one is lost waiting for a step to end. Tolerance 3 %.
    """
    servers, rho, tokens, step_s, n = 4, 0.6, 50, 4e-4, 20_000
    service_s = tokens * step_s
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(service_s / (rho * servers), size=n)).tolist()
    outputs = rng.geometric(1.0 / tokens, size=n).tolist()
    requests = (Request(i, t, 1, o) for i, (t, o) in enumerate(zip(times, outputs, strict=True)))
    deployment = Deployment(limits=Limits(max_seqs=servers))
    draws = lambda r, k: repeat(1)  # noqa: E731
    result = simulate(deployment, ConstantStepTime(step_s), [0] * 5, draws, requests, warmup_s=0.0).result
    wait_s = erlang_c(servers, rho * servers) * service_s / (servers * (1 - rho))
    assert result.e2e_s.mean == pytest.approx(service_s + wait_s + step_s / 2, rel=0.03)


def test_erlang_c_of_one_server_is_its_load() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
