"""Both lanes against every measured fact, with the calibration as shipped. The tolerance stands beside the fact."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pytest import approx
from seed_facts import HELD, ROWS, cell, holds, span, value

from twin.acceptance.model import resolve_acceptance
from twin.acceptance.traffic import load_traffic
from twin.lane.capacity import kv_tokens
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.routing.batch import RoutingParameters, RoutingShape, mean_unique

K5 = {"lane": "sidecar", "k": 5, "verification": "token"}
K9 = {"lane": "sidecar", "k": 9, "verification": "block"}
TP4 = {"lane": "tp4", "k": 7, "verification": "block"}


# --- one stream, speed: 3 % -----------------------------------------------------------------------------------------


@holds("seed-01", "seed-02", "seed-03", "seed-06", "seed-07", "seed-32", "seed-33", "seed-34")
@pytest.mark.parametrize(
    ("fact", "lane", "context", "tolerance"),
    [
        ("seed-01", K5, 2048, 0.03),
        ("seed-02", K5, 16384, 0.03),
        ("seed-03", K5, 65536, 0.03),
        ("seed-06", K9, 2048, 0.03),
        # 489 at 64K was measured at 6.05 tokens per step, 468 at 2K at 5.70: the class has one acceptance in between.
        ("seed-07", K9, 65536, 0.05),
        ("seed-32", TP4, 2048, 0.03),
        ("seed-33", TP4, 16384, 0.03),
        ("seed-34", TP4, 65536, 0.03),
    ],
)
def test_tokens_a_second_of_one_stream(fact: str, lane: dict, context: int, tolerance: float) -> None:
    assert cell(**lane, context=context).tok_s_per_stream.mean == approx(value(fact), rel=tolerance)


@holds("seed-05", "seed-09", "seed-11", "seed-36")
@pytest.mark.parametrize(
    ("measured_ms", "lane", "traffic"),
    [
        (value("seed-05"), K5, "codegen-padded"),
        (value("seed-09"), K9, "codegen-padded"),
        (value("seed-11"), K5, "mixed"),
        (value("seed-05") / value("seed-36"), TP4, "codegen-padded"),  # 1.30 times the steps a second: about 8.5 ms
    ],
)
def test_step_of_one_stream(measured_ms: float, lane: dict, traffic: str) -> None:
    assert cell(**lane, traffic=traffic).step_ms.mean == approx(measured_ms, rel=0.03)


@holds("seed-12")
def test_mixed_traffic_of_one_stream() -> None:
    assert cell(**K5, traffic="mixed").tok_s_per_stream.mean == approx(value("seed-12"), rel=0.03)


# --- one stream, acceptance -----------------------------------------------------------------------------------------


@holds("seed-04", "seed-10", "seed-13", "seed-14", "seed-15", "seed-16", "seed-17", "seed-18", "seed-19")
@pytest.mark.parametrize(
    ("fact", "lane", "traffic", "streams"),
    [
        ("seed-04", K5, "codegen-padded", 1),
        ("seed-10", K5, "mixed", 1),
        ("seed-13", K5 | {"k": 3}, "codegen-padded", 8),
        ("seed-14", K5, "prose", 1),
        ("seed-15", K5, "code", 1),
        ("seed-16", K9, "prose", 1),
        ("seed-17", K9, "code", 1),
        ("seed-18", K5, "pooled", 1),
        ("seed-19", K5 | {"verification": "block"}, "pooled", 1),
    ],
)
def test_tokens_per_step(fact: str, lane: dict, traffic: str, streams: int) -> None:
    # An acceptance that was measured is returned as measured; 1 % for what was rounded to two digits.
    assert cell(**lane, traffic=traffic, streams=streams).tokens_per_step.mean == approx(value(fact), rel=0.01)


@holds("seed-08")
@pytest.mark.parametrize("context", [2048, 16384, 65536])
def test_tokens_per_step_of_the_long_block(context: int) -> None:
    low, high = span("seed-08")
    assert low <= cell(**K9, context=context).tokens_per_step.mean <= high


@holds("seed-35")
def test_tokens_per_step_of_tp4() -> None:
    assert cell(**TP4).tokens_per_step.mean == approx(value("seed-35") * value("seed-04"), rel=0.03)


def survival(traffic: str, k: int, rule: str) -> list[float]:
    return list(resolve_acceptance(load_traffic(traffic, catalogue_roots()), k, rule, trained_block=5).survival)


@holds("seed-22", "seed-23")
@pytest.mark.parametrize(("fact", "k", "rule"), [("seed-22", 5, "token"), ("seed-23", 9, "block")])
def test_first_position_of_prose(fact: str, k: int, rule: str) -> None:
    assert survival("prose", k, rule)[0] == approx(value(fact), abs=0.01)  # stated to two digits


@holds("seed-24", "seed-25")
@pytest.mark.parametrize("traffic", ["prose", "code"])
def test_conditional_acceptance_of_the_long_block(traffic: str) -> None:
    s = [1.0, *survival(traffic, 9, "block")]
    conditional = [after / before for before, after in pairwise(s)]
    # A range over all classes, which is not one class's to fill: 0.02 beyond its ends.
    for fact, positions in (("seed-24", conditional[:5]), ("seed-25", conditional[6:])):
        low, high = span(fact)
        assert all(low - 0.02 <= c <= high + 0.02 for c in positions)


@holds("seed-21")
@pytest.mark.parametrize("traffic", ["prose", "code"])
def test_block_verification_gains_a_little_and_never_loses(traffic: str) -> None:
    block = cell("sidecar", 5, traffic=traffic, verification="block").tok_s_per_stream.mean
    low, high = span("seed-21")
    ratio = block / cell(**K5, traffic=traffic).tok_s_per_stream.mean
    assert low - 0.01 <= ratio <= high + 0.01


@holds("seed-20")
@pytest.mark.parametrize("traffic", ["prose", "code"])
def test_the_long_block_loses(traffic: str) -> None:
    ratio = cell(**K9, traffic=traffic).tok_s_per_stream.mean / cell(**K5, traffic=traffic).tok_s_per_stream.mean
    low, high = span("seed-20")
    assert low - 0.02 <= ratio <= high + 0.02  # 15-20 % slower, within 2 points


# --- lanes against each other, each at its own schedule --------------------------------------------------------------


def sidecar_over_tp4(streams: int, context: int) -> float:
    one, other = (cell(lane, None, streams=streams, context=context) for lane in ("sidecar", "tp4"))
    return one.tok_s_aggregate.mean / other.tok_s_aggregate.mean


CONTEXTS = pytest.mark.parametrize("context", [2048, 16384])


@holds("seed-37")
@CONTEXTS
def test_level_at_four_streams(context: int) -> None:
    assert sidecar_over_tp4(4, context) == approx(value("seed-37"), abs=0.05)


@holds("seed-38")
@CONTEXTS
def test_tp4_ahead_at_eight_streams(context: int) -> None:
    low, high = span("seed-38")
    assert low <= round(1.0 / sidecar_over_tp4(8, context), 2) <= high


@holds("seed-39")
@CONTEXTS
def test_sidecar_ahead_at_sixteen_streams(context: int) -> None:
    # To the two digits the facts are given in.
    low, high = span("seed-39")
    assert low <= round(sidecar_over_tp4(16, context), 2) <= high


# --- prompts: 10 % ---------------------------------------------------------------------------------------------------


@holds("seed-29", "seed-30", "seed-31")
@pytest.mark.parametrize(
    ("fact", "lane", "context"), [("seed-29", K5, 65536), ("seed-30", TP4, 65536), ("seed-31", K5, 1_000_000)]
)
def test_time_to_first_token(fact: str, lane: dict, context: int) -> None:
    assert cell(**lane, context=context).ttft_ms.mean == approx(1e3 * value(fact), rel=0.10)


@holds("seed-40")
@pytest.mark.parametrize("context", [16384, 65536])
def test_prefill_of_both_lanes(context: int) -> None:
    ratio = cell(**K5, context=context).prefill_tok_s.mean / cell(**TP4, context=context).prefill_tok_s.mean
    low, high = span("seed-40")
    assert 0.9 * low <= ratio <= 1.1 * high


# --- experts ---------------------------------------------------------------------------------------------------------

#: DeepSeek-V4.1-Flash, unique experts a layer over windows of consecutive accepted tokens, all classes
#: (J-M-Recipes/recipes routing/unique_experts_vs_k.json).
UNION = {1: 6.0, 2: 10.1, 3: 13.65, 4: 16.83, 6: 22.45, 8: 27.38}


@pytest.mark.parametrize(("tokens", "unique"), UNION.items())
def test_union_of_one_stream(tokens: int, unique: float) -> None:
    # The parameters of a prediction: the checkpoint's locality and the pooled class.
    lane, traffic = load_lane("sidecar", catalogue_roots()), load_traffic("pooled", catalogue_roots())
    checkpoint = lane.checkpoint
    shape = RoutingShape(int(checkpoint.layers.value), int(checkpoint.experts.value), int(checkpoint.top_k.value))
    routing = RoutingParameters(beta=traffic.routing.beta.value)
    got = mean_unique(shape, routing, streams=1, accepted_rows=float(tokens), rejected_rows=0.0)
    assert got == approx(unique, rel=0.01)


@holds("seed-26", "seed-27")
@pytest.mark.parametrize(("fact", "k"), [("seed-26", 5), ("seed-27", 7)])
def test_union_of_a_verify_batch(fact: str, k: int) -> None:
    # "About 22" at k = 5, and about 27, which the measured table has at 8 tokens (k = 7); both without a workload.
    # Where most of the batch is kept they hold to 5 % (code itself measured 23.39 at six kept rows, 6 % above "about 22");
    # where most of it is rejected the fit lets rejected rows touch fewer experts, and the figure has to lie in the
    # interval.
    for traffic in ("codegen-padded", "code"):
        unique = cell("sidecar", k, traffic=traffic, verification="token").unique_experts_per_layer
        assert unique.mean == approx(value(fact), rel=0.05)
    for traffic in ("mixed", "prose", "pooled"):
        unique = cell("sidecar", k, traffic=traffic, verification="token").unique_experts_per_layer
        assert unique.p05 <= value(fact) <= unique.p95


# --- what the lanes are ----------------------------------------------------------------------------------------------


@holds("seed-28", "seed-43", "seed-44")
def test_parts_of_the_sidecar_lane() -> None:
    lane = load_lane("sidecar", catalogue_roots())
    assert lane.engine.launches_per_step.value == value("seed-28")
    assert lane.placement.hot.value == value("seed-44") and lane.cold_experts == 89
    assert lane.engine.engram_time is not None and lane.checkpoint.engram is not None
    gathers_ms = 1e3 * lane.engine.engram_time.value * len(lane.checkpoint.engram.layers)
    assert gathers_ms == approx(value("seed-43"), rel=0.01)


@holds("seed-41", "seed-42")
def test_context_that_fits() -> None:
    # Bytes a token of the sheet are an upper bound: the sidecar's engine stores 2,074 a token, not 890.
    assert kv_tokens(load_lane("sidecar", catalogue_roots())) >= value("seed-41")
    assert kv_tokens(load_lane("tp4", catalogue_roots())) == approx(value("seed-42"), rel=0.02)


def test_no_fact_is_left_out() -> None:
    assert set(ROWS) == HELD
