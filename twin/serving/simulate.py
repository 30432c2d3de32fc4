"""Run a deployment against a workload and measure it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import simpy

from twin.errors import TrafficError
from twin.serving.analysis import analyse
from twin.serving.cluster import Cluster, Process
from twin.serving.collector import Collector
from twin.serving.config import Deployment
from twin.serving.request import REFUSED, Request
from twin.serving.result import ServingResult, Slo
from twin.serving.scheduler import Draws
from twin.serving.steptime import StepTime
from twin.serving.workload import ClosedLoop

#: called now and then with (simulated seconds, requests ended)
Progress = Callable[[float, int], None]
#: asked of every ended request whether the run may stop there
Stop = Callable[[Request], bool]
PROGRESS_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """A result and the records behind it."""

    result: ServingResult
    collector: Collector
    cluster: Cluster


def simulate(
    deployment: Deployment, step_time: StepTime | Sequence[StepTime], k_by_streams: Sequence[int], draws: Draws,
    workload: Iterator[Request] | ClosedLoop, *, until_s: float = math.inf, warmup_s: float | None = None,
    slo: Slo | None = None, seed: int = 0, class_names: Sequence[str] = ("all",),
    notices: Callable[[], Sequence[str]] = tuple, progress: Progress | None = None, stop: Stop | None = None,
    collector: Collector | None = None,
) -> Run:  # fmt: skip
    """Simulate until `until_s`, or until the workload is over and every request has ended.

    `workload` is an iterator of requests in order of arrival, or users in a closed loop. `warmup_s` None finds the
    warm-up (MSER-5 on time in the system). Ctrl-C ends the run early; the result then says `interrupted`. `notices`
    are asked after the run and become warnings; `stop` may end it; `collector` replaces the observer of the run.
    Raises TrafficError when a closed loop has neither a limit nor an end.
    """
    closed = workload if isinstance(workload, ClosedLoop) else None
    if closed is not None and closed.limit is None and until_s == math.inf:
        raise TrafficError("a closed loop never ends by itself: give it a number of requests or a duration.")
    env = simpy.Environment()
    collector = collector or (_WithProgress(progress) if progress else Collector())
    times = step_time if isinstance(step_time, Sequence) else [step_time]
    given_up = [0]

    halted = [False]

    def halt(_: object = None) -> None:
        halted[0] = True

    def ended(request: Request) -> None:
        if stop is not None and stop(request):
            halt()
        if closed is not None:
            follow(closed, request)

    def follow(closed: ClosedLoop, request: Request) -> None:
        if request.status == REFUSED:
            given_up[0] += 1  # the same request would be refused for ever
            return
        upcoming = closed.follow(request, env.now)
        if upcoming is None:
            return
        if upcoming.arrival_s <= env.now:
            cluster.submit(upcoming)
        else:
            env.timeout(upcoming.arrival_s - env.now).callbacks.append(lambda _: cluster.submit(upcoming))

    listens = closed is not None or stop is not None
    cluster = Cluster(env, deployment, times, k_by_streams, draws, collector, ended if listens else None)
    env.process(_feed(env, closed.start() if closed is not None else workload, cluster))  # type: ignore[arg-type]
    interrupted = False
    if until_s < math.inf:
        env.timeout(until_s).callbacks.append(halt)
    try:
        while not halted[0]:
            env.step()
    except simpy.core.EmptySchedule:
        pass
    except KeyboardInterrupt:
        interrupted = True
    collector.close(sorted(cluster.live.values(), key=lambda r: r.index), env.now)
    warnings = list(notices())
    if given_up[0]:
        warnings.append(
            f"{given_up[0]} users gave up: their request can never fit into the KV memory or the context limit."
        )
    result = analyse(
        collector, cluster, warmup_s=warmup_s, slo=slo, seed=seed, class_names=class_names, interrupted=interrupted,
        open_loop=closed is None, warnings=warnings,
    )  # fmt: skip
    return Run(result, collector, cluster)


def _feed(env: simpy.Environment, requests: Iterator[Request], cluster: Cluster) -> Process:
    for request in requests:
        wait_s = request.arrival_s - env.now
        if wait_s > 0:
            yield env.timeout(wait_s)
        cluster.submit(request)
    # A generator must yield to be a process; an empty workload ends here.
    yield env.timeout(0)


class _WithProgress(Collector):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def ended(self, request: Request, now_s: float) -> None:
        super().ended(request, now_s)
        if len(self.requests) % PROGRESS_EVERY == 0:
            self._progress(now_s, len(self.requests))
