"""What a load generator reports agrees with the simulation of the same traffic, in real time.

Tolerance: 3 % and the clock's resolution, which is measured within the run (`closed_loop`). Medians are compared,
because a busy machine delays single chunks. The generator is plain asyncio and httpx; the same
comparison with AIPerf is in test_endpoint_aiperf.py.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace

import pytest
from endpoint_support import Sample, closed_loop, endpoint, lane_server

from twin.endpoint.clock import WallClock
from twin.endpoint.engine import LiveEngine, Stream
from twin.planning.predict import CellRequest
from twin.planning.server import serve
from twin.planning.study import Arrivals, Extent, TrafficShare
from twin.serving.request import Request
from twin.serving.simulate import Run, simulate

PROMPT, OUTPUT = 512, 96
SHARE = 0.03
#: wake-ups of an event loop are a millisecond apart, on either side of the connection
LOOP_S = 2e-3


def _run(users: int, requests: int) -> tuple[list[Sample], Run, Run, float]:
    """What clients saw, the simulation of `twin simulate -c`, and that of the very arrivals; the resolution."""
    server = lane_server()
    engine = LiveEngine(server, seed=3, model="sidecar")
    arrivals: list[Request] = []
    original = engine.submit

    def submit(*args: object, **kw: object) -> Stream:
        stream = original(*args, **kw)  # type: ignore[arg-type]
        r = stream.request
        arrivals.append(Request(r.index, r.arrival_s, r.prompt_tokens, r.output_tokens))
        arrivals[-1].profile = r.profile
        return stream

    engine.submit = submit  # type: ignore[method-assign]
    with endpoint(engine, WallClock(1.0)) as url:
        samples, trip_s = asyncio.run(closed_loop(url, users, requests, PROMPT, OUTPUT))
    shares = (TrafficShare(name="mixed", prompt_tokens=PROMPT, output_tokens=OUTPUT),)
    closed = serve(
        replace(server, shares=shares), Arrivals(kind="closed", users=users), Extent(requests=requests), seed=3
    )
    replay = simulate(
        server.deployment, server.table, server.k_by_streams, server.draws(3), iter(arrivals), warmup_s=0.0
    )
    return samples, closed, replay, trip_s + LOOP_S


def _median(values: list[float]) -> float:
    return statistics.median(v for v in values if v == v)


@pytest.mark.parametrize(("users", "requests"), [(1, 8), (4, 24), (16, 64)])
def test_reported_latencies_are_the_simulations(users: int, requests: int) -> None:
    samples, closed, replay, resolution_s = _run(users, requests)
    assert len(samples) == requests
    for run, with_ttft in ((replay, True), (closed, users == 1)):
        # In a closed loop of several users TTFT depends on how arrivals fall into steps, so on the client's own pauses
        # between requests; there the very arrivals are the same traffic, and the loop is compared on the rest.
        rows = run.collector.requests.measures()
        expected_s = {name: _median(rows[name].tolist()) for name in ("ttft_s", "tpot_s", "e2e_s")}
        if with_ttft:
            ttft_s = _median([s.ttft_s for s in samples])
            assert ttft_s == pytest.approx(expected_s["ttft_s"], abs=SHARE * expected_s["ttft_s"] + resolution_s)
        assert _median([s.tpot_s for s in samples]) == pytest.approx(expected_s["tpot_s"], rel=SHARE)
        gaps = [g for s in samples for g in s.gaps_s]
        assert statistics.fmean(gaps) == pytest.approx(run.result.itl_s.mean, rel=SHARE)
        # Throughput of a closed loop: users over the time a request takes, the client's own pause included.
        busy_s = max(s.chunks_s[-1] for s in samples) - min(s.sent_s for s in samples)
        expected_busy_s = rows["finish_s"].max() - rows["arrival_s"].min()
        slack = SHARE + 2 * resolution_s / expected_s["e2e_s"]
        assert requests * OUTPUT / busy_s == pytest.approx(requests * OUTPUT / expected_busy_s, rel=slack)


def test_one_stream_without_a_queue_is_the_prediction() -> None:
    """TTFT and the step of a lone stream are those of `twin predict` (its mean over routing and coefficients)."""
    samples, _, _, resolution_s = _run(1, 6)
    predictor = lane_server().predictors[0]
    cell = predictor.cell(CellRequest(5, 1, "token", PROMPT))
    assert _median([s.ttft_s for s in samples]) * 1e3 == pytest.approx(
        cell.ttft_ms.mean, abs=SHARE * cell.ttft_ms.mean + resolution_s * 1e3
    )
    gap_ms = statistics.fmean(g for s in samples for g in s.gaps_s) * 1e3
    assert gap_ms == pytest.approx(cell.step_ms.mean, rel=SHARE)
