"""The engine under a clock of the test's own: one scheduler, whatever drives it."""

from __future__ import annotations

import gc

import pytest
from endpoint_support import lane_server

from twin.endpoint.clock import EventClock, WallClock
from twin.endpoint.engine import LiveEngine, Stream
from twin.endpoint.setup import make_clock, parse_shifts
from twin.errors import PolicyError
from twin.planning.server import serve
from twin.planning.study import Arrivals, Extent, TrafficShare
from twin.serving.request import CANCELLED, FINISHED


def _closed_loop(engine: LiveEngine, users: int, requests: int, prompt: int, output: int) -> list[Stream]:
    ended: list[Stream] = []
    sent = [0]

    def send(*_: object) -> None:
        if sent[0] < requests:
            sent[0] += 1
            engine.submit(prompt, output)

    def on_end(stream: Stream) -> None:
        ended.append(stream)
        send()

    engine.on_end = on_end
    for _ in range(users):
        send()
    return ended


@pytest.mark.parametrize("users", [1, 4, 16])
def test_two_clocks_one_scheduler(users: int) -> None:
    """Driven in odd slices of time, the endpoint gives the records of the simulation to the last bit."""
    server = lane_server()
    share = TrafficShare(name="mixed", prompt_tokens=512, output_tokens=96)
    simulated = serve(
        _with_share(share), Arrivals(kind="closed", users=users), Extent(requests=60), seed=5
    ).collector.requests.measures()
    engine = LiveEngine(server, seed=5)
    ended = _closed_loop(engine, users, 60, 512, 96)
    now_s = 0.0
    while len(ended) < 60:
        now_s += 0.0137
        engine.advance(now_s)
    requests = sorted((s.request for s in ended), key=lambda r: (r.arrival_s, r.index))
    assert [r.first_token_s - r.arrival_s for r in requests] == simulated["ttft_s"].tolist()
    assert [r.finish_s - r.arrival_s for r in requests] == simulated["e2e_s"].tolist()


def _with_share(share: TrafficShare):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(lane_server(), shares=(share,))


def test_chunks_are_the_steps_and_add_up() -> None:
    engine = LiveEngine(lane_server())
    streams = [engine.submit(100 * i + 1, 50 + i) for i in range(8)]
    engine.advance(60.0)
    for i, stream in enumerate(streams):
        assert stream.request.status == FINISHED
        assert sum(stream.chunks) == 50 + i
        assert stream.chunks[0] == 1  # the prompt's last position
        assert max(stream.chunks) <= 6  # k = 5 and the bonus token
    drafts, drafted, accepted, positions = engine.metrics.speculation()
    assert sum(positions) == accepted <= drafted
    assert engine.metrics.generation_tokens == sum(50 + i for i in range(8))
    assert drafts == sum(len(s.chunks) - 1 for s in streams)


@pytest.mark.parametrize("at_s", [0.0, 0.02, 0.0448, 0.05, 0.12, 0.3])
def test_a_client_that_leaves_takes_everything_with_it(at_s: float) -> None:
    """In the frontend, in the queue, in prefill and in decode: nothing is left behind, and the others go on."""
    engine = LiveEngine(lane_server())
    stays = engine.submit(2000, 40)
    leaves = [engine.submit(30_000, 400) for _ in range(3)]
    engine.advance(at_s)
    for stream in leaves:
        engine.cancel(stream)
        engine.cancel(stream)
    engine.advance(30.0)
    assert all(s.request.status == CANCELLED for s in leaves)
    assert stays.request.status == FINISHED
    assert not engine.streams
    replica = engine._cluster.replicas[0].scheduler
    replica.kv.check()
    assert replica.kv.used_tokens == 0 and replica.load == 0
    assert engine.metrics.finished["abort"] == 3


def test_memory_is_flat_over_an_hour_of_traffic() -> None:
    """Objects alive after an hour are those of after ten minutes. A lane at a third of its speed: the same hour and
    hundreds of requests, in a third of the steps."""
    engine = LiveEngine(lane_server(), step_factor=3.0)
    ended = [0]

    def again(stream: Stream) -> None:
        ended[0] += 1
        stream.chunks.clear()
        blocks = tuple(range(ended[0] * 100, ended[0] * 100 + 8))
        engine.submit(512, 1500, blocks=blocks)

    engine.on_end = again
    for _ in range(2):
        engine.submit(512, 1500)
    engine.advance(600.0)
    gc.collect()
    before = len(gc.get_objects())
    engine.advance(3600.0)
    gc.collect()
    assert ended[0] > 200
    assert len(gc.get_objects()) < before + 2000
    assert len(engine.streams) == 2


def test_answers_without_a_length_follow_the_class() -> None:
    engine = LiveEngine(lane_server(), seed=1)
    streams = [engine.submit(64, None, most=400) for _ in range(60)]
    engine.advance(600.0)
    lengths = [s.request.output_tokens for s in streams]
    assert max(lengths) == 400 and len(set(lengths)) > 10
    assert {s.reason for s in streams} == {"stop", "length"}
    assert all(s.reason == "length" for s in streams if s.request.output_tokens == 400)


def test_a_lane_can_be_made_to_drift() -> None:
    plain, slow = LiveEngine(lane_server()), LiveEngine(lane_server(), step_factor=1.15)
    poor = LiveEngine(lane_server(), acceptance_shift={1: -0.1})
    for engine in (plain, slow, poor):
        for _ in range(32):
            engine.submit(64, 2000)
        engine.advance(400.0)
    gap = [e.metrics.histograms["inter_token_latency_seconds"] for e in (plain, slow)]
    assert gap[1].total / gap[1].count == pytest.approx(1.15 * gap[0].total / gap[0].count, rel=0.01)
    assert poor.metrics.speculation()[3][0] < plain.metrics.speculation()[3][0]


def test_clocks() -> None:
    ticks = iter([100.0, 101.0, 101.0])
    clock = WallClock(10.0, monotonic=lambda: next(ticks))
    assert clock.now_s() == 10.0
    assert clock.wall_s_until(15.0) == 0.5
    assert isinstance(make_clock("max")(), EventClock)
    with pytest.raises(PolicyError, match="--speed"):
        make_clock("fast")
    assert parse_shifts(["1:-0.1"]) == {1: -0.1}
    with pytest.raises(PolicyError, match="POSITION:CHANGE"):
        parse_shifts(["0:0.1"])
