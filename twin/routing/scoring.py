"""Every row of the union table against the laws, with its relative error: what this layer can be held to.

A stream's locality is fitted per series (model and workload) and every length is then predicted by it; series with
fewer lengths than it takes, layers, caches and batches of streams are predicted by the parameters of their model.
Hit rates are scored in misses: an error of 0.1 means ten per cent more or fewer misses than measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from twin.routing import caches
from twin.routing.batch import RoutingParameters, RoutingShape, layer_profile, mean_unique
from twin.routing.evidence import UnionRow
from twin.routing.fitting import fit_exponent
from twin.routing.law import STREAM_SKEW
from twin.routing.popularity import cold_set

#: Squared coefficient of variation of expert popularity: over many topics pooled (0xBakeer coverage.json), and within
#: one kind of traffic (coding, prose of one language, one topic: the static rows of the same table).
POOLED_SKEW, NARROW_SKEW = 0.75, 2.0
#: How far a map agrees with the traffic served (`popularity.agreement_for`), by what it was made for. Two kinds of
#: narrow traffic (coding and general text) rank experts almost independently.
AGREEMENT = {"own": 1.0, "mixed": 0.7, "other": 0.2}
#: Exponent and popularity of the union law where it is asked far beyond a verify block: the six measured points and
#: the LRU hit rates of the 36-topic trace together (union-180 on), both within 1.5 points.
LONG_BETA, LONG_SKEW = 0.768, 1.5


@dataclass(frozen=True)
class RowScore:
    """One measured row, what the law says, and the relative error (predicted / measured - 1)."""

    row: UnionRow
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class SourceScore:
    """All rows of one source and kind: their number, median and largest absolute relative error."""

    source: str
    kind: str
    rows: int
    median_error: float
    largest_error: float
    worst: RowScore = field(repr=False)


def score_rows(rows: Sequence[UnionRow]) -> list[RowScore]:
    """Predict every row that is not excluded."""
    exponents = _exponents(rows)
    scores = []
    for row in rows:
        if row.kind == "excluded" or row.experts is None or row.top_k is None:
            continue
        if row.unique is not None:
            scores.append(RowScore(row, _union(row, exponents), row.unique))
        elif row.hit_rate is not None and row.slots is not None:
            scores.append(RowScore(row, 1.0 - _hits(row, exponents), 1.0 - row.hit_rate))
    return scores


def by_source(scores: Sequence[RowScore]) -> list[SourceScore]:
    """One line a source and kind, in the order of the table."""
    groups: dict[tuple[str, str], list[RowScore]] = {}
    for s in scores:
        groups.setdefault((s.row.source, s.row.kind), []).append(s)
    return [
        SourceScore(
            source, kind, len(found), median(abs(s.error) for s in found), max(abs(s.error) for s in found),
            max(found, key=lambda s: abs(s.error)),
        )
        for (source, kind), found in groups.items()
    ]  # fmt: skip


def _exponents(rows: Sequence[UnionRow]) -> dict[tuple[str, str], float]:
    """beta by series, and by model (workload "") over all its streams."""
    groups: dict[tuple[str, str], list[UnionRow]] = {}
    for row in rows:
        if row.kind == "stream" and row.experts and row.top_k and row.unique and (row.tokens or 0) > 1:
            groups.setdefault(row.series, []).append(row)
            groups.setdefault((row.model, ""), []).append(row)
    found = {}
    for key, group in groups.items():
        tokens = np.asarray([float(r.tokens or 0) for r in group])
        unique = np.asarray([float(r.unique or 0) for r in group])
        experts, top_k = group[0].experts or 0, group[0].top_k or 0
        if key[1] == "" or np.unique(tokens).size >= 3:
            found[key] = fit_exponent(experts, top_k, tokens, unique).beta
    return found


def _beta(row: UnionRow, exponents: dict[tuple[str, str], float]) -> float:
    return exponents.get(row.series, exponents.get((row.model, ""), 1.0))


def _union(row: UnionRow, exponents: dict[tuple[str, str], float]) -> float:
    assert row.experts is not None and row.top_k is not None and row.tokens is not None
    shape = RoutingShape(40, row.experts, row.top_k)
    if row.kind == "computed":
        return float(caches.stretched_union(row.experts, row.top_k, 1.0)(row.tokens))
    if row.kind == "shuffled":
        # Shuffled tokens keep popularity and lose locality.
        return float(caches.stretched_union(row.experts, row.top_k, 1.0, _skew(row))(row.tokens))
    beta = _beta(row, exponents)
    if row.kind == "layer":
        parameters = RoutingParameters(beta=beta)
        layers = 48 if row.model.startswith("Qwen3-30B") else 40
        z = float(layer_profile(layers)[row.layer or 0])
        exponent = beta + float(np.asarray(parameters.layer_spread)) * z / float(np.log(6.0))
        return float(caches.stretched_union(row.experts, row.top_k, exponent)(row.tokens))
    if row.tokens > 32:
        return float(caches.stretched_union(row.experts, row.top_k, LONG_BETA, LONG_SKEW)(row.tokens))
    parameters = RoutingParameters(beta=beta, layer_spread=0.0, stream_skew=_skew(row))
    return float(mean_unique(shape, parameters, streams=row.streams, accepted_rows=row.tokens, rejected_rows=0))


def _skew(row: UnionRow) -> float:
    """Popularity that unrelated tokens share: 0 for positions drawn at random, the default for streams in step."""
    if row.model.startswith("Qwen1.5"):
        return 0.08 if "random positions" in row.workload or row.kind == "shuffled" else 0.35
    return STREAM_SKEW


def _hits(row: UnionRow, exponents: dict[tuple[str, str], float]) -> float:
    assert row.experts is not None and row.top_k is not None and row.slots is not None
    if row.kind == "static":
        made_for = row.notes.partition("map: ")[2] or "own"
        skew = POOLED_SKEW if "36 topics" in row.workload else NARROW_SKEW
        return 1.0 - cold_set(skew, 1.0 - row.slots / row.experts, AGREEMENT[made_for]).share
    flash = row.model.startswith("DeepSeek-V4.1")
    union = (
        caches.stretched_union(row.experts, row.top_k, LONG_BETA, LONG_SKEW)
        if flash
        else caches.stretched_union(row.experts, row.top_k, _beta(row, exponents) if row.model else LONG_BETA, 0.75)
    )
    hits = caches.lru_hits(union, row.top_k, max(row.slots, row.top_k), block=row.tokens or 1)
    # Qwen3.6 rows count misses a token, the trace's block rows the distinct experts of a block.
    per_token = (row.tokens or 1) == 1 or "misses per token" in row.notes
    return hits.token_hit_rate if per_token else hits.block_hit_rate
