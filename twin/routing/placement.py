"""Static hot sets: which experts stay in fast memory, and how many a step still finds outside.

A hot map holds, for each layer, the experts that are hot; the others are cold. It is made from the popularity counted
on one traffic and serves another. For a traffic with probability pi_i to choose expert i, a step of S streams with m
rows each touches

    cold experts = sum over cold i of 1 - (1 - pi_i)^(S' m),     S' = S^(g + (1 - g) diversity)

(rows, not independent tokens: measured cold experts repeat no more than popularity explains). The interval has the
sampling of the step and the uncertainty of the counts (a Dirichlet posterior, half a route added to every expert).

A map judged on the counts it was made from looks better than it will serve. `thinned` splits counts at random into
two independent halves, one to make a map and one to judge it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twin.errors import IngestError
from twin.routing.batch import SHARED_PROMPT_EXPONENT, Array
from twin.routing.counts import MAX_BYTES, MAX_EXPERTS, MAX_LAYERS, RoutingCounts

SCHEMA_VERSION = 1
#: A layer with fewer routes than this an expert ranks noise (0xBakeer docs/keep-sets.md: about 31 stops being thin).
THIN_ROUTES_PER_EXPERT = 30.0


@dataclass(frozen=True)
class HotMap:
    """Which experts are hot: a mask of shape (layers, experts), and the counts it was made from."""

    hot: NDArray[np.bool_]
    calibrated_on: str = ""
    sha256: str = ""

    @property
    def layers(self) -> int:
        return int(self.hot.shape[0])

    @property
    def experts(self) -> int:
        return int(self.hot.shape[1])

    @property
    def hot_per_layer(self) -> float:
        """Mean number of hot experts a layer."""
        return float(self.hot.sum(axis=1).mean())


@dataclass(frozen=True)
class ColdForecast:
    """What a step finds outside the hot set, each of shape (layers,): share of routes, cold experts, 95 % interval."""

    share: Array
    cold: Array
    low: Array
    high: Array
    #: mean over layers of the cold experts, and its 95 % interval for the counts' uncertainty alone
    mean: float
    mean_low: float
    mean_high: float


def hot_map(counts: RoutingCounts, hot_per_layer: int, *, even: bool = True) -> HotMap:
    """The most popular experts: `hot_per_layer` in every layer, or (even=False) the same total over all layers.

    Counts of a layer are divided by its routes first. Raises ValueError for a number of hot experts out of range.
    """
    if not 0 <= hot_per_layer <= counts.experts:
        raise ValueError(f"hot experts must lie in 0 .. {counts.experts}, got {hot_per_layer}")
    share = counts.routes / counts.routes.sum(axis=1, keepdims=True)
    hot = np.zeros(share.shape, dtype=bool)
    if even:
        order = np.argsort(-share, axis=1, kind="stable")[:, :hot_per_layer]
        np.put_along_axis(hot, order, True, axis=1)
    else:
        hot.ravel()[np.argsort(-share.ravel(), kind="stable")[: hot_per_layer * counts.layers]] = True
    return HotMap(hot, counts.source, hashlib.sha256(np.ascontiguousarray(counts.routes).tobytes()).hexdigest())


def positional_hot_map(layers: int, experts: int, hot_per_layer: int) -> HotMap:
    """The first experts by number: what an engine does without any counts. For a router it is a random map."""
    return HotMap(np.tile(np.arange(experts) < hot_per_layer, (layers, 1)), "position")


def cold_shares(placed: HotMap, traffic: RoutingCounts) -> Array:
    """Share of the traffic's routes outside the hot set, shape (layers,)."""
    _same_shape(placed, traffic)
    return np.asarray((traffic.routes * ~placed.hot).sum(axis=1) / traffic.routes.sum(axis=1))


def forecast(
    placed: HotMap, traffic: RoutingCounts, top_k: int, *, streams: int, rows: float, diversity: float = 1.0,
    draws: int = 400, seed: int = 0,
) -> ColdForecast:  # fmt: skip
    """Cold experts of a step of `streams` streams with `rows` verified rows each, on this traffic."""
    _same_shape(placed, traffic)
    tokens = streams ** (SHARED_PROMPT_EXPONENT + (1.0 - SHARED_PROMPT_EXPONENT) * diversity) * rows
    rng = np.random.default_rng(seed)
    cold = ~placed.hot
    means, counted = np.empty(draws), np.empty((draws, placed.layers))
    for draw in range(draws):
        touched = _touched(rng.gamma(traffic.routes + 0.5), top_k, tokens) * cold
        means[draw] = touched.sum(axis=1).mean()
        counted[draw] = (rng.random(touched.shape) < touched).sum(axis=1)
    center = (_touched(traffic.routes, top_k, tokens) * cold).sum(axis=1)
    low, high = np.quantile(counted, (0.025, 0.975), axis=0)
    # Half a route for every expert shifts thin counts; the interval is kept around the counts as they are.
    mean_low, mean_high = np.quantile(means - means.mean() + center.mean(), (0.025, 0.975))
    return ColdForecast(
        share=cold_shares(placed, traffic), cold=center, low=low, high=high, mean=float(center.mean()),
        mean_low=float(mean_low), mean_high=float(mean_high),
    )  # fmt: skip


def thinned(counts: RoutingCounts, *, seed: int = 0) -> tuple[RoutingCounts, RoutingCounts]:
    """Two independent halves of the counts: every route goes to one of them by a coin."""
    whole = np.rint(counts.routes).astype(np.int64)
    first = np.random.default_rng(seed).binomial(whole, 0.5)
    halves = (np.maximum(half.astype(float), 0.0) for half in (first, whole - first))
    one, other = (RoutingCounts(half, counts.source) for half in halves)
    if min(one.routes.sum(axis=1).min(), other.routes.sum(axis=1).min()) <= 0:
        raise ValueError("a layer has too few routes to be split into two halves")
    return one, other


def thin_layers(counts: RoutingCounts) -> list[int]:
    """Layers counted so little that their ranking is mostly noise."""
    return [int(i) for i in np.flatnonzero(counts.routes.sum(axis=1) < THIN_ROUTES_PER_EXPERT * counts.experts)]


def map_json(placed: HotMap) -> str:
    """The map as JSON text."""
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION, "kind": "hot_map", "layers": placed.layers, "experts": placed.experts,
            "calibrated_on": placed.calibrated_on, "counts_sha256": placed.sha256,
            "hot": [np.flatnonzero(row).tolist() for row in placed.hot],
        }
    ) + "\n"  # fmt: skip


def read_map(path: Path) -> HotMap:
    """Read a map written by `map_json`. Raises IngestError naming file and place."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IngestError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; a hot map is smaller.")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IngestError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{path}: not JSON ({error}).") from None
    if not isinstance(data, dict) or data.get("kind") != "hot_map":
        raise IngestError(f"{path}: not a hot map; `twin placement COUNTS --hot N --out map.json` writes one.")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise IngestError(
            f"{path}: schema_version {data.get('schema_version')!r}; this version reads {SCHEMA_VERSION}."
        )
    experts, rows = data.get("experts"), data.get("hot")
    if not isinstance(experts, int) or not isinstance(rows, list):
        experts, rows = 0, []
    if not 1 <= experts <= MAX_EXPERTS or not 1 <= len(rows) <= MAX_LAYERS:
        raise IngestError(f"{path}: a hot map has `experts` and one list of hot experts a layer under `hot`.")
    hot = np.zeros((len(rows), experts), dtype=bool)
    for layer, row in enumerate(rows):
        if not isinstance(row, list) or not all(isinstance(e, int) and 0 <= e < experts for e in row):
            raise IngestError(f"{path}: layer {layer}: hot experts are whole numbers from 0 to {experts - 1}.")
        hot[layer, row] = True
    return HotMap(hot, str(data.get("calibrated_on", "")), str(data.get("counts_sha256", "")))


def pooled(parts: Sequence[RoutingCounts]) -> RoutingCounts:
    """Several traffics as one: every part has one vote a layer, whatever its length."""
    share = sum(part.routes / part.routes.sum(axis=1, keepdims=True) for part in parts)
    total = float(np.mean([part.routes.sum(axis=1).mean() for part in parts])) * len(parts)
    return RoutingCounts(np.asarray(share / len(parts) * total), " + ".join(part.source for part in parts))


def _touched(routes: Array, top_k: int, tokens: float) -> Array:
    chosen = np.minimum(top_k * routes / routes.sum(axis=1, keepdims=True), 1.0 - 1e-12)
    return np.asarray(-np.expm1(tokens * np.log1p(-chosen)))


def _same_shape(placed: HotMap, traffic: RoutingCounts) -> None:
    if placed.hot.shape != traffic.routes.shape:
        raise IngestError(
            f"the map has {placed.layers} layers of {placed.experts} experts and the counts ({traffic.source}) "
            f"{traffic.layers} of {traffic.experts}; both must come from one checkpoint."
        )
