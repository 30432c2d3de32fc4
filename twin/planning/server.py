"""An option of a study, made ready to serve: lane, step table, acceptance, limits; and its workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from twin.acceptance.model import Acceptance
from twin.acceptance.schedule import Schedule, fixed, parse_schedule
from twin.acceptance.traffic import TrafficClass
from twin.errors import PolicyError, TrafficError, nearest
from twin.lane.capacity import require_fit
from twin.lane.catalogue import lane_sha256, load_lane
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.lane.sourced import Strict
from twin.planning.predict import Predictor, make_predictor
from twin.planning.study import Arrivals, Extent, Option, TrafficShare
from twin.routing.batch import RoutingNoise
from twin.serving.arrivals import Rate, arrival_times
from twin.serving.config import Deployment, Limits
from twin.serving.draws import DrawSource
from twin.serving.lane import LaneProfiles, k_for_streams, lane_deployment, lane_limits, lane_profiles, lane_step_time
from twin.serving.request import Request
from twin.serving.result import Slo
from twin.serving.simulate import Progress, Run, Stop, simulate
from twin.serving.steptime import NoisyStepTime, StepTime, TableStepTime
from twin.serving.trace import Trace, replay
from twin.serving.trace_formats import open_trace
from twin.serving.workload import ClosedLoop, FixedLength, RequestMaker, Source, open_loop
from twin.step.model import routing_shape

#: Samples of the posterior and of routing behind a tabulated step time: its mean is within 0.2 % of a thousand's.
SAMPLES = 200
DEFAULT_SEQS = 32


@dataclass(frozen=True)
class Server:
    """A deployment that can be simulated any number of times. `relative_sd` is how unsure its speed is (one sigma)."""

    option: Option
    lane: Lane
    predictors: tuple[Predictor, ...]
    shares: tuple[TrafficShare, ...]
    schedule: Schedule
    verification: str
    deployment: Deployment
    k_by_streams: tuple[int, ...]
    table: TableStepTime
    profiles: LaneProfiles
    relative_sd: float
    warnings: tuple[str, ...] = field(default=())

    @property
    def limits(self) -> Limits:
        """The limits of one replica."""
        return self.deployment.limits

    def acceptance(self, traffic: TrafficClass, k: int) -> Acceptance:
        """Acceptance of a class of the mix at draft length k."""
        index = [p.traffic.name for p in self.predictors].index(traffic.name)
        return self.predictors[index].acceptance(k, self.verification)

    def sources(self) -> list[Source]:
        """The mix as the workload needs it."""
        return [_source(share, p.traffic) for share, p in zip(self.shares, self.predictors, strict=True)]

    def draws(self, seed: int) -> DrawSource:
        """Fresh acceptance draws."""
        return self.profiles.draws(seed)


def make_server(option: Option, shares: Sequence[TrafficShare], roots: Sequence[Path], *, seed: int = 0) -> Server:
    """Look everything up and build the step table. Raises TwinError for what cannot be."""
    lane = override(load_lane(option.lane, roots), option.set)
    require_fit(lane)
    # The same class may come twice, with other lengths; it is one class to the step model.
    predictors = tuple(
        make_predictor(lane, s.name, roots, calibration=option.calibration, seed=seed, samples=SAMPLES) for s in shares
    )
    schedule = _schedule(option, lane)
    covered = schedule.max_streams if schedule.max_streams < 65_536 else DEFAULT_SEQS
    max_seqs = option.max_seqs or covered
    rule = option.verification or lane.policy.verification
    limits = _checked(lambda changes: lane_limits(lane, max_seqs=max_seqs, **changes), option.limits, Limits, "limits")
    values = predictors[0].values
    deployment = _checked(
        lambda changes: lane_deployment(lane, values, limits, **changes), option.deployment, Deployment, "deployment"
    )
    ks = k_for_streams(schedule, limits.max_seqs)
    by_name = {p.traffic.name: p for p in predictors}

    def acceptance(traffic: TrafficClass, k: int) -> Acceptance:
        return by_name[traffic.name].acceptance(k, rule)

    noise = RoutingNoise.draw(seed, routing_shape(lane).layers, SAMPLES)
    weights = [s.weight for s in shares]
    if sum(weights) <= 0:
        raise TrafficError("a mix needs at least one class with a weight above 0.")
    classes = [(p.traffic, w) for p, w in zip(predictors, weights, strict=True) if w > 0]
    table = lane_step_time(lane, classes, values, noise, acceptance, k_by_streams=ks, limits=limits)
    accepted = [acceptance(p.traffic, k) for p in predictors for k in sorted(set(ks))]
    return Server(
        option, lane, predictors, tuple(shares), schedule, rule, deployment, tuple(ks), table,
        lane_profiles([p.traffic for p in predictors], acceptance, ks), _relative_sd(predictors[0], accepted),
        tuple(dict.fromkeys(w for a in accepted for w in a.warnings)),
    )  # fmt: skip


def _schedule(option: Option, lane: Lane) -> Schedule:
    if option.k is not None:
        return fixed(option.k)
    if option.schedule is not None:
        return parse_schedule(option.schedule)
    return parse_schedule(lane.policy.schedule) if lane.policy.schedule is not None else fixed(lane.policy.k)


def _relative_sd(predictor: Predictor, accepted: Sequence[Acceptance]) -> float:
    """One sigma of the lane's speed: boot noise, scatter of receipts, and the mean of acceptance."""
    engine_sd = math.hypot(predictor.lane.engine.boot_noise.value, predictor.calibration.residual_log_sd)
    return math.hypot(engine_sd, max((a.relative_sd for a in accepted), default=0.0))


def _checked(make: Callable[[dict[str, Any]], Any], changes: dict[str, Any], model: type[Strict], what: str) -> Any:
    try:
        return make(changes)
    except TypeError:
        raise PolicyError(f"{what}: the lane states max_seqs by itself; set it beside the option's lane.") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unknown key; {nearest(key, model.model_fields)}"
        raise PolicyError(f"{what}.{key}: {message}" if key else f"{what}: {message}") from None


def _source(share: TrafficShare, traffic: TrafficClass) -> Source:
    return Source(
        name=share.name,
        prompt=FixedLength(share.prompt_tokens) if share.prompt_tokens else traffic.length.prompt,
        output=FixedLength(share.output_tokens) if share.output_tokens else traffic.length.output,
        weight=share.weight,
        priority=share.priority,
        timeout_s=share.timeout if share.timeout is not None else math.inf,
        first_token_timeout_s=share.first_token_timeout if share.first_token_timeout is not None else math.inf,
        shared_prefix_tokens=share.shared_prefix_tokens,
    )


def serve(
    server: Server, arrivals: Arrivals, extent: Extent, *, seed: int = 0, slo: Slo | None = None,
    progress: Progress | None = None, speed: float = 1.0, replicas: int | None = None,
    stop: Stop | None = None,
) -> Run:  # fmt: skip
    """Simulate a server under a workload.

    With the same seed the same requests come, at a higher rate only closer together. `speed` divides every step time;
    `stop` ends the run early.
    Raises TrafficError when nothing says when the run ends.
    """
    deployment = server.deployment if replicas is None else server.deployment.model_copy(update={"replicas": replicas})
    draws = server.draws(seed)
    trace = open_trace(Path(arrivals.trace)) if arrivals.kind == "trace" and arrivals.trace else None
    limits = deployment.limits
    if trace is not None and trace.block_tokens and limits.prefix_block_tokens:
        limits = limits.model_copy(update={"prefix_block_tokens": trace.block_tokens})
        deployment = deployment.model_copy(update={"limits": limits})
    maker = RequestMaker(
        server.sources(), seed, draws=draws, prefix_block_tokens=limits.prefix_block_tokens,
        max_context_tokens=limits.max_context_tokens,
    )  # fmt: skip
    workload = _workload(arrivals, extent, maker, trace, limits, seed)
    step_time: StepTime = server.table if speed == 1.0 else NoisyStepTime(server.table, repeat(1.0 / speed))
    # Open arrivals stop at the duration and the server drains; a closed loop is cut off there.
    until_s = math.inf
    if isinstance(workload, ClosedLoop) and extent.duration is not None:
        until_s = extent.duration
    warmup_s = extent.warmup if extent.warmup is not None else (0.0 if trace is not None else None)
    return simulate(
        deployment, step_time, server.k_by_streams, draws, workload, until_s=until_s, warmup_s=warmup_s, slo=slo,
        seed=seed, class_names=[s.name for s in server.shares], progress=progress, stop=stop,
        notices=(lambda: [*server.warnings, *trace.notices()]) if trace is not None else (lambda: server.warnings),
    )  # fmt: skip


def _workload(
    arrivals: Arrivals, extent: Extent, maker: RequestMaker, trace: Trace | None, limits: Limits, seed: int
) -> Iterator[Request] | ClosedLoop:
    until_s = extent.duration if extent.duration is not None else math.inf
    if trace is not None:
        rows = replay(
            trace, time_scale=arrivals.time_scale, rate_scale=arrivals.rate_scale, repeat=arrivals.repeat,
            limit=extent.requests, until_s=until_s, seed=seed,
        )  # fmt: skip
        return _from_trace(rows, maker)
    if until_s == math.inf and extent.requests is None:
        raise TrafficError("nothing says when the run ends: give a duration (extent.duration) or extent.requests.")
    if arrivals.kind == "closed":
        return ClosedLoop(
            arrivals.users or 1, maker, think_s=arrivals.think, think=arrivals.think_distribution,
            turns=arrivals.turns, limit=extent.requests, start_over_s=arrivals.start_over, seed=seed,
            prefix_block_tokens=limits.prefix_block_tokens, max_context_tokens=limits.max_context_tokens,
        )  # fmt: skip
    per_s = arrivals.rate or 1.0
    over_time = Rate.constant(per_s)
    if arrivals.ramp_to is not None and arrivals.ramp_over is not None:
        over_time = Rate.ramp(per_s, arrivals.ramp_to, arrivals.ramp_over)
    cv = arrivals.cv if arrivals.kind == "gamma" else 1.0
    times = arrival_times(over_time, np.random.default_rng([seed, 19]), cv=cv)
    return open_loop(times, maker, until_s=until_s, limit=extent.requests)


def _from_trace(rows: Iterator[Any], maker: RequestMaker) -> Iterator[Request]:
    for row in rows:
        traffic, _, _, profile = maker.draw_one()
        yield maker.build(
            row.time_s, traffic, row.prompt_tokens, row.output_tokens, profile=profile, blocks=row.blocks,
            session=row.session,
        )  # fmt: skip


def server_dict(server: Server) -> dict[str, Any]:
    """What was simulated, for JSON: the option, the lane and what it runs with."""
    predictor = server.predictors[0]
    return {
        "option": server.option.name,
        "lane": server.lane.name,
        "lane_sha256": lane_sha256(server.lane),
        "checkpoint": server.lane.checkpoint.name,
        "engine": server.lane.engine.name,
        "calibration": predictor.calibration.name,
        "overrides": list(server.option.set),
        "traffic": [s.model_dump(mode="json") for s in server.shares],
        "schedule": server.schedule.text(),
        "verification": server.verification,
        "deployment": server.deployment.model_dump(mode="json"),
    }
