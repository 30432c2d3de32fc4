"""From the records of a run to its result: the window, the summaries, and what must be said about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twin.serving.cluster import Cluster
from twin.serving.collector import Collector
from twin.serving.request import CANCELLED, FAILED, FINISHED, REFUSED, UNFINISHED
from twin.serving.result import Cache, ClassResult, Counts, Goodput, Little, ServingResult, Slo
from twin.serving.stats import (
    BATCHES,
    Array,
    Summary,
    batch_means,
    drift,
    lag_one,
    mser5,
    number_in_system,
    summarize,
    t95,
)

Columns = dict[str, Array]
#: below so many requests the warm-up is taken to be a tenth of them: too few to find its end
MSER_LEAST = 250
Mask = NDArray[np.bool_]


def analyse(
    collector: Collector, cluster: Cluster, *, warmup_s: float | None, slo: Slo | None, seed: int,
    class_names: Sequence[str], interrupted: bool, open_loop: bool, warnings: list[str],
) -> ServingResult:  # fmt: skip
    """Measure a finished run."""
    columns = collector.requests.measures()
    n = len(collector.requests)
    status = columns["status"]
    counts = Counts(
        collector.arrived_count, *(int((status == s).sum()) for s in (FINISHED, CANCELLED, REFUSED, FAILED, UNFINISHED))
    )
    end_s = float(columns["finish_s"].max()) if n else 0.0
    last_arrival_s = float(columns["arrival_s"].max()) if n else 0.0
    start_s = _warmup(columns, warmup_s, end_s, warnings)
    # A run that drains has a tail without arrivals; it belongs to the latencies but not to the rates.
    stop_s = last_arrival_s if not counts.unfinished and last_arrival_s > start_s else end_s
    inside = columns["arrival_s"] >= start_s
    good = inside & (status == FINISHED)
    finished_s = columns["finish_s"][status == FINISHED]
    levels = collector.timeline.totals(start_s, stop_s)
    span_s = max(stop_s - start_s, 1e-12)
    replicas = [*cluster.replicas, *cluster.prefillers]
    capacity = sum(r.scheduler.kv.capacity_tokens for r in replicas)
    output_tok_s, ci95 = _throughput(collector, start_s, stop_s)
    steady = _steady(columns, start_s, stop_s, open_loop, warnings)
    if counts.refused:
        warnings.append(
            f"{counts.refused} requests were refused: they can never fit into the KV memory or the context limit."
        )
    if n == 0:
        warnings.append("no request arrived; simulate longer, or at a higher rate.")
    if n and counts.unfinished > 0.05 * n:
        warnings.append(
            f"{counts.unfinished} of {n} requests were unfinished at the end; latencies are of those that finished, "
            f"and too low."
        )
    if interrupted:
        warnings.append(f"interrupted after {end_s:.1f} simulated seconds; this is what was done until then.")
    return ServingResult(
        seed=seed, duration_s=end_s, window_s=(start_s, stop_s), requests=counts,
        ttft_s=_summary(columns, "ttft_s", good), tpot_s=_summary(columns, "tpot_s", good),
        itl_s=collector.gaps.summary(start_s), e2e_s=_summary(columns, "e2e_s", good),
        queue_s=_summary(columns, "queue_s", good), classes=_classes(columns, good, class_names),
        offered_per_s=float((inside & (columns["arrival_s"] <= stop_s)).sum()) / span_s,
        finished_per_s=float(((finished_s > start_s) & (finished_s <= stop_s)).sum()) / span_s,
        output_tok_s=output_tok_s, output_tok_s_ci95=ci95, prompt_tok_s=levels["prompt_tokens"],
        goodput=_goodput(columns, inside, slo, span_s), steps=collector.steps,
        utilisation=min(levels["busy"] / len(replicas), 1.0), streams=levels["decoding"],
        in_prefill=levels["prefilling"], waiting=levels["waiting"], kv_mean=levels["kv_tokens"] / capacity,
        kv_peak=collector.timeline.kv_peak_tokens / max(r.scheduler.kv.capacity_tokens for r in replicas),
        preemptions=sum(r.scheduler.preemptions for r in replicas), cache=_cache(cluster),
        little=_little(collector, columns, end_s), steady=steady, interrupted=interrupted, warnings=tuple(warnings),
    )  # fmt: skip


def _warmup(columns: Columns, warmup_s: float | None, end_s: float, warnings: list[str]) -> float:
    if warmup_s is not None:
        if warmup_s >= end_s > 0:
            warnings.append(
                f"the warm-up of {warmup_s:g} s is longer than the run of {end_s:.3g} s; nothing was left out."
            )
            return 0.0
        return warmup_s
    if not len(columns["arrival_s"]):
        return 0.0
    # Lengths are spread over decades, so the rule looks at the logarithm of the time in system.
    n = len(columns["arrival_s"])
    dropped = mser5(np.log(np.maximum(columns["e2e_s"], 1e-9))) if n >= MSER_LEAST else n // 10
    if dropped is None:
        warnings.append("no end of the warm-up was found (MSER-5); the first half was left out. Simulate longer.")
        dropped = n // 2
    return float(columns["arrival_s"][dropped]) if dropped else 0.0


def _throughput(collector: Collector, start_s: float, stop_s: float) -> tuple[float, float | None]:
    """Output tokens a second in the window, and the half width of its 95 % interval from batches of bins."""
    timeline = collector.timeline.columns()
    inside = (timeline["time_s"] >= start_s) & (timeline["time_s"] + collector.timeline.bin_s <= stop_s)
    per_bin = timeline["output_tokens"][inside]
    mean = collector.timeline.totals(start_s, stop_s)["output_tokens"]
    means = batch_means(per_bin)
    if means is None:
        return mean, None
    return mean, float(t95(BATCHES - 1) * means.std(ddof=1) / math.sqrt(BATCHES))


def _steady(columns: Columns, start_s: float, stop_s: float, open_loop: bool, warnings: list[str]) -> bool:
    if stop_s - start_s <= 1e-9:
        return False
    edges = np.linspace(start_s, stop_s, BATCHES + 1)
    moved = drift(number_in_system(columns["arrival_s"], columns["finish_s"], edges)) if open_loop else None
    if moved is not None:
        warnings.append(
            f"not steady: on average {moved[0]:.1f} requests were in the system in the first half and {moved[1]:.1f} "
            f"in the second; means depend on how long it runs. The rate may be above what the lane sustains."
        )
        return False
    means = batch_means(columns["e2e_s"][columns["arrival_s"] >= start_s])
    if means is None:
        warnings.append(
            f"fewer than {2 * BATCHES} requests in the window: no intervals, and no say on whether it is steady."
        )
        return False
    if lag_one(means) > 0.5:
        warnings.append(
            "the batches are correlated (lag one above 0.5): the intervals are too narrow. Simulate longer."
        )
    return True


def _summary(columns: Columns, name: str, chosen: Mask) -> Summary:
    values = columns[name][chosen]
    return summarize(values[~np.isnan(values)])


def _classes(columns: Columns, good: Mask, names: Sequence[str]) -> tuple[ClassResult, ...]:
    if len(names) < 2:
        return ()
    results = []
    for i, name in enumerate(names):
        mine = good & (columns["traffic"] == i)
        ttft_s, tpot_s, e2e_s = (_summary(columns, m, mine) for m in ("ttft_s", "tpot_s", "e2e_s"))
        results.append(ClassResult(name, int(mine.sum()), ttft_s, tpot_s, e2e_s))
    return tuple(results)


def _goodput(columns: Columns, inside: Mask, slo: Slo | None, span_s: float) -> Goodput | None:
    if slo is None:
        return None
    met = inside & (columns["status"] == FINISHED)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        limit = getattr(slo, name)
        if limit is not None:
            values = columns[name]
            met &= (values <= limit) | np.isnan(values)  # one token has no TPOT to miss
    asked = max(int(inside.sum()), 1)
    tokens = float(columns["emitted_tokens"][met].sum())
    return Goodput(slo, float(met.sum()) / asked, float(met.sum()) / span_s, tokens / span_s)


def _cache(cluster: Cluster) -> Cache | None:
    schedulers = [r.scheduler for r in (*cluster.replicas, *cluster.prefillers)]
    if not any(s.kv.block_tokens for s in schedulers):
        return None
    asked = sum(s.looked_up_tokens for s in schedulers)
    hits, host = sum(s.hit_tokens for s in schedulers), sum(s.host_hit_tokens for s in schedulers)
    return Cache(asked, hits / max(asked, 1), host / max(asked, 1))


def _little(collector: Collector, columns: Columns, end_s: float) -> Little:
    """L = lambda W over the whole run, from two independent records."""
    if end_s <= 0:
        return Little(0.0, 0.0, 0.0)
    in_system = collector.in_system_area / end_s
    rate_times_sojourn = float(columns["e2e_s"].sum()) / end_s
    error = abs(in_system - rate_times_sojourn) / rate_times_sojourn if rate_times_sojourn else 0.0
    return Little(in_system, rate_times_sojourn, error)
