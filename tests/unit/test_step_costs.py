"""What a step is charged for: three things that are easy to get wrong, and the laws around them."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from twin.acceptance.traffic import load_traffic
from twin.errors import PolicyError
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.lane.engine import Engine
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.routing.batch import ExpertDraw, RoutingNoise, RoutingParameters, mean_cold
from twin.step.batch import Batch
from twin.step.builders import build_step_graph, collective_chunks
from twin.step.coefficients import PRIOR_LOG_SD, Values, coefficients
from twin.step.costs import collective_s, draft_s, step_durations
from twin.step.model import cold_share, draw_step, routing_shape
from twin.step.prefill import chunk_s, ttft_s

ROOTS = catalogue_roots()


@lru_cache(maxsize=64)
def lane(name: str, *settings: str) -> Lane:
    return override(load_lane(name, ROOTS), settings)


def values(box: Lane) -> Values:
    return Values(coefficients(box), {})


def costs(box: Lane, batch: Batch, unique: float = 20.0, cold: float = 0.0) -> dict[str, float]:
    """Seconds by cost name for a step that touches the same experts in every layer."""
    layers = routing_shape(box).layers
    draw = ExpertDraw(*(np.full((layers, 1), value) for value in (unique, unique - cold, cold)))
    found = step_durations(box, values(box), batch, draw, None, 1)
    return {name: float(array.reshape(-1)[0]) for name, array in found.items()}


def batch(k: int = 5, streams: int = 1, context: float = 2048.0) -> Batch:
    return Batch(streams, k, k + 1.0, min(3.0, k + 1.0), context)


# --- tokens, not streams, are counted ---------------------------------------------------------------------------------


def test_graphs_are_chosen_by_tokens_in_flight() -> None:
    engine = load_lane("sidecar", ROOTS).engine
    assert [engine.bucket(n) for n in (1, 2, 3, 5, 6, 7, 13, 33, 257, 512)] == [1, 2, 4, 6, 6, 8, 16, 36, 320, 512]
    assert engine.bucket(513) == 513, "above the largest graph a batch runs at its own size"


@given(st.lists(st.integers(1, 600), min_size=1, max_size=20), st.integers(1, 700))
def test_a_bucket_holds_its_tokens_and_is_the_smallest_that_does(sizes: list[int], tokens: int) -> None:
    engine: Engine = load_lane("sidecar", ROOTS).engine.model_copy(update={"token_buckets": sizes})
    bucket = engine.bucket(tokens)
    assert bucket >= tokens
    assert bucket == min((size for size in sizes if size >= tokens), default=tokens)


def test_streams_times_block_decide_the_bucket_not_either_alone() -> None:
    # 8 streams of k = 3 and 4 of k = 7 are both 32 tokens; 32 plain streams are too.
    box = lane("sidecar")
    one, other, plain = costs(box, batch(3, 8, 0.0)), costs(box, batch(7, 4, 0.0)), costs(box, batch(0, 32, 0.0))
    assert one["attention"] == other["attention"] == plain["attention"]
    assert one["sidecar_experts"] == other["sidecar_experts"] == plain["sidecar_experts"]


def test_a_step_jumps_where_the_bucket_does() -> None:
    # 14 tokens run as 16 and 16 as 16; 17 run as 18.
    box = lane("sidecar")
    rows = [costs(box, batch(0, n, 0.0))["attention"] for n in (14, 16, 17, 18)]
    assert rows[0] == rows[1] < rows[2] == rows[3]


# --- rows of one stream share its context -----------------------------------------------------------------------------


def test_rows_of_one_stream_share_one_read_of_its_kv() -> None:
    # Without the index work of every row, context costs one read a stream, whatever the block length.
    box = lane("sidecar", "engine.context_time=0 s")

    def of_context(k: int, streams: int) -> float:
        far, near = (costs(box, batch(k, streams, context))["attention"] for context in (65536.0, 0.0))
        return far - near

    assert of_context(9, 1) == approx(of_context(0, 1), rel=1e-9)
    assert of_context(5, 4) == approx(4 * of_context(0, 1), rel=1e-9)
    read = 65536 * box.checkpoint.kv_read_bytes_per_token.value / box.checkpoint.layers.value
    assert of_context(0, 1) == approx(read / box.devices["primary"].read_bandwidth.value, rel=1e-6)


def test_index_work_is_by_row() -> None:
    box = lane("sidecar", "checkpoint.kv_read_bytes_per_token=0 B", "engine.row_time=0 s")
    near, far = (costs(box, batch(5, 1, context))["attention"] for context in (0.0, 1000.0))
    assert far - near == approx(6 * 1000 * box.engine.context_time.value / 40, rel=1e-6)


# --- kernels that do not deduplicate ----------------------------------------------------------------------------------


def test_a_kernel_that_does_not_deduplicate_pays_by_route() -> None:
    unique, k, streams = 20.0, 5, 2
    once, by_route = lane("tp4"), lane("tp4", "engine.deduplicates_experts=false")
    floor = once.engine.moe_floor.value / collective_chunks(once)
    a, b = (costs(box, batch(k, streams), unique)["experts"] - floor for box in (once, by_route))
    assert b / a == approx(6 * (k + 1) * streams / unique)  # 6 routes a row against 20 unique experts


def test_unique_experts_do_not_matter_to_a_kernel_that_pays_by_route() -> None:
    box = lane("tp4", "engine.deduplicates_experts=false")
    assert costs(box, batch(), 10.0)["experts"] == approx(costs(box, batch(), 30.0)["experts"])
    split = lane("sidecar", "engine.deduplicates_experts=false")
    # With a cold tier, only the routes that stay hot are paid here.
    half = costs(split, batch(), 20.0, 10.0)["experts"] - split.engine.moe_floor.value
    whole = costs(split, batch(), 20.0, 0.0)["experts"] - split.engine.moe_floor.value
    assert half == approx(whole / 2)


def test_deduplicated_experts_follow_the_measured_law() -> None:
    # GB300: 19.6 us + unique experts x 18.8 MB / 6.56 TB/s a layer, within 3 % from 1 to 64 tokens.
    box = lane("sidecar")
    for unique in (6.0, 22.0, 80.0):
        assert costs(box, batch(), unique)["experts"] == approx(19.6e-6 + unique * 18.80e6 / 6.56e12, rel=0.03)


def test_quarters_of_an_expert_are_read_by_four_cards() -> None:
    four, one = lane("tp4"), lane("tp4", "placement.expert_parallel=4")
    floor = four.engine.moe_floor.value / collective_chunks(four)
    a, b = (costs(box, batch())["experts"] - floor for box in (four, one))
    # Dealt out whole, `busiest` counts the experts of one rank; without it all would be read by everyone.
    assert b == approx(4 * a)


# --- the other parts --------------------------------------------------------------------------------------------------


def test_collectives_follow_their_table_and_switch_at_their_size() -> None:
    # One-shot over four PCIe cards: 6.2 us + 0.0854 us/KiB; the ring takes over above 1 MiB.
    box = lane("tp4")
    for kib, us in ((1, 6.29), (128, 17.1), (1024, 93.7)):
        assert 1e6 * float(collective_s(box, values(box), kib * 1024)) == approx(us, rel=0.01)
    ring = box.engine.collectives[1]
    above = float(collective_s(box, values(box), 2 * 2**20))
    assert above == approx(ring.latency.value + 2 * 2**20 * ring.inverse_bandwidth.value)
    last = lane("tp4", "engine.collectives.1.up_to_bytes=2000000")
    assert float(collective_s(last, values(last), 1e9)) > above, "the last algorithm has no upper end"


def test_cold_experts_of_the_host_come_through_its_link() -> None:
    """18.8 MB at 0.97 of 352.8 GB/s are 54.9 us each; half the bytes or twice the link take half of that."""
    box = lane("grace-uva-60")
    assert 1e6 * costs(box, batch(), cold=3.0)["host_experts"] == approx(3 * 18.80064 / 0.97 / 0.3528, rel=1e-6)
    for setting in ("checkpoint.expert_bytes=9.40032 MB", "links.host.bandwidth=705.6 GB/s"):
        other = lane("grace-uva-60", setting)
        assert costs(other, batch(), cold=3.0)["host_experts"] == approx(costs(box, batch(), cold=1.5)["host_experts"])


def test_experts_computed_on_the_host_pay_its_memory() -> None:
    box, faster_link = lane("rtx3090-cpu-experts"), lane("rtx3090-cpu-experts", "links.host.bandwidth=50 GB/s")
    each = 13.27104e6 / (0.31 * 147e9)
    assert costs(box, batch(0), cold=3.5)["host_experts"] == approx(3.5 * each, rel=1e-6)
    assert costs(faster_link, batch(0), cold=3.5) == costs(box, batch(0), cold=3.5)
    faster_memory = lane("rtx3090-cpu-experts", "devices.host.read_bandwidth=294 GB/s")
    assert costs(faster_memory, batch(0), cold=7.0)["host_experts"] == approx(3.5 * each, rel=1e-6)


def test_an_expert_cache_misses_its_share_of_what_a_step_touches() -> None:
    box = lane("rtx3090-cpu-experts")
    traffic = load_traffic("mixed", catalogue_roots())
    drawn = draw_step(box, traffic, values(box), Batch(4, 0, 1.0, 1.0, 2048.0), RoutingNoise.draw(0, 40, 16))
    assert drawn.experts.cold == approx(0.592 * drawn.experts.unique)


def test_a_reduction_of_two_pieces_moves_half_the_bytes_each() -> None:
    box = lane("tp4")
    message = 6 * box.checkpoint.hidden_bytes_per_token  # 6 tokens run as 8
    assert costs(box, batch())["all_reduce"] == approx(float(collective_s(box, values(box), message / 6 * 8 / 2)))


@pytest.mark.parametrize(
    ("rows", "measured_us"), [(1, 74), (2, 89), (4, 97), (8, 115), (16, 156), (32, 199), (64, 246)]
)
def test_a_whole_sidecar_call_is_what_was_measured(rows: int, measured_us: float) -> None:
    # Copy in, experts, copy out by row bucket, 99 of 384 experts on the card (fizban007/dgx-station-gb300-research
    # m3/DETAILS.md). How many of them a call touched is not stated; with the share of a map on its own traffic: 20 %.
    box = lane("sidecar", "placement.hot=285")
    routing = RoutingParameters(beta=0.747, cold_share=0.05)
    each = {"streams": rows, "accepted_rows": 1.0, "rejected_rows": 0.0}
    cold = mean_cold(routing_shape(box), routing, **each, cold_experts=box.cold_experts)
    parts = costs(box, Batch(rows, 0, 1.0, 1.0, 0.0), 6.0 * rows, cold)
    call_us = 1e6 * (parts["sidecar_out"] + parts["sidecar_experts"] + parts["sidecar_back"])
    assert call_us == approx(measured_us, rel=0.20)


def test_draft_reads_its_own_experts_once_a_block() -> None:
    box = lane("sidecar")
    draft = box.checkpoint.draft
    assert draft is not None
    bandwidth = box.devices["primary"].read_bandwidth.value
    least = draft.fixed_bytes.value / bandwidth + box.engine.draft_overhead.value
    most = least + draft.stages.value * draft.experts.value * draft.expert_bytes.value / bandwidth
    one, nine, many = (float(draft_s(box, values(box), batch(k, s))) for k, s in ((1, 1), (9, 1), (9, 64)))
    assert least < one < nine < many <= most * (1 + 1e-9)


def test_an_autoregressive_drafter_pays_by_token() -> None:
    box = lane("sidecar", "checkpoint.draft.kind=autoregressive")
    one, nine = (float(draft_s(box, values(box), batch(k))) for k in (1, 9))
    assert nine == approx(9 * one)


def test_small_kernels_are_counted_once() -> None:
    box = lane("sidecar")
    parts = costs(box, batch())
    total = 40 * (parts["launch"] + parts["launch_beside"])
    assert total == approx(1317 * box.engine.launch_time.value)
    assert "launch_beside" not in {op.cost for op in build_step_graph(lane("tp4"), 5).ops}
    assert 40 * costs(lane("tp4"), batch())["launch"] == approx(160 * 2e-6)


def test_graphs_have_the_ops_of_their_lane() -> None:
    def count(box: Lane, k: int, cost: str) -> int:
        return sum(op.cost == cost for op in build_step_graph(box, k).ops)

    sidecar, tp4 = lane("sidecar"), lane("tp4")
    assert count(sidecar, 5, "sidecar_experts") == 40 and count(tp4, 5, "sidecar_experts") == 0
    assert count(sidecar, 5, "all_reduce") == 0 and count(tp4, 5, "all_reduce") == 40 * 2 * 2
    assert count(sidecar, 5, "engram") == 2 and count(sidecar, 5, "draft") == 1 and count(sidecar, 0, "draft") == 0
    assert count(sidecar, 5, "head") == count(sidecar, 5, "sampling") == count(sidecar, 5, "host_gap") == 1


def test_a_map_is_better_on_its_own_traffic() -> None:
    own, other = load_traffic("mixed", ROOTS), load_traffic("prose", ROOTS)
    box = lane("sidecar")
    assert cold_share(box, own, values(box)) < cold_share(box, other, values(box))
    assert cold_share(lane("tp4"), own, values(lane("tp4"))) == 0.0


def test_more_hot_experts_leave_fewer_routes_cold() -> None:
    shares = []
    for hot in (150, 250, 295, 330, 383):
        box = lane("sidecar", f"placement.hot={hot}")
        shares.append(float(np.asarray(cold_share(box, load_traffic("prose", ROOTS), values(box)))))
    assert all(a > b for a, b in pairwise(shares)) and shares[0] < 1


def test_the_hop_is_almost_always_paid() -> None:
    # 22 experts over 384 with 89 cold: the chance that a layer has none is well below 1 %.
    box = lane("sidecar")
    noise = RoutingNoise.draw(0, 40, 500)
    draw = draw_step(box, load_traffic("prose", ROOTS), values(box), batch(), noise)
    assert (draw.experts.cold < 0.5).mean() < 0.25
    assert draw.times.mechanism_s["sidecar_exposed"].mean() >= 0


# --- coefficients -----------------------------------------------------------------------------------------------------


def test_priors_are_as_wide_as_their_kind_is_unsure() -> None:
    assert PRIOR_LOG_SD["spec"] < PRIOR_LOG_SD["measured"] < PRIOR_LOG_SD["derived"] < PRIOR_LOG_SD["assumed"]
    found = coefficients(lane("sidecar"))
    assert found["row_time"].kind == "assumed" and found["row_time"].prior_log_sd == PRIOR_LOG_SD["assumed"]


def test_lanes_share_the_coefficients_of_the_parts_they_share() -> None:
    sidecar, tp4 = coefficients(lane("sidecar")), coefficients(lane("tp4"))
    assert sidecar["sidecar.read_bandwidth"].key == tp4["primary.read_bandwidth"].key
    assert sidecar["launch_time"].key != tp4["launch_time"].key


def test_a_calibration_keeps_its_ratio_under_a_what_if() -> None:
    key = coefficients(lane("sidecar"))["launch_time"].key
    for box in (lane("sidecar"), lane("sidecar", "engine.launch_time=1 us")):
        assert Values(coefficients(box), {key: 1.5})["launch_time"] == approx(1.5 * box.engine.launch_time.value)


# --- prefill ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_the_sum_of_its_chunks() -> None:
    box = lane("tp4")
    cap = int(box.engine.max_batched_tokens.value)
    prompt = 3 * cap + 100
    chunks = [(cap, i * cap) for i in range(3)] + [(100, 3 * cap)]
    total = sum(float(chunk_s(box, values(box), tokens, start)) for tokens, start in chunks)
    assert float(ttft_s(box, values(box), prompt)) == approx(box.engine.prefill_overhead.value + total)


@pytest.mark.parametrize("name", ["sidecar", "tp4"])
def test_a_longer_prompt_takes_longer_and_a_cached_one_less(name: str) -> None:
    box = lane(name)
    times = [float(ttft_s(box, values(box), n)) for n in (1, 100, 4096, 8192, 8193, 65536, 10**6)]
    assert all(a < b for a, b in pairwise(times))
    cached = [float(ttft_s(box, values(box), 65536, cached_tokens=n)) for n in (0, 4096, 32768, 65535, 65536)]
    assert all(a >= b for a, b in pairwise(cached))


def test_a_full_hit_computes_the_replay_window_again() -> None:
    box = lane("sidecar")
    engine, hit = box.engine, float(ttft_s(box, values(box), 4096, cached_tokens=4096))
    assert engine.tokenise_time is not None
    before = engine.prefill_overhead.value + 4096 * engine.tokenise_time.value
    assert hit == approx(before + float(chunk_s(box, values(box), 128, 3968)))


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (-1, 0), (10, 11), (10, -1)])
def test_impossible_prompts_are_refused(prompt: int, cached: int) -> None:
    with pytest.raises(PolicyError, match="expected"):
        ttft_s(lane("sidecar"), values(lane("sidecar")), prompt, cached_tokens=cached)


def test_prompts_of_missed_experts_run_at_the_cores_peak() -> None:
    """8,192 tokens of one RTX 3090 whose CPU computes 59 % of the routed products: 97 tok/s were measured at 8K and 32K;
    without any receipt the catalogue says it within 20 %, and twice the cores take half of their part."""
    box, twice = lane("rtx3090-cpu-experts"), lane("rtx3090-cpu-experts", "devices.host.compute=2.2 TFLOPS")
    first = float(ttft_s(box, values(box), 8192))
    assert 8192 / first == approx(97.0, rel=0.2)
    saved = first - float(ttft_s(twice, values(twice), 8192))
    checkpoint = box.checkpoint
    routed = checkpoint.total_parameters.value * 6 / 384
    cores = 2 * min(routed, 0.95 * checkpoint.active_parameters.value) * 0.592 * 8192 / 1.1e12
    assert saved == approx(cores / 2, rel=0.01)


def test_a_cache_that_holds_every_expert_misses_none() -> None:
    box = lane("rtx3090-cpu-experts", "placement.hot=384", "devices.primary.memory=1 TB")
    drawn = draw_step(box, load_traffic("mixed", catalogue_roots()), values(box), batch(0), RoutingNoise.draw(0, 40, 4))
    assert not drawn.experts.cold.any()
    reads_s = float(ttft_s(box, values(box), 8192))
    assert reads_s < 0.2 * float(ttft_s(lane("rtx3090-cpu-experts"), values(lane("rtx3090-cpu-experts")), 8192))
