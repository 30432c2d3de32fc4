"""Replicas behind a router, in simulated time. One SimPy event for each engine step, never for a token.

The scheduler knows no clock; this module is the clock: it asks for a plan, lets the step's seconds pass, and hands
the result back. A real-time server drives the same scheduler with another clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Any, Protocol

import simpy

from twin.serving.config import Deployment, Limits
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.queue import next_deadline_s
from twin.serving.request import CANCELLED, FAILED, TRANSFER, Request
from twin.serving.scheduler import Draws, Scheduler
from twin.serving.steptime import StepTime

Process = Generator[simpy.Event, Any, None]


class Observer(Protocol):
    """Who wants to know what happens."""

    def arrived(self, request: Request, now_s: float) -> None:
        """A request reached the router."""

    def ended(self, request: Request, now_s: float) -> None:
        """A request will not change any more."""

    def stepped(self, replica: Replica, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float) -> None:
        """A replica finished a step."""


def step_seconds(plan: StepPlan, step_time: StepTime, host_s_per_token: float, overlapped: bool) -> float:
    """How long a planned step takes; KV on its way to or from the host hides under it, or comes on top."""
    rows, chunk = plan.rows, plan.prefill_tokens
    if rows and chunk:
        step_s = step_time.mixed_s(len(plan.decode), rows, plan.context_tokens, chunk, plan.prefill_context_tokens)
    elif rows:
        step_s = step_time.decode_s(len(plan.decode), rows, plan.context_tokens)
    elif chunk:
        step_s = step_time.prefill_s(chunk, plan.prefill_context_tokens)
    else:
        step_s = 0.0
    if plan.transfer_tokens:
        transfer_s = plan.transfer_tokens * host_s_per_token
        return max(step_s, transfer_s) if overlapped else step_s + transfer_s
    return step_s


class Replica:
    """One engine: its scheduler, and the process that steps it."""

    def __init__(self, cluster: Cluster, index: int, limits: Limits, step_time: StepTime) -> None:
        self.index = index
        self.outages = 0  # how many outages it is in
        self.scheduler = Scheduler(limits, cluster.k_by_streams, cluster.draws, orders=cluster.orders)
        self._cluster = cluster
        self._step_time = step_time
        self._life = 0  # a step planned in an earlier life is lost
        self._bell: simpy.Event | None = None

    @property
    def up(self) -> bool:
        """Whether it can take requests."""
        return self.outages == 0

    def submit(self, request: Request) -> bool:
        """Queue a request here; False when it can never fit."""
        request.replica = self.index
        accepted = self.scheduler.submit(request, self._cluster.env.now)
        self.wake()
        return accepted

    def wake(self) -> None:
        """Something changed: plan again if idle."""
        if self._bell is not None:
            bell, self._bell = self._bell, None
            bell.succeed()

    def lose(self, *, keep_cache: bool) -> list[Request]:
        """Everything here is taken away, the running step with it."""
        self._life += 1
        return self.scheduler.evacuate(keep_cache=keep_cache)

    def run(self) -> Process:
        """The engine loop."""
        cluster, scheduler, env = self._cluster, self.scheduler, self._cluster.env
        deployment = cluster.deployment
        host_s = deployment.kv_bytes_per_token / deployment.host_bytes_per_s
        overlapped = deployment.host_transfer == "overlapped"
        while True:
            start_s = env.now
            plan = scheduler.plan_step(start_s)
            for request in plan.cancelled:
                cluster.end(request)
            if plan.idle:
                if plan.cancelled:
                    continue  # those who left made room, and the router may have filled it
                self._bell = env.event()
                yield self._bell
                continue
            life = self._life
            yield env.timeout(step_seconds(plan, self._step_time, host_s, overlapped))
            if life != self._life:
                continue
            outcome = scheduler.complete_step(plan, env.now)
            cluster.observer.stepped(self, plan, outcome, start_s, env.now)
            for request in outcome.handed_off:
                cluster.send_kv(self, request)
            for request in outcome.finished:
                cluster.end(request)


class Cluster:
    """A deployment at work. `on_end` hears of every ended request (closed loops send the next one from there)."""

    def __init__(
        self, env: simpy.Environment, deployment: Deployment, step_times: Sequence[StepTime],
        k_by_streams: Sequence[int], draws: Draws, observer: Observer, on_end: Callable[[Request], None] | None = None,
    ) -> None:  # fmt: skip
        """`step_times`: one for all replicas, or one each (prefill replicas last)."""
        self.env = env
        self.deployment = deployment
        self.k_by_streams, self.draws, self.observer = k_by_streams, draws, observer
        self.orders = count()
        self.live: dict[int, Request] = {}
        self._on_end = on_end
        total = deployment.replicas + deployment.prefill_replicas
        steps = list(step_times) if len(step_times) == total else [step_times[0]] * total
        decode_limits, prefill_limits = deployment.limits, deployment.prefill_limits or deployment.limits
        if deployment.prefill_replicas:
            decode_limits = decode_limits.model_copy(update={"role": "decode"})
            prefill_limits = prefill_limits.model_copy(update={"role": "prefill"})
        self.replicas = [Replica(self, i, decode_limits, steps[i]) for i in range(deployment.replicas)]
        self.prefillers = [Replica(self, i, prefill_limits, steps[i]) for i in range(deployment.replicas, total)]
        self._entry = self.prefillers or self.replicas
        self._router_outages = 0
        self._releasing = False
        self._held: deque[Request] = deque()
        self._parked: list[tuple[Replica, Request, int]] = []
        self._turn = 0
        self._link_free_s = 0.0
        for replica in (*self.replicas, *self.prefillers):
            env.process(replica.run())
        for outage in deployment.outages:
            env.process(self._outage(outage.replica, outage.at_s, outage.for_s))

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A client sends a request."""
        self.live[request.index] = request
        self.observer.arrived(request, self.env.now)
        deployment = self.deployment
        frontend_s = deployment.frontend_s + deployment.frontend_s_per_token * request.prompt_tokens
        # Each replica has a front end of its own, and who waits for a sequence has no output to be handled.
        others = min((len(self.live) - 1) / len(self.replicas), deployment.limits.max_seqs)
        frontend_s += deployment.frontend_s_per_stream * others
        if frontend_s:
            self.env.timeout(frontend_s).callbacks.append(lambda _: self._dispatch(request))
        else:
            self._dispatch(request)

    def end(self, request: Request) -> None:
        """A request has ended, whatever its status."""
        if request.finish_s != request.finish_s:
            request.finish_s = self.env.now
        del self.live[request.index]
        self.observer.ended(request, self.env.now)
        if self._held:
            self._release_held()
        if self._on_end is not None:
            self._on_end(request)

    def send_kv(self, source: Replica, request: Request) -> None:
        """Put the KV of a prefilled request on the link; it continues on the least loaded decode replica."""
        link = self.deployment.link
        assert link is not None  # Deployment refuses prefill replicas without a link
        busy_s = request.resident_tokens * self.deployment.kv_bytes_per_token / link.bytes_per_s
        start_s = max(self.env.now, self._link_free_s)
        self._link_free_s = start_s + busy_s
        order = request.order
        arrival = self.env.timeout(start_s + busy_s + link.latency_s - self.env.now)
        arrival.callbacks.append(lambda _: self._deliver(source, request, order))

    def _deliver(self, source: Replica, request: Request, order: int) -> None:
        if request.status != TRANSFER or request.order != order:
            return  # its client left, or its replica died, while the KV was on the way
        target = self._least_loaded(self.replicas)
        if target is None:
            self._parked.append((source, request, order))  # its KV stays where it is until somebody can take it
            return
        source.scheduler.release(request)
        source.wake()
        if not target.submit(request):
            self.end(request)
        elif self._held:
            self._release_held()

    # -- routing -----------------------------------------------------------------------------------------------

    def _dispatch(self, request: Request) -> None:
        target = self._choose(request)
        if target is None:
            self._held.append(request)
        elif not target.submit(request):
            self.end(request)

    def _choose(self, request: Request) -> Replica | None:
        if self._router_outages:
            return None
        cap = self.deployment.in_flight
        entry = self._entry
        if len(entry) == 1 and not cap:
            return entry[0] if entry[0].up else None
        open_ = [r for r in entry if r.up and (not cap or r.scheduler.load < cap)]
        if not open_:
            return None
        if self.deployment.router == "round-robin":
            self._turn += 1
            return open_[self._turn % len(open_)]
        if self.deployment.router == "prefix-affinity":
            return self._with_prefix(request, open_)
        return self._least_loaded(open_)

    def _least_loaded(self, replicas: Sequence[Replica]) -> Replica | None:
        up = [r for r in replicas if r.up]
        return min(up, key=lambda r: (r.scheduler.load, r.index)) if up else None

    def _with_prefix(self, request: Request, replicas: Sequence[Replica]) -> Replica | None:
        """The replica that has most of the prefix, unless it has far more to do than the least loaded one."""
        least = self._least_loaded(replicas)
        if least is None or not request.blocks:
            return least
        matched, best = max(
            ((sum(r.scheduler.kv.matched_blocks(request.blocks)), r) for r in replicas),
            key=lambda m: (m[0], -m[1].index),
        )
        if matched and best.scheduler.load <= 2 * least.scheduler.load + 2:
            return best
        return least

    def _release_held(self) -> None:
        if self._releasing:
            return  # ending a held request comes back here
        self._releasing = True
        try:
            self._release_all_held()
        finally:
            self._releasing = False

    def _release_all_held(self) -> None:
        while self._held:
            request = self._held[0]
            if next_deadline_s(request) <= self.env.now:
                self._held.popleft()
                request.status = CANCELLED
                self.end(request)
                continue
            target = self._choose(request)
            if target is None:
                return
            self._held.popleft()
            if not target.submit(request):
                self.end(request)

    # -- outages -----------------------------------------------------------------------------------------------

    def _outage(self, which: int | str, at_s: float, for_s: float) -> Process:
        yield self.env.timeout(at_s)
        everyone = [*self.replicas, *self.prefillers]
        hit = everyone if which == "router" else [r for r in everyone if r.index == which]
        lost: list[Request] = []
        for replica in hit:
            lost += replica.lose(keep_cache=which == "router")
            replica.wake()
        self._count_outage(hit, which, +1)
        for request in sorted(lost, key=lambda r: r.order):
            if self.deployment.on_outage == "fail":
                request.status = FAILED
                self.end(request)
            else:
                self._dispatch(request)
        yield self.env.timeout(for_s)
        self._count_outage(hit, which, -1)
        parked, self._parked = self._parked, []
        for source, request, order in parked:
            self._deliver(source, request, order)
        self._release_held()

    def _count_outage(self, hit: Sequence[Replica], which: int | str, change: int) -> None:
        if which == "router":
            self._router_outages += change
            return
        for replica in hit:
            replica.outages += change
