"""What routing counts say about a hot set: the forecast of a map, other splits, a retrained map, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.routing import ranks as expert_ranks
from twin.routing.batch import Array
from twin.routing.counts import RoutingCounts, RoutingTrace
from twin.routing.placement import (
    ColdForecast,
    HotMap,
    cold_shares,
    forecast,
    hot_map,
    positional_hot_map,
    thinned,
)


@dataclass(frozen=True)
class Step:
    """The step to judge by: streams, verified rows of each, how unrelated the streams are."""

    streams: int = 1
    rows: float = 6.0
    diversity: float = 1.0


@dataclass(frozen=True)
class Split:
    """One size of hot set: cold share of routes (mean over layers) as the counts say it, on counts the map has not
    seen, and cold experts a layer in a step with their 95 % interval."""

    hot: int
    share: float
    share_unseen: float
    cold: float
    low: float
    high: float


@dataclass(frozen=True)
class Retraining:
    """A given map against one made from the traffic itself, of the same size; position is no map at all."""

    share: float
    share_retrained: float
    share_position: float
    cold: float
    cold_retrained: float
    cold_position: float


@dataclass(frozen=True)
class RankLoads:
    """Experts of the busiest rank in a step (mean over layers), by number and dealt out by popularity."""

    ranks: int
    even_share: float
    positional: float
    balanced: float


def judge(placed: HotMap, traffic: RoutingCounts, top_k: int, step: Step) -> ColdForecast:
    """Cold experts a layer of one step under this map."""
    return forecast(placed, traffic, top_k, streams=step.streams, rows=step.rows, diversity=step.diversity)


def splits(counts: RoutingCounts, traffic: RoutingCounts, top_k: int, hot: Sequence[int], step: Step) -> list[Split]:
    """Maps of several sizes made from `counts` and judged on `traffic`.

    When both are the same, the share on unseen routes comes from splitting them into two random halves.
    """
    same = counts is traffic
    train, test = thinned(counts) if same else (counts, traffic)
    found = []
    for size in hot:
        placed = hot_map(counts, size)
        seen = judge(placed, traffic, top_k, step)
        unseen = cold_shares(hot_map(train, size), test)
        found.append(
            Split(size, float(seen.share.mean()), float(unseen.mean()), seen.mean, seen.mean_low, seen.mean_high)
        )
    return found


def retraining(placed: HotMap, traffic: RoutingCounts, top_k: int, step: Step) -> Retraining:
    """What a map made from this traffic would save against the map in place."""
    size = round(placed.hot_per_layer)
    own, position = hot_map(traffic, size), positional_hot_map(placed.layers, placed.experts, size)
    given, best, none = (judge(m, traffic, top_k, step) for m in (placed, own, position))
    return Retraining(
        float(given.share.mean()), float(best.share.mean()), float(none.share.mean()), given.mean, best.mean, none.mean
    )


def rank_loads(traffic: RoutingCounts, top_k: int, ranks: int, step: Step) -> RankLoads:
    """Busiest expert-parallel rank of a step under a positional and a balanced map of the experts."""
    chosen = traffic.chosen(top_k)
    tokens = step.streams * step.rows
    by_number = expert_ranks.positional_map(traffic.experts, ranks)
    positional = [expert_ranks.mean_largest_rank(row, tokens, by_number) for row in chosen]
    balanced = [expert_ranks.mean_largest_rank(row, tokens, expert_ranks.balanced_map(row, ranks)) for row in chosen]
    union = [float(expert_ranks.mean_loads(row, tokens, by_number).sum()) for row in chosen]
    return RankLoads(ranks, float(np.mean(union)) / ranks, float(np.mean(positional)), float(np.mean(balanced)))


def cold_in_blocks(trace: RoutingTrace, placed: HotMap, rows: int) -> Array:
    """Cold experts a layer counted in the trace's own blocks of `rows` tokens, mean, shape (layers,)."""
    layers = trace.experts.shape[1]
    found = np.zeros(layers)
    for layer in range(layers):
        counts = []
        for stream in np.unique(trace.stream):
            ids = trace.experts[trace.stream == stream, layer]
            blocks = ids.shape[0] // rows
            flat = np.sort(ids[: blocks * rows].reshape(blocks, rows * ids.shape[1]), axis=1)
            first = np.diff(flat, axis=1, prepend=-1) != 0
            counts.append((first & ~placed.hot[layer][flat]).sum(axis=1))
        every = np.concatenate(counts)
        found[layer] = float(every.mean()) if every.size else np.nan
    return found
