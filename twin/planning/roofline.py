"""The ceiling of a lane: the bytes a step must move at the bandwidth the lane achieves, and nothing else.

    step >= max over places of (bytes read there / bandwidth there)
    primary: dense weights + output head + hot experts + draft + KV, spread over the ranks
    sidecar or host: the cold experts

No launch, no floor, no hop, no collective, no sampling. What is cold is read at the same time as what is hot.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.planning.draws import Draws, sample
from twin.planning.predict import Interval
from twin.planning.scenario import Resolved
from twin.step.batch import Batch
from twin.step.coefficients import Values, coefficients
from twin.step.costs import draft_s

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Read:
    """One thing that is read in a step: where from, how many GB over all devices there, how long that takes there."""

    what: str
    place: str
    gigabytes: float
    ms: float


@dataclass(frozen=True)
class Roofline:
    """The least step and the most tok/s of all streams; `fraction` is the least step over the predicted one."""

    reads: tuple[Read, ...]
    step_ms: Interval
    tok_s_aggregate: Interval
    fraction: Interval

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def roofline(resolved: Resolved, *, seed: int = 0, samples: int = 1000) -> Roofline:
    """The bandwidth ceiling of one setting, beside what it reaches."""
    lane, request = resolved.lane, resolved.request
    draws = Draws(seed, samples)
    sampled = sample(resolved, seed, samples)
    base = coefficients(lane)
    factors = draws.factors(lane, resolved.predictor.calibration)
    values = Values(base, factors)
    checkpoint, layers = lane.checkpoint, lane.checkpoint.moe_layers.value
    bandwidth = {"primary": values["primary.read_bandwidth"] * lane.ranks}
    hot_bytes = sampled.experts.hot.mean(axis=0) * layers * checkpoint.expert_bytes.value
    cold_bytes = sampled.experts.cold.mean(axis=0) * layers * checkpoint.expert_bytes.value
    kv_bytes = request.concurrency * request.context_tokens * checkpoint.kv_read_bytes_per_token.value
    sizes: list[tuple[str, str, Array]] = [
        ("hot experts", "primary", hot_bytes),
        ("dense weights", "primary", np.full(samples, checkpoint.dense_bytes.value)),
        ("output head", "primary", np.full(samples, checkpoint.head_bytes.value)),
        ("KV", "primary", np.full(samples, kv_bytes)),
    ]
    if request.k > 0 and checkpoint.draft is not None:
        accepted = resolved.predictor.acceptance(request.k, request.verification)
        batch = Batch(request.concurrency, request.k, request.k + 1.0, accepted.tokens_per_step, request.context_tokens)
        reads_only = Values({name: c for name, c in base.items() if name != "draft_overhead"}, factors)
        sizes.append(("draft", "primary", draft_s(lane, reads_only, batch) * bandwidth["primary"] * np.ones(samples)))
    if lane.cold_experts and lane.placement.cold_on == "sidecar":
        sidecars = lane.placement.sidecars.value if lane.placement.sidecars else float(lane.ranks)
        bandwidth["sidecar"] = values["sidecar.read_bandwidth"] * sidecars
        sizes.append(("cold experts", "sidecar", cold_bytes))
    elif lane.cold_experts and lane.placement.cold_on == "host":
        # Cold experts are read over the link, or computed where they lie: the faster of the two bounds both.
        ways = [values["host_link.bandwidth"] * lane.ranks] if "host_link.bandwidth" in values else []
        ways += [lane.devices["host"].read_bandwidth.value] if "host" in lane.devices else []
        bandwidth["host"] = np.maximum.reduce([way * np.ones(samples) for way in ways])
        sizes.append(("cold experts", "host", cold_bytes))
    by_place = {place: np.zeros(samples) for place in bandwidth}
    reads = []
    for what, place, size in sizes:
        seconds = size / bandwidth[place]
        by_place[place] = by_place[place] + seconds
        reads.append(Read(what, place, float(np.mean(size) / 1e9), float(np.mean(seconds) * 1e3)))
    step = np.max(np.stack(list(by_place.values())), axis=0)
    return Roofline(
        reads=tuple(sorted(reads, key=lambda read: (read.place, -read.ms))),
        step_ms=Interval.of(step * 1e3),
        tok_s_aggregate=Interval.of(request.concurrency * sampled.kept / step),
        fraction=Interval.of(step / sampled.times.step_s),
    )
