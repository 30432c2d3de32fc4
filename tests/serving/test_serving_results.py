"""What a run reports: definitions, intervals, steadiness, records, exports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_support import AnalyticStepTime, exponential, queue_run, small_run

from twin.serving.config import Deployment, Limits, Link, Outage
from twin.serving.draws import DrawSource, FixedAcceptance
from twin.serving.histogram import GapHistogram
from twin.serving.request import Request
from twin.serving.result import Slo
from twin.serving.simulate import Run, simulate
from twin.serving.stats import (
    Summary,
    batch_means,
    batch_means_half_width,
    drift,
    lag_one,
    mser5,
    number_in_system,
    replication_half_width,
    summarize,
)
from twin.serving.steptime import ConstantStepTime, NoisyStepTime
from twin.serving.timeline import Timeline, chrome_trace, plot_timeline, trace_text
from twin.serving.trace import replay, trace_requests
from twin.serving.trace_formats import open_trace


def test_times_of_one_request() -> None:
    """Two chunks of prompt, then decode of one token a step: every definition by hand."""
    requests = [Request(0, 1.0, 12, 5)]
    run = small_run(requests, Limits(max_seqs=1, max_batched_tokens=8), k=0, step_s=0.5)
    result = run.result
    assert result.queue_s.mean == 0.0
    assert result.ttft_s.mean == pytest.approx(1.0)
    assert result.tpot_s.mean == pytest.approx(0.5)
    assert result.itl_s.mean == pytest.approx(0.5)
    assert result.itl_s.n == 4
    assert result.e2e_s.mean == pytest.approx(3.0)
    assert result.steps == 6
    assert run.collector.emitted_tokens == 5


def test_with_speculation_a_gap_is_a_step_and_tpot_is_less() -> None:
    requests = [Request(i, 0.0, 4, 4001) for i in range(4)]
    result = small_run(requests, Limits(max_seqs=4), k=3, p=0.5, step_s=0.01).result
    assert result.itl_s.mean == pytest.approx(0.01, rel=1e-6)
    # 1 + 1/2 + 1/4 + 1/8 tokens a step
    assert result.tpot_s.mean == pytest.approx(0.01 / 1.875, rel=0.02)


def test_goodput_counts_what_meets_the_slo() -> None:
    requests = [Request(i, 0.0, 10, 3) for i in range(10)]
    limits = Limits(max_seqs=1)
    deployment = Deployment(limits=limits)
    run = simulate(
        deployment, ConstantStepTime(1.0), [0, 0], lambda r, k: iter([1] * 99), iter(requests), warmup_s=0.0,
        slo=Slo(ttft_s=7.5, tpot_s=1.0),
    )  # fmt: skip
    goodput = run.result.goodput
    assert goodput is not None
    assert goodput.fraction == pytest.approx(0.3), "first tokens come at 1, 4, 7, 10, ... s"


def test_queueing_is_not_steady_above_capacity() -> None:
    """Load 1.2: the queue grows for ever and the run says so. At load 0.5 it does not."""
    unstable = queue_run(60.0, 20_000, step_time=ConstantStepTime(0.02)).result
    assert not unstable.steady
    assert any("not steady" in w for w in unstable.warnings)
    assert queue_run(25.0, 20_000, step_time=ConstantStepTime(0.02)).result.steady


def test_batch_means_intervals_cover() -> None:
    """95 % intervals of the M/M/1 mean at load 0.5 cover the truth in most of 30 runs (at least 26 of 30)."""
    truth, covered = 0.04, 0
    for seed in range(30):
        step_time = NoisyStepTime(ConstantStepTime(0.02), exponential(seed, 4000))
        e2e = queue_run(25.0, 4000, step_time=step_time, seed=seed).result.e2e_s
        assert e2e.mean is not None and e2e.ci95 is not None
        covered += abs(e2e.mean - truth) <= e2e.ci95
    assert covered >= 26


def test_warmup_is_found_and_left_out() -> None:
    """An autoregressive series with a start far from its mean: MSER-5 cuts the transient, and not much more."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, 5000) + 20.0 * np.exp(-np.arange(5000) / 100)
    dropped = mser5(values)
    assert dropped is not None
    assert 150 <= dropped <= 1200
    assert mser5(rng.normal(0, 1, 5000)) in range(0, 1500)
    assert mser5(np.arange(5000.0)) is None, "a ramp never warms up"


def test_summaries() -> None:
    assert summarize(np.array([])) == Summary(0)
    values = np.arange(1.0, 101.0)
    summary = summarize(values)
    assert (summary.n, summary.mean, summary.max) == (100, 50.5, 100.0)
    assert summary.p95 == pytest.approx(np.quantile(values, 0.95))
    assert batch_means_half_width(np.ones(39)) is None
    assert batch_means(np.arange(43.0)) is not None
    assert replication_half_width([1.0]) is None
    assert replication_half_width([1.0, 3.0]) == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2))
    assert lag_one(np.array([1.0, -1.0] * 10)) < -0.5


def test_number_in_system_against_counting() -> None:
    arrival, end = np.array([0.0, 1.0, 1.5]), np.array([2.0, 4.0, 1.75])
    # [0,1): one; [1,2): request 1 and 2 throughout, request 3 a quarter; [2,4): one
    levels = number_in_system(arrival, end, np.array([0.0, 1.0, 2.0, 4.0]))
    assert levels.tolist() == pytest.approx([1.0, 2.25, 1.0])


def test_drift_is_seen_only_when_clear() -> None:
    rng = np.random.default_rng(0)
    assert drift(10 + rng.normal(0, 1, 20)) is None
    assert drift(np.linspace(0, 50, 20)) is not None
    assert drift(np.array([1.0, 2.0])) is None


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 5), st.floats(0, 1e5)), min_size=1, max_size=60))
def test_gap_histogram(gaps: list[tuple[float, int, float]]) -> None:
    """Count, mean and maximum exact, quantiles within 0.5 %, whatever the slices did."""
    histogram = GapHistogram()
    for gap_s, members, now_s in gaps:
        histogram.add(gap_s, members, now_s)
    flat = np.sort(np.repeat([g for g, _, _ in gaps], [m for _, m, _ in gaps]))
    summary = histogram.summary()
    assert (summary.n, summary.max) == (flat.size, flat[-1])
    assert summary.mean == pytest.approx(flat.mean())
    assert summary.p50 == pytest.approx(np.quantile(flat, 0.5, method="inverted_cdf"), rel=0.006)
    assert summary.p99 == pytest.approx(np.quantile(flat, 0.99, method="inverted_cdf"), rel=0.006)


def test_gap_histogram_leaves_the_warm_up_out() -> None:
    histogram = GapHistogram()
    for second in range(100):
        histogram.add(1.0 if second < 50 else 0.1, 1, float(second))
    assert histogram.summary(50.0).mean == pytest.approx(0.1)
    assert GapHistogram().summary() == Summary(0)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1)), min_size=1, max_size=80))
def test_timeline_conserves_totals(steps: list[tuple[float, float]]) -> None:
    timeline = Timeline()
    for end_s, duration_s in steps:
        timeline.add(end_s, duration_s, 3, 1, 2, 100, 7, 11)
    columns = timeline.columns()
    assert columns["output_tokens"].sum() * timeline.bin_s == pytest.approx(7 * len(steps))
    busy_s = sum(d for _, d in steps)
    assert columns["decoding"].sum() * timeline.bin_s == pytest.approx(3 * busy_s)
    assert len(columns["time_s"]) <= 1024


def azure_run(max_seqs: int = 32, **options: Any) -> Run:
    trace = open_trace(Path(__file__).parent / "data" / "azure_conv_2023_first300.csv")
    return simulate(
        Deployment(limits=Limits(max_seqs=max_seqs), **options), AnalyticStepTime(), [3] * (max_seqs + 1),
        DrawSource([[FixedAcceptance(0.6)]], 0), trace_requests(replay(trace)), warmup_s=0.0, slo=Slo(ttft_s=1.0),
        class_names=("conversation",),
    )  # fmt: skip


def test_a_replayed_trace_is_served_whole() -> None:
    result = azure_run().result
    assert result.requests.finished == 300
    assert result.little.relative_error < 0.01
    text = json.dumps(result.to_json(), allow_nan=False)
    assert json.loads(text)["schema_version"] == 1
    assert azure_run().result == result, "same inputs, same result"


def test_the_trace_is_one_a_viewer_opens() -> None:
    run = azure_run()
    events = chrome_trace(run.collector.timeline, run.collector.requests.spans(), name="azure")["traceEvents"]
    open_spans: dict[tuple[int, str], float] = {}
    for event in events:
        assert event["ph"] in "MCbe"
        if event["ph"] == "b":
            open_spans[event["id"], event["name"]] = event["ts"]
        elif event["ph"] == "e":
            assert event["ts"] >= open_spans.pop((event["id"], event["name"]))
    assert not open_spans
    assert sum(e["ph"] == "b" for e in events) == 900
    json.loads(trace_text(run.collector.timeline, run.collector.requests.spans(), name="azure"))


def test_rows_of_the_request_table() -> None:
    rows = list(azure_run().collector.requests.rows(["conversation"]))
    assert len(rows) == 300
    assert rows[0][:4] == [0, "conversation", 0, "finished"]
    assert [r[4] for r in rows] == sorted(r[4] for r in rows)


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.svg"
    plot_timeline(azure_run().collector.timeline, path, title="azure", kv_capacity_tokens=1000)
    assert path.read_text().lstrip().startswith("<?xml")


def test_more_replicas_less_waiting() -> None:
    one, three = azure_run().result, azure_run(replicas=3).result
    assert three.ttft_s.mean < one.ttft_s.mean
    assert three.utilisation < one.utilisation


def test_disaggregation_takes_prompts_out_of_the_decode_steps() -> None:
    """Decode gaps no longer contain prompt chunks, and first tokens do not wait for decode."""
    together = azure_run(128).result
    link = Link(latency_s=1e-4, bytes_per_s=50e9)
    apart = azure_run(128, prefill_replicas=1, link=link, kv_bytes_per_token=890.0).result
    assert apart.requests.finished == 300
    assert apart.itl_s.p99 < 0.8 * together.itl_s.p99
    assert apart.ttft_s.mean < together.ttft_s.mean


def test_a_slow_link_shows_in_the_second_token() -> None:
    slow = azure_run(replicas=1, prefill_replicas=1, link=Link(bytes_per_s=1e6), kv_bytes_per_token=890.0).result
    fast = azure_run(replicas=1, prefill_replicas=1, link=Link(bytes_per_s=1e12), kv_bytes_per_token=890.0).result
    assert slow.ttft_s.mean == pytest.approx(fast.ttft_s.mean, rel=0.2)
    assert slow.itl_s.max > fast.itl_s.max + 0.5


def test_an_outage_delays_and_loses_nothing() -> None:
    result = azure_run(outages=(Outage(replica=0, at_s=10.0, for_s=5.0),)).result
    assert result.requests.finished == 300
    assert result.ttft_s.max > 4.0
    failed = azure_run(outages=(Outage(replica=0, at_s=10.0, for_s=5.0),), on_outage="fail").result
    assert 0 < failed.requests.failed < 50
    assert failed.requests.finished + failed.requests.failed == 300


def test_affinity_finds_more_prefix_than_round_robin() -> None:
    trace = open_trace(Path(__file__).parent / "data" / "mooncake_conversation_first400.jsonl.gz")
    rates = {}
    for router in ("round-robin", "prefix-affinity"):
        limits = Limits(max_seqs=32, prefix_block_tokens=512, kv_capacity_tokens=8_000_000)
        run = simulate(
            Deployment(limits=limits, replicas=4, router=router), AnalyticStepTime(), [0] * 33,
            DrawSource([[FixedAcceptance(0.0)]], 0), trace_requests(replay(trace, time_scale=4.0)), warmup_s=0.0,
        )  # fmt: skip
        assert run.result.cache is not None
        rates[router] = run.result.cache.hit_rate
    assert rates["prefix-affinity"] > rates["round-robin"] + 0.02, rates
