"""Steps in a kernel trace, found from repetition.

A decode step launches the same kernels in the same order every time, so the sequence of kernel names on the busiest
stream repeats with a period P. Candidate periods are the distances between occurrences of rare kernels; the score of a
period is the share of positions i with name[i] = name[i + P]. Layers repeat too, but the start and the end of a step
break a period of one layer, so the step has the highest score; among equal scores the shortest period wins. A step
begins at the kernel with the largest typical gap before it. All of this is reported with the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.errors import IngestError
from twin.ingest.kernel_class import kernel_class

#: about 200 bytes each while steps are looked for; a step of a large model has two thousand
MAX_KERNELS = 2_000_000
#: positions compared when scoring a period
_SAMPLE = 400_000
_MIN_SCORE = 0.6
#: periods within this of the best score count as equal
_TIE = 0.005


@dataclass
class Kernels:
    """A kernel timeline: parallel arrays, times in ns. `launches` are start times of launch calls by API name."""

    names: list[str]
    name: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    device: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int64]
    launches: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Period:
    """The kernels of a step, how well the sequence repeats with it, and the next best candidate."""

    kernels: int
    score: float
    runner_up: int
    runner_up_score: float


@dataclass(frozen=True)
class Steps:
    """Per-step figures, medians over `count` regular steps, seconds; `evidence` says how the steps were found."""

    count: int
    irregular: int
    kernels: int
    step_s: float
    spread: float
    stages_s: dict[str, float]
    idle_s: float
    gap_s: float
    off_stream_s: float
    launches: dict[str, float]
    evidence: dict[str, Any]
    largest: list[dict[str, Any]]


def find_period(ids: npt.NDArray[np.int32]) -> Period | None:
    """The period of a sequence of kernel ids, or None when nothing repeats."""
    ids = ids[:_SAMPLE]
    n = len(ids)
    if n < 6:
        return None
    counts = np.bincount(ids)
    candidates: set[int] = set()
    rare = [i for i in np.argsort(counts, kind="stable") if counts[i] >= 3][:16]
    for kernel in rare:
        at = np.flatnonzero(ids == kernel)
        for together in (1, 2, 3):
            gaps = at[together:] - at[:-together]
            values, often = np.unique(gaps, return_counts=True)
            candidates |= {int(v) for v in values[np.argsort(-often, kind="stable")[:3]] if 2 * v <= n}
    scored = sorted(
        ((float(np.mean(ids[:-p] == ids[p:])), p) for p in candidates if p > 0), key=lambda s: (-s[0], s[1])
    )
    if not scored or scored[0][0] < _MIN_SCORE:
        return None
    best = scored[0][0]
    score, period = min(((s, p) for s, p in scored if s >= best - _TIE), key=lambda s: s[1])
    others = [(s, p) for s, p in scored if p % period]
    return Period(period, score, others[0][1] if others else 0, others[0][0] if others else 0.0)


def find_steps(kernels: Kernels, where: str) -> Steps:
    """Steps of the busiest stream of the busiest device. Raises IngestError when nothing repeats."""
    order = np.lexsort((kernels.end_ns, kernels.start_ns))
    device_all, stream_all = kernels.device[order], kernels.stream[order]
    devices, busy = np.unique(device_all, return_counts=True)
    device = int(devices[np.argmax(busy)])
    here = order[device_all == device]
    streams, load = np.unique(stream_all[device_all == device], return_counts=True)
    main = int(streams[np.argmax(load)])
    on_main = here[kernels.stream[here] == main]
    ids = kernels.name[on_main]
    period = find_period(ids)
    if period is None:
        raise IngestError(
            f"{where}: {len(ids):,} kernels on the busiest stream, and no sequence of them repeats; trace at least "
            "five decode steps at a steady load."
        )
    starts, ends = kernels.start_ns[on_main], kernels.end_ns[on_main]
    anchor, at = _anchor(ids, period.kernels)
    regular = np.flatnonzero(np.diff(at) == period.kernels)
    if len(regular) < 3:
        raise IngestError(
            f"{where}: fewer than three whole steps of {period.kernels} kernels; trace more decode steps."
        )
    gaps = starts[1:] - np.maximum.accumulate(ends)[:-1]
    offset = _offset(gaps, at[regular], period.kernels)
    first = at[regular] + offset
    first = first[first + period.kernels < len(starts)]
    begin, finish = starts[first], starts[first + period.kernels]
    step_ns = finish - begin
    middle = float(np.median(step_ns))
    near = np.abs(step_ns - middle) <= 0.5 * middle
    first, begin, finish, step_ns = first[near], begin[near], finish[near], step_ns[near]
    if len(first) < 3:
        raise IngestError(
            f"{where}: fewer than three steps of similar length; trace more decode steps at a steady load."
        )
    inside = first[:, None] + np.arange(period.kernels)[None, :]
    durations = np.maximum(0, ends - starts)[inside]
    classes = np.array([kernel_class(kernels.names[i]) for i in ids[inside[0]]])
    stages = {
        name: float(np.median(durations[:, classes == name].sum(axis=1))) * 1e-9
        for name in dict.fromkeys(classes.tolist())
    }
    off, idle = _other_streams(kernels, here, begin, finish)
    spread = 1.4826 * float(np.median(np.abs(step_ns - np.median(step_ns)))) / float(np.median(step_ns))
    return Steps(
        count=len(first),
        irregular=len(at) - 1 - len(first),
        kernels=period.kernels,
        step_s=float(np.median(step_ns)) * 1e-9,
        spread=spread,
        stages_s=stages,
        idle_s=idle,
        gap_s=float(np.median(np.maximum(0, gaps))) * 1e-9,
        off_stream_s=off,
        launches={
            api: float(np.median(_count(times, begin, finish))) for api, times in kernels.launches.items() if len(times)
        },
        evidence={
            "device": device,
            "stream": main,
            "period_kernels": period.kernels,
            "match": round(period.score, 4),
            "next_best_period": period.runner_up,
            "next_best_match": round(period.runner_up_score, 4),
            "anchor_kernel": kernels.names[anchor][:120],
            "first_kernel_of_step": kernels.names[int(ids[first[0]])][:120],
            "first_boundaries_us": [round(float(b - begin[0]) * 1e-3, 3) for b in begin[:6]],
        },
        largest=_largest(kernels.names, ids[inside[0]], durations),
    )


def _anchor(ids: npt.NDArray[np.int32], period: int) -> tuple[int, npt.NDArray[np.int64]]:
    """The kernel whose occurrences are most often exactly one period apart, and where it occurs."""
    counts = np.bincount(ids)
    expected = len(ids) / period
    near = [int(i) for i in np.argsort(np.abs(counts - expected), kind="stable")[:16] if counts[i] >= 2]
    best, found, at = -1, 0, np.array([], dtype=np.int64)
    for kernel in near:
        where = np.flatnonzero(ids == kernel)
        whole = int(np.sum(np.diff(where) == period))
        if whole > best:
            best, found, at = whole, kernel, where
    return found, at


def _offset(gaps: npt.NDArray[np.int64], anchors: npt.NDArray[np.int64], period: int) -> int:
    """How many kernels after the anchor a step begins: before the largest typical gap, else at the anchor."""
    usable = anchors[(anchors >= 1) & (anchors + period <= len(gaps))][:2000]
    if len(usable) < 3:
        return 0
    typical = np.median(gaps[usable[:, None] - 1 + np.arange(period)[None, :]], axis=0)
    largest = int(np.argmax(typical))
    return largest if typical[largest] > 2 * max(1.0, float(np.median(typical))) else 0


def _other_streams(
    kernels: Kernels, here: npt.NDArray[np.int64], begin: npt.NDArray[np.int64], finish: npt.NDArray[np.int64]
) -> tuple[float, float]:
    """Mean kernel time on other streams and mean time with no kernel on any stream, per step, seconds."""
    starts, ends = kernels.start_ns[here], np.maximum(kernels.end_ns[here], kernels.start_ns[here])
    # Union of all busy spans: a span counts from where everything before it had ended.
    reach = np.concatenate([[starts[0]], np.maximum.accumulate(ends)[:-1]])
    busy = np.maximum(0, ends - np.maximum(starts, reach))
    total = np.concatenate([[0], np.cumsum(busy)])
    each = np.concatenate([[0], np.cumsum(ends - starts)])
    low, high = np.searchsorted(starts, begin), np.searchsorted(starts, finish)
    union, work = total[high] - total[low], each[high] - each[low]
    idle = np.maximum(0, (finish - begin) - union)
    return float(np.mean(np.maximum(0, work - union))) * 1e-9, float(np.mean(idle)) * 1e-9


def _count(
    times: npt.NDArray[np.int64], begin: npt.NDArray[np.int64], finish: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    times = np.sort(times)
    found: npt.NDArray[np.int64] = np.searchsorted(times, finish) - np.searchsorted(times, begin)
    return found


def _largest(names: list[str], ids: npt.NDArray[np.int32], durations: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    mean = durations.mean(axis=0)
    rows = []
    for kernel in np.unique(ids):
        at = ids == kernel
        rows.append(
            {
                "kernel": names[int(kernel)][:120],
                "class": kernel_class(names[int(kernel)]),
                "per_step": int(at.sum()),
                "us_per_step": round(float(mean[at].sum()) * 1e-3, 3),
            }
        )
    return sorted(rows, key=lambda row: -float(str(row["us_per_step"])))[:20]
