"""What a load generator sees is the simulation of the same traffic, in real time.

Three comparisons, so that a busy machine cannot break one and a wrong server cannot pass all:

1. on the simulated clock, to the last bit: the requests as the endpoint served them against a simulation of the very
   arrivals, and each chunk that a client got against the step that made it;
2. against `twin simulate -c`, still on the simulated clock: the clients' own pauses are the only difference, and their
   share of a request is measured and allowed;
3. on the client's clock: no chunk comes before its simulated time, lateness does not add up, and half of the chunks
   are later by no more than the resolution of a clock at the client, measured beside them (`closed_loop`).

The generator is plain asyncio and httpx; the same traffic from AIPerf is in test_endpoint_aiperf.py.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field, replace

import pytest
from endpoint_support import Sample, closed_loop, endpoint, lane_server, prompt_ids

from twin.endpoint.clock import WallClock
from twin.endpoint.engine import LiveEngine, Stream
from twin.endpoint.text import block_names, tokens_of
from twin.planning.predict import CellRequest
from twin.planning.server import serve
from twin.planning.study import Arrivals, Extent, TrafficShare
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.request import Request
from twin.serving.simulate import Run, simulate

PROMPT, OUTPUT = 512, 96
SHARE = 0.03
#: wake-ups of an event loop are a millisecond apart, on either side of the connection
LOOP_S = 2e-3


@dataclass
class Served:
    """One request on the endpoint's side: its arrival as a simulation takes it, and its chunks (seconds, tokens)."""

    request: Request
    arrival: Request
    chunks: list[tuple[float, int]] = field(default_factory=list)


class RecordingEngine(LiveEngine):
    """Notes what it served, by the number of the prompt."""

    def __init__(self, requests: int) -> None:
        super().__init__(lane_server(), seed=3, model="sidecar")
        block = self.server.limits.prefix_block_tokens
        self._number = {block_names(prompt_ids(n, PROMPT), block): n for n in range(requests)}
        self.served: dict[int, Served] = {}
        self._by_index: dict[int, Served] = {}

    def submit(self, *args: object, **kw: object) -> Stream:
        stream = super().submit(*args, **kw)  # type: ignore[arg-type]
        r = stream.request
        arrival = Request(r.index, r.arrival_s, r.prompt_tokens, r.output_tokens)
        arrival.profile = r.profile
        served = Served(r, arrival)
        self._by_index[r.index] = self.served[self._number[kw["blocks"]]] = served  # type: ignore[index]
        return stream

    def stepped(self, replica: object, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float) -> None:
        before = {index: stream.seen for index, stream in self.streams.items()}
        super().stepped(replica, plan, outcome, start_s, end_s)  # type: ignore[arg-type]
        for index, stream in self.streams.items():
            if stream.seen > before[index]:
                self._by_index[index].chunks.append((end_s, stream.seen - before[index]))


@dataclass
class Measured:
    """One run: clients' samples and the endpoint's records by prompt number, simulations, and the resolution."""

    samples: dict[int, Sample]
    served: dict[int, Served]
    replay: Run
    closed: Run
    resolution_s: float
    clock_start_s: float

    def lateness_s(self) -> list[tuple[float, float]]:
        """(simulated seconds, how much later the client had it) of every chunk, in order of time."""
        found = []
        for number, sample in self.samples.items():
            for (due_s, _), got_s in zip(self.served[number].chunks, sample.chunks_s, strict=True):
                found.append((due_s, got_s - self.clock_start_s - due_s))
        return sorted(found)


def _measure(users: int, requests: int) -> Measured:
    server, engine = lane_server(), RecordingEngine(requests)
    clock = WallClock(1.0)
    # The client's clock against the endpoint's.
    shift_s = time.perf_counter() - time.monotonic()
    with endpoint(engine, clock) as url:
        samples, trip_s = asyncio.run(closed_loop(url, users, requests, PROMPT, OUTPUT))
    shares = (TrafficShare(name="mixed", prompt_tokens=PROMPT, output_tokens=OUTPUT),)
    closed = serve(
        replace(server, shares=shares), Arrivals(kind="closed", users=users), Extent(requests=requests), seed=3
    )
    arrivals = sorted((s.arrival for s in engine.served.values()), key=lambda r: (r.arrival_s, r.index))
    replay = simulate(
        server.deployment, server.table, server.k_by_streams, server.draws(3), iter(arrivals), warmup_s=0.0
    )
    return Measured(
        {s.number: s for s in samples}, engine.served, replay, closed, trip_s + LOOP_S, clock._start_s + shift_s
    )


def _is_the_replay(run: Measured, requests: int) -> None:
    rows = run.replay.collector.requests.measures()
    served = sorted((s.request for s in run.served.values()), key=lambda r: (r.arrival_s, r.index))
    assert len(run.samples) == len(served) == requests
    assert [r.first_token_s - r.arrival_s for r in served] == rows["ttft_s"].tolist()
    assert [r.finish_s - r.arrival_s for r in served] == rows["e2e_s"].tolist()


def _chunks_are_the_steps(run: Measured) -> None:
    for number, sample in run.samples.items():
        assert [len(tokens_of(text)) for text in sample.texts] == [n for _, n in run.served[number].chunks]


def _is_twin_simulate(run: Measured, users: int) -> None:
    rows = run.closed.collector.requests.measures()
    served = [s.request for s in run.served.values()]
    # Of a request's time at the client, what the endpoint did not simulate: pauses and the way there and back.
    outside = statistics.fmean(
        1.0 - (run.served[n].request.finish_s - run.served[n].request.arrival_s) / (s.next_s - s.sent_s)
        for n, s in run.samples.items()
    )
    slack = SHARE + max(outside, 0.0)
    e2e_s = [r.finish_s - r.arrival_s for r in served]
    tpot_s = [(r.last_token_s - r.first_token_s) / (OUTPUT - 1) for r in served]
    if users == 1:
        # Nobody else is there whom a pause could let through: the same streams, the same times.
        assert sorted(e2e_s) == pytest.approx(sorted(rows["e2e_s"].tolist()), rel=1e-9)
        assert sorted(tpot_s) == pytest.approx(sorted(rows["tpot_s"].tolist()), rel=1e-9)
        return
    assert statistics.fmean(tpot_s) == pytest.approx(float(rows["tpot_s"].mean()), rel=slack)
    assert statistics.fmean(e2e_s) == pytest.approx(float(rows["e2e_s"].mean()), rel=slack)
    gaps = [b - a for s in run.served.values() for (a, _), (b, _) in zip(s.chunks, s.chunks[1:], strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(run.closed.result.itl_s.mean, rel=slack)


def _never_early(run: Measured) -> None:
    assert min(late_s for _, late_s in run.lateness_s()) > -1e-4


def _late_by_the_resolution(run: Measured) -> str:
    """What is wrong with lateness; empty when nothing is."""
    late = run.lateness_s()
    half = statistics.median(late_s for _, late_s in late)
    third = len(late) // 3
    first, last = (statistics.median(late_s for _, late_s in part) for part in (late[:third], late[-third:]))
    if half > run.resolution_s:
        return (
            f"half of the chunks are later than {half * 1e3:.1f} ms; the resolution is {run.resolution_s * 1e3:.1f} ms"
        )
    if last - first > run.resolution_s:
        return f"lateness grew from {first * 1e3:.1f} to {last * 1e3:.1f} ms"
    return ""


#: A burst of other work can delay the second half of a run and not the first; it hardly does so three times.
RUNS = 3


@pytest.mark.parametrize(("users", "requests"), [(1, 6), (4, 24), (16, 64)])
def test_clients_see_the_simulation(users: int, requests: int) -> None:
    missed = ""
    for _ in range(RUNS):
        run = _measure(users, requests)
        _is_the_replay(run, requests)
        _chunks_are_the_steps(run)
        _is_twin_simulate(run, users)
        _never_early(run)
        missed = _late_by_the_resolution(run)
        if not missed:
            return
    pytest.fail(missed)


def test_one_stream_without_a_queue_is_the_prediction() -> None:
    """TTFT and the step of a lone stream are those of `twin predict` (its mean over routing and coefficients)."""
    cell = lane_server().predictors[0].cell(CellRequest(5, 1, "token", PROMPT))
    engine = LiveEngine(lane_server(), seed=3)
    stream = engine.submit(PROMPT, OUTPUT)
    engine.advance(60.0)
    request, gap = stream.request, engine.metrics.histograms["inter_token_latency_seconds"]
    assert request.first_token_s - request.arrival_s == pytest.approx(cell.ttft_ms.mean / 1e3, rel=SHARE)
    assert gap.total / gap.count == pytest.approx(cell.step_ms.mean / 1e3, rel=SHARE)
