"""The lane at work behind an endpoint: the simulation's cluster, told what time it is from outside.

`advance(now_s)` processes everything that is due and may be called by anybody: the driver below calls it in real time,
tests call it with times of their own. Requests come in through `submit`, and what each step gives them comes out of
their `Stream`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import simpy

from twin.acceptance.model import Acceptance
from twin.acceptance.profile import survival_from_conditional
from twin.acceptance.traffic import TrafficClass
from twin.endpoint.clock import Clock, EventClock
from twin.endpoint.metrics import Levels, ServerMetrics, exposition
from twin.errors import PolicyError
from twin.planning.server import Server
from twin.serving.cluster import Cluster, Replica
from twin.serving.draws import DrawSource
from twin.serving.lane import lane_profiles
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.request import CANCELLED, ENDED, FINISHED, RUNNING, WAITING, Request
from twin.serving.scheduler import Draws
from twin.serving.steptime import NoisyStepTime, StepTime
from twin.serving.workload import FixedLength, RequestMaker

#: events handled before the network gets a turn when the driver is behind
BURST = 16


class Stream:
    """What the client of one request receives: `chunks` holds the token counts of steps not yet taken."""

    __slots__ = ("_waiter", "chunks", "request", "seen", "stops_by_itself")

    def __init__(self, request: Request, stops_by_itself: bool) -> None:
        self.request = request
        self.stops_by_itself = stops_by_itself
        self.chunks: deque[int] = deque()
        self.seen = 0  # tokens put into chunks so far
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be put into `chunks`."""
        return self.request.status in ENDED

    @property
    def reason(self) -> str:
        """OpenAI's finish reason; vLLM's `abort` for a client that left, `error` for a refusal."""
        if self.request.status == FINISHED:
            return "stop" if self.stops_by_itself else "length"
        return "abort" if self.request.status == CANCELLED else "error"

    async def next_chunk(self) -> int:
        """Tokens of the next verify step; 0 when the answer has ended."""
        while not self.chunks and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.chunks.popleft() if self.chunks else 0

    def wake(self) -> None:
        """Something changed."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Counted:
    """An iterator of kept tokens that tallies what it hands out."""

    __slots__ = ("_counts", "_iterator")

    def __init__(self, iterator: Iterator[int], counts: list[int]) -> None:
        self._iterator, self._counts = iterator, counts

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        kept = next(self._iterator)
        self._counts[kept] += 1
        return kept


class LiveEngine:
    """One deployment of a lane, driven from outside.

    `step_factor` multiplies every step time and `acceptance_shift` {position: change} moves conditional acceptance
    (positions count from 1): a lane that has drifted from its calibration, to try alarms on.
    """

    def __init__(
        self, server: Server, *, seed: int = 0, model: str | None = None, step_factor: float = 1.0,
        acceptance_shift: dict[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.metrics = ServerMetrics(model or server.lane.name, server.deployment.replicas)
        self.env = simpy.Environment()
        self.streams: dict[int, Stream] = {}
        self.on_end: Callable[[Stream], None] | None = None
        self.speed = math.inf
        source = _draws(server, seed, acceptance_shift or {})
        self._sources = server.sources()
        # Clients bring their own lengths. With fixed ones the maker draws classes and levels of acceptance as
        # `twin simulate --prompt --output` does, so the same seed gives the same streams there and here.
        one = FixedLength(1)
        self._maker = RequestMaker([replace(s, prompt=one, output=one) for s in self._sources], seed, draws=source)
        self._lengths = np.random.default_rng([seed, 23])
        step_time: StepTime = server.table
        if step_factor != 1.0:
            step_time = NoisyStepTime(server.table, repeat(step_factor))
        draws = self._tallied(source)
        self._cluster = Cluster(self.env, server.deployment, [step_time], server.k_by_streams, draws, self)

    @property
    def now_s(self) -> float:
        """Simulated seconds."""
        return float(self.env.now)

    @property
    def next_event_s(self) -> float:
        """When something will happen by itself; infinity when everything waits for a client."""
        return float(self.env.peek())

    def advance(self, now_s: float) -> None:
        """Process all events up to and including `now_s`, and set the clock there. Never goes back."""
        env = self.env
        while env.peek() <= now_s:
            env.step()
        if now_s > env.now:
            env.run(until=now_s)

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(
        self, prompt_tokens: int, output_tokens: int | None, *, most: int | None = None, blocks: tuple[int, ...] = (),
        stops_by_itself: bool = False, least: int = 1,
    ) -> Stream:  # fmt: skip
        """A request arrives now. Without `output_tokens` the class's lengths say how long the answer is: at least
        `least`, cut at `most`.

        A stream whose request is REFUSED can never fit.
        """
        traffic, _, _, profile = self._maker.draw_one()
        if output_tokens is None:
            wanted = max(int(self._sources[traffic].output.draw(self._lengths, 1)[0]), least)
            stops_by_itself = most is None or wanted < most
            output_tokens = wanted if most is None else min(wanted, most)
        request = self._maker.build(self.now_s, traffic, prompt_tokens, output_tokens, profile=profile, blocks=blocks)
        stream = Stream(request, stops_by_itself)
        self.streams[request.index] = stream
        self._cluster.submit(request)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Its client left. Safe at any time, and any number of times."""
        request = stream.request
        if request.status in ENDED:
            return
        request.deadline_s = self.now_s  # what the frontend still holds is dropped on arrival
        if request.replica >= 0 and request.status in (RUNNING, WAITING):
            replica = self._cluster.replicas[request.replica]
            replica.scheduler.cancel(request)
            replica.wake()

    # -- what the cluster tells --------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        """A request reached the router."""

    def ended(self, request: Request, now_s: float) -> None:
        """A request will not change any more."""
        stream = self.streams.pop(request.index)
        self.metrics.end(request, stream.reason)
        stream.wake()
        if self.on_end is not None:
            self.on_end(stream)

    def stepped(self, replica: Replica, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float) -> None:
        """A replica finished a step: every stream in it gets its tokens as one chunk."""
        self.metrics.step(plan, outcome)
        streams = self.streams
        for requests in (plan.decode, outcome.started):
            for request in requests:
                stream = streams.get(request.index)
                if stream is None:
                    continue
                got = request.output_tokens - request.left - stream.seen
                if got > 0:
                    stream.seen += got
                    stream.chunks.append(got)
                    stream.wake()

    # -- what a scrape sees ------------------------------------------------------------------------------------

    def page(self) -> str:
        """The text of `/metrics` now."""
        schedulers = [r.scheduler for r in (*self._cluster.replicas, *self._cluster.prefillers)]
        capacity = sum(s.kv.capacity_tokens for s in schedulers)
        levels = Levels(
            running=sum(s.running for s in schedulers), waiting=sum(s.waiting for s in schedulers),
            kv_usage=sum(s.kv.used_tokens for s in schedulers) / capacity, clock_s=self.now_s, speed=self.speed,
            preemptions=sum(s.preemptions for s in schedulers),
            queried_tokens=sum(s.looked_up_tokens for s in schedulers),
            hit_tokens=sum(s.hit_tokens for s in schedulers),
        )  # fmt: skip
        return exposition(self.metrics, levels)

    def _tallied(self, source: Draws) -> Draws:
        known: dict[tuple[int, int, int], _Counted] = {}

        def draws(request: Request, k: int) -> Iterator[int]:
            key = (request.traffic, request.profile, k)
            if key not in known:
                known[key] = _Counted(source(request, k), self.metrics.tally(k))
            return known[key]

        return draws


def _draws(server: Server, seed: int, shift: dict[int, float]) -> DrawSource:
    def shifted(traffic: TrafficClass, k: int) -> Acceptance:
        found = server.acceptance(traffic, k)
        conditional = found.conditional.copy()
        for position, change in shift.items():
            if position < 1:
                raise PolicyError(f"acceptance shift: position {position}; positions count from 1.")
            if position <= k:
                conditional[position - 1] = min(max(conditional[position - 1] + change, 0.0), 1.0)
        survival = survival_from_conditional(conditional)
        return replace(found, survival=survival, tokens_per_step=1.0 + float(survival.sum()))

    if not shift:
        return server.draws(seed)
    return lane_profiles([p.traffic for p in server.predictors], shifted, server.k_by_streams).draws(seed)


class Driver:
    """Turns a clock into calls of `advance`, on an asyncio loop."""

    def __init__(self, engine: LiveEngine, clock: Clock) -> None:
        self.engine, self.clock = engine, clock
        engine.speed = clock.speed
        self._bell = asyncio.Event()

    def catch_up(self) -> None:
        """Bring the engine to the present, so that what comes in now comes in now."""
        if not isinstance(self.clock, EventClock):
            self.engine.advance(self.clock.now_s())

    def ring(self) -> None:
        """Something was submitted or cancelled: look again."""
        self._bell.set()

    async def run(self) -> None:
        """Run until cancelled."""
        engine, clock = self.engine, self.clock
        loop = asyncio.get_running_loop()
        while True:
            burst = 0
            while engine.next_event_s <= clock.now_s() and engine.next_event_s < math.inf:
                engine.env.step()
                burst += 1
                if burst % BURST == 0 or isinstance(clock, EventClock):
                    await asyncio.sleep(0)
            self._bell.clear()
            if engine.next_event_s <= clock.now_s() and engine.next_event_s < math.inf:
                continue
            wait_s = clock.wall_s_until(engine.next_event_s)
            timer = loop.call_later(wait_s, self._bell.set) if wait_s < math.inf else None
            await self._bell.wait()
            if timer is not None:
                timer.cancel()
