"""Hot sets, popularity laws, caches: measured shares and hit rates, properties, files that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.errors import IngestError
from twin.routing import advice, caches, placement, popularity
from twin.routing.counts import RoutingCounts, RoutingTrace

#: Hit rates of the 36-topic trace of DeepSeek-V4.1-Flash, 115,898 tokens (0xBakeer topics/coverage.json): slots a
#: layer, static top experts, LRU by token, LRU by block of six (distinct experts).
TRACE_HITS = [
    (25.0, 0.2341, 0.6064, 0.3617), (37.5, 0.3032, 0.6855, 0.4694), (50.0, 0.3642, 0.7437, 0.5706),
    (75.0, 0.47, 0.8196, 0.6983), (100.0, 0.5593, 0.8664, 0.7769), (125.0, 0.6366, 0.8999, 0.8328),
    (150.0, 0.7043, 0.9251, 0.8751), (200.0, 0.815, 0.9606, 0.9343),
]  # fmt: skip


def counts_of(seed: int, layers: int = 4, experts: int = 64, routes: int = 40_000, skew: float = 1.0) -> RoutingCounts:
    rng = np.random.default_rng(seed)
    shares = rng.gamma(1 / skew, size=(layers, experts))
    return RoutingCounts(
        np.asarray([rng.multinomial(routes, row / row.sum()) for row in shares], dtype=float), f"seed {seed}"
    )


@pytest.mark.parametrize(("slots", "static", "token", "block"), TRACE_HITS)
def test_cache_formulas_on_the_measured_trace(slots: float, static: float, token: float, block: float) -> None:
    law = caches.stretched_union(384, 6, 0.768, 1.5)
    assert popularity.top_share(0.75, slots / 384) == pytest.approx(static, abs=0.025)
    assert caches.lru_hits(law, 6, slots).token_hit_rate == pytest.approx(token, abs=0.025)
    by_block = caches.lru_hits(law, 6, slots, block=6)
    assert by_block.block_hit_rate == pytest.approx(block, abs=0.025)
    # Misses grow with tokens, not with the block's union: measured within 6 %, and the law takes them as equal.
    assert 22.6 * (1 - block) == pytest.approx(36 * (1 - token), rel=0.06)
    assert by_block.misses_per_block == pytest.approx(6 * caches.lru_hits(law, 6, slots).misses_per_block)


@pytest.mark.parametrize(("hot", "share"), [(192, 0.85), (256, 0.94), (290, 0.97), (320, 0.985)])
def test_top_experts_carry_what_was_measured(hot: int, share: float) -> None:
    # Decode-calibrated map on its own traffic: exponential popularity, within one point.
    assert popularity.top_share(1.0, hot / 384) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("hot", [285, 295])
def test_cold_share_lies_within_the_sources(hot: int) -> None:
    cold = (384 - hot) / 384
    # Own traffic 3 to 5.4 %, other text 10 to 16 %, random ids 20 to 26 % (99 of 384 cold).
    own = popularity.cold_set(1.0, cold, 1.0).share
    narrow = popularity.cold_set(1.0, cold, 0.9).share
    assert 0.028 <= own <= narrow <= 0.056
    other = popularity.cold_set(1.0, cold, popularity.agreement_for(1.0, 99 / 384, 0.13)).share
    assert 0.095 <= other <= 0.16
    assert popularity.cold_set(1.0, cold, 0.0).share == pytest.approx(cold, abs=1e-3)
    assert 0.20 <= popularity.cold_set(1.0, cold, 0.1).share <= 0.26


@given(st.floats(0.05, 4.0), st.floats(0.02, 0.98), st.floats(0.0, 1.0))
def test_cold_share_falls_with_agreement(skew: float, cold: float, agreement: float) -> None:
    share = popularity.cold_set(skew, cold, agreement).share
    assert 0.0 <= share <= cold + 1e-6
    assert share >= popularity.cold_set(skew, cold, 1.0).share - 1e-6
    assert popularity.cold_set(skew, cold, 1.0).share == pytest.approx(
        1 - popularity.top_share(skew, 1 - cold), abs=0.01
    )


def test_skew_of_counts_and_its_limits() -> None:
    counts = counts_of(3, layers=1, experts=2000, routes=2_000_000, skew=1.0)
    assert popularity.skew_of(counts.routes[0]) == pytest.approx(1.0, rel=0.15)
    assert popularity.skew_of(np.random.default_rng(0).poisson(40, size=2000)) < 0.005
    assert popularity.top_share(0.0, 0.3) == 0.3
    with pytest.raises(ValueError, match="at least one"):
        popularity.skew_of(np.zeros(4))


def test_independent_lru_is_che() -> None:
    rng = np.random.default_rng(0)
    p = rng.gamma(0.5, size=60)
    p /= p.sum()
    stack: list[int] = []
    hits = 0
    for expert in rng.choice(60, size=30_000, p=p):
        if expert in stack[:15]:
            hits += 1
        if expert in stack:
            stack.remove(expert)
        stack.insert(0, int(expert))
    assert caches.independent_lru_hits(p, 15) == pytest.approx(hits / 30_000, abs=0.012)
    assert caches.static_hits(p, 15) > caches.independent_lru_hits(p, 15)
    assert caches.independent_lru_hits(p, 60) == 1.0


def test_working_set_identity_on_a_simulated_stream() -> None:
    # An LRU cache over a stream with locality hits as the stream's own union growth says.
    from collections import OrderedDict

    rng = np.random.default_rng(2)
    experts, top_k, tokens = 48, 2, 12_000
    boost = np.zeros(experts)
    ids = np.empty((tokens, top_k), dtype=int)
    for t in range(tokens):
        ids[t] = np.argpartition(boost + rng.gumbel(size=experts), -top_k)[-top_k:]
        boost *= 0.8
        boost[ids[t]] += 1.0
    unions = [np.mean([np.unique(ids[s : s + m]).size for s in range(0, tokens - m, 7)]) for m in range(1, 40)]
    law = lambda m: float(np.interp(m, range(40), [0.0, *unions]))  # noqa: E731
    for slots in (8, 16, 24):
        cache: OrderedDict[int, None] = OrderedDict()
        missed = 0
        for token in ids:
            for expert in token.tolist():
                if expert in cache:
                    cache.move_to_end(expert)
                else:
                    missed += 1
                    cache[expert] = None
                    if len(cache) > slots:
                        cache.popitem(last=False)
        assert caches.lru_hits(law, top_k, slots).token_hit_rate == pytest.approx(1 - missed / ids.size, abs=0.02)


def test_a_map_takes_the_most_popular_of_every_layer() -> None:
    counts = counts_of(0)
    placed = placement.hot_map(counts, 16)
    assert placed.hot.sum(axis=1).tolist() == [16] * 4
    for layer in range(4):
        routes = counts.routes[layer]
        assert routes[placed.hot[layer]].min() >= routes[~placed.hot[layer]].max()
    uneven = placement.hot_map(counts, 16, even=False)
    assert uneven.hot.sum() == 64
    assert placement.cold_shares(uneven, counts).mean() <= placement.cold_shares(placed, counts).mean() + 1e-12


@given(st.integers(0, 64), st.integers(1, 8), st.integers(1, 9))
def test_forecasts_stay_possible(hot: int, streams: int, rows: int) -> None:
    counts = counts_of(1, layers=2)
    found = placement.forecast(placement.hot_map(counts, hot), counts, 4, streams=streams, rows=rows, draws=20)
    assert (found.cold >= 0).all() and (found.cold <= 64 - hot).all()
    assert (found.low <= found.high).all() and found.mean_low <= found.mean + 1e-9 <= found.mean_high + 2e-9


def test_retraining_and_mismatch() -> None:
    counts, other = counts_of(1), counts_of(2)
    placed = placement.hot_map(counts, 48)
    result = advice.retraining(placed, other, 4, advice.Step())
    # Traffics that have nothing to do with each other: the old map is as good as none.
    assert result.share == pytest.approx(result.share_position, abs=0.1)
    assert result.share_retrained < 0.5 * result.share
    assert result.cold_retrained < result.cold
    assert placement.cold_shares(placed, counts).mean() == pytest.approx(1 - popularity.top_share(1.0, 0.75), abs=0.02)


def test_thinned_halves_judge_without_optimism() -> None:
    thin = counts_of(4, routes=600)
    seen = placement.cold_shares(placement.hot_map(thin, 48), thin).mean()
    one, other = placement.thinned(thin, seed=1)
    assert np.array_equal(one.routes + other.routes, thin.routes)
    assert placement.cold_shares(placement.hot_map(one, 48), other).mean() > seen
    assert placement.thin_layers(thin) == [0, 1, 2, 3]


def test_splits_are_monotone() -> None:
    counts = counts_of(5)
    found = advice.splits(counts, counts, 4, [16, 32, 48, 64], advice.Step())
    shares = [s.share for s in found]
    assert shares == sorted(shares, reverse=True) and found[-1].cold == 0.0
    loads = advice.rank_loads(counts, 4, 4, advice.Step(streams=4))
    assert loads.even_share < loads.balanced <= loads.positional


def test_pooling_gives_every_traffic_one_vote() -> None:
    small, large = counts_of(1, routes=1000), counts_of(2, routes=100_000)
    both = placement.pooled([small, large])
    want = (small.routes / 1000 + large.routes / 100_000) / 2
    assert both.routes / both.routes.sum(axis=1, keepdims=True) == pytest.approx(want)


def test_a_map_survives_its_file(tmp_path: Path) -> None:
    placed = placement.hot_map(counts_of(0), 10)
    file = tmp_path / "map.json"
    file.write_text(placement.map_json(placed))
    again = placement.read_map(file)
    assert np.array_equal(again.hot, placed.hot) and again.sha256 == placed.sha256
    with pytest.raises(IngestError, match="both must come from one checkpoint"):
        placement.cold_shares(again, counts_of(0, experts=32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a hot map"), ('{"kind": "hot_map"}', "schema_version"), ("{", "not JSON"),
        ('{"kind": "hot_map", "schema_version": 1, "experts": 4, "hot": [[9]]}', "layer 0"),
        ('{"kind": "hot_map", "schema_version": 1, "experts": 4, "hot": []}', "one list"),
    ],
)  # fmt: skip
def test_broken_maps_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "map.json"
    file.write_text(text)
    with pytest.raises(IngestError, match=message):
        placement.read_map(file)


def test_cold_experts_are_counted_in_a_trace() -> None:
    ids = np.asarray([[[0, 1]], [[1, 2]], [[0, 3]], [[3, 2]]])
    trace = RoutingTrace(ids, np.zeros(4, dtype=np.int64), "trace")
    placed = placement.HotMap(np.asarray([[True, True, False, False]]))
    # blocks {0, 1, 2} and {0, 3, 2}: one and two cold experts
    assert advice.cold_in_blocks(trace, placed, 2)[0] == pytest.approx(1.5)
