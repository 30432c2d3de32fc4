"""Shared by the watch's tests: `twin serve`'s engine and `twin watch` pointed at each other, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from twin.endpoint.engine import LiveEngine, Stream
from twin.endpoint.setup import served
from twin.lane.catalogue import catalogue_roots
from twin.planning.server import Server
from twin.watch.expect import Expectations
from twin.watch.session import Observation, Watch


@lru_cache(maxsize=2)
def lane_server(traffic: str = "mixed") -> Server:
    return served("sidecar", [traffic], {}, catalogue_roots(None), 0)


@lru_cache(maxsize=2)
def expectations(traffic: str = "mixed") -> Expectations:
    return Expectations(lane_server(traffic))


def loaded(
    users: int, *, output: int | None = 200, traffic: str = "mixed", server: Server | None = None, **drift: object
) -> LiveEngine:
    """An engine with users who ask again as soon as they are answered."""
    engine = LiveEngine(server or lane_server(traffic), **drift)  # type: ignore[arg-type]

    def again(stream: Stream | None = None) -> None:
        engine.submit(512, output, most=4096)

    engine.on_end = again
    for _ in range(users):
        again()
    return engine


def watch_of(engine: LiveEngine, fetch: Callable[[], str] | None = None, *, traffic: str = "mixed") -> Watch:
    """A watch whose clock is the engine's."""

    def sleep(seconds: float) -> None:
        engine.advance(engine.now_s + seconds)

    return Watch(expectations(traffic), fetch or engine.page, lambda: engine.now_s, sleep)


def alarms(seen: list[Observation]) -> list[tuple[float, str, float]]:
    return [(a.at_s, a.factor, a.deviation) for o in seen for a in o.alarms]
