"""What each reader takes from a file, on real or constructed ones (fixtures/SOURCES.md says which)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ingest_build as build
import numpy as np
import pytest

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.registry import read_file, read_files

CONSTRUCTED, REAL = build.FIXTURES / "constructed", build.FIXTURES / "real"
LABEL = '{engine="0",model_name="deepseek-v4.1-flash"}'


def codes(cell: Cell | Found) -> set[str]:
    return {flag.code for flag in cell.flags}


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# vLLM bench serve


def test_vllm_bench() -> None:
    found = read_file(CONSTRUCTED / "vllm_bench_spec.json")
    (cell,) = found.cells
    assert (cell.k, cell.concurrency_asked, cell.context_tokens, cell.output_tokens) == (7, 1.0, 2048.0, 1024.0)
    # The rate is a percent of drafted tokens, the positions are fractions of drafts: both must give the length.
    assert cell.tokens_per_step == pytest.approx(5.92) == pytest.approx(1 + sum(cell.survival))
    assert cell.step_s == pytest.approx(8.5e-3) and cell.step_definition == "chunk_interval"
    assert cell.tok_s_per_stream == pytest.approx(5.92 / 8.5e-3)
    assert cell.aggregate_definition == "wall_with_ttft"
    assert cell.concurrency_achieved == pytest.approx(1.0, rel=0.01)
    assert found.unknown == {"box": "four cards"} and not cell.flags


def test_vllm_bench_identity_fails() -> None:
    (cell,) = read_file(CONSTRUCTED / "vllm_bench_identity_fails.json").cells
    assert "identity-failed" in codes(cell) and cell.step_s is None


def test_vllm_bench_old_keys_in_seconds() -> None:
    """median_tpot 0.06200530890404709 s: 62 ms, not 62 us."""
    (cell,) = read_file(REAL / "vllm_bench_old_seconds_glm5.json").cells
    assert cell.tpot_s == pytest.approx(0.06200530890404709) and cell.ttft_s == pytest.approx(1.997974555939436)
    assert cell.concurrency_asked == 8 and cell.k is None and cell.tokens_per_step is None


def test_vllm_bench_appended_results(tmp_path: Path) -> None:
    one = (CONSTRUCTED / "vllm_bench_spec.json").read_text()
    assert len(read_file(write(tmp_path / "x", one + "\n" + one)).cells) == 2


def test_vllm_bench_detailed_cuts_warm_up_and_prefill(tmp_path: Path) -> None:
    """Steps of 12 ms; every prefill of 200 ms stalls the other streams' step, so the plain mean is far off."""
    raw = build.vllm_detailed()
    (cell,) = read_file(write(tmp_path / "x", raw)).cells
    assert raw["mean_itl_ms"] > 13
    assert cell.step_s == pytest.approx(0.012, rel=1e-6)
    assert "undisturbed" in cell.notes[0] and "trimmed" in cell.notes[0]
    # Streams end together here, so the level dips while the next ones prefill one after another.
    assert cell.concurrency_achieved is not None and 3.4 < cell.concurrency_achieved <= 4.0
    assert cell.k == 5


def test_vllm_bench_detailed_needs_matching_lists(tmp_path: Path) -> None:
    raw = build.vllm_detailed(8)
    raw["start_times"] = raw["start_times"][:-1]
    with pytest.raises(IngestError, match="not of the same requests"):
        read_file(write(tmp_path / "x", raw))


def test_vllm_bench_draft_length_that_varies(tmp_path: Path) -> None:
    raw = json.loads((CONSTRUCTED / "vllm_bench_spec.json").read_text())
    raw["spec_decode_draft_tokens"] = 20000 * 4
    raw["spec_decode_acceptance_rate"] = 100 * raw["spec_decode_accepted_tokens"] / (20000 * 4)
    (cell,) = read_file(write(tmp_path / "x", raw)).cells
    assert (cell.k, cell.rows) == (7, 5) and "draft-length-varies" in codes(cell)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_tpot_ms": float("nan")}, "mean_tpot_ms is nan"),
        ({"mean_tpot_ms": -3.0}, "at least 0"),
        ({"completed": 0}, "no request completed"),
        ({"completed": 2.5}, "whole number"),
        ({"max_concurrency": "many"}, "should be a number"),
        ({"spec_decode_per_position_acceptance_rates": [1.4]}, "above 1"),
        ({"spec_decode_per_position_acceptance_rates": "no"}, "list of numbers"),
        ({"mean_itl_ms": [1]}, "should be a number"),
    ],
)
def test_vllm_bench_refuses(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    raw = json.loads((CONSTRUCTED / "vllm_bench_spec.json").read_text()) | change
    with pytest.raises(IngestError, match=message):
        read_file(write(tmp_path / "x", raw))


def test_duplicate_key_is_refused(tmp_path: Path) -> None:
    text = (CONSTRUCTED / "vllm_bench_spec.json").read_text()
    with pytest.raises(IngestError, match="'mean_tpot_ms' appears twice"):
        read_file(write(tmp_path / "x", text[:-1] + ', "mean_tpot_ms": 1.0}'))


def test_open_loop_and_missing_limit(tmp_path: Path) -> None:
    raw = json.loads((CONSTRUCTED / "vllm_bench_spec.json").read_text()) | {
        "request_rate": 2.0,
        "max_concurrency": None,
    }
    (cell,) = read_file(write(tmp_path / "x", raw)).cells
    assert {"open-loop", "concurrency-achieved"} <= codes(cell)


# vLLM metrics


def test_metrics_difference() -> None:
    (found,) = read_files([CONSTRUCTED / "vllm_metrics_before.prom", CONSTRUCTED / "vllm_metrics_after.prom"])
    (cell,) = found.cells
    assert cell.survival == pytest.approx((0.8, 0.65, 0.5, 0.4, 0.3))
    assert cell.tokens_per_step == pytest.approx(3.65) and (cell.k, cell.drafts) == (5, 9000)
    assert cell.step_s == pytest.approx(0.012) and cell.tpot_s == pytest.approx(0.012 / 3.65)
    assert cell.ttft_s == pytest.approx(0.45) and cell.context_tokens == 2048
    assert "counter-reset" not in codes(cell) and "identity-failed" not in codes(cell)
    assert "4 requests were running at both pages" in cell.notes
    assert "vllm:num_preemptions_total" in found.unknown


def test_metrics_single_page_is_since_start() -> None:
    (cell,) = read_file(CONSTRUCTED / "vllm_metrics_after.prom").cells
    assert "since-start" in codes(cell) and cell.drafts == 10000


@pytest.mark.parametrize("order", [("before", "after_restart"), ("after", "before")])
def test_metrics_restart_is_noticed(order: tuple[str, str]) -> None:
    (found,) = read_files([CONSTRUCTED / f"vllm_metrics_{name}.prom" for name in order])
    assert "counter-reset" in codes(found.cells[0])


def test_metrics_same_page_twice() -> None:
    with pytest.raises(IngestError, match="no counter moved"):
        read_files([CONSTRUCTED / "vllm_metrics_after.prom"] * 2)


def test_metrics_more_than_two_pages() -> None:
    with pytest.raises(IngestError, match="3 metrics pages"):
        read_files([CONSTRUCTED / "vllm_metrics_after.prom"] * 3)


@pytest.mark.parametrize(
    ("find", "put", "message"),
    [
        (f"_drafts_total{LABEL} 10000.0", f"_drafts_total{LABEL} -5", "cannot be negative"),
        (f"_drafts_total{LABEL} 10000.0", f"_drafts_total{LABEL} NaN", "cannot be that"),
        ('position="4"', 'position="3"', "appears twice"),
        ('position="2"', 'position="9"', "without a gap"),
        ('position="4"', 'position="x"', "whole number"),
        ("vllm:spec_decode_num_drafts_total{", "vllm:spec_decode_num_drafts_total{{", "not a Prometheus page"),
    ],
)  # fmt: skip
def test_metrics_refuses(find: str, put: str, message: str, tmp_path: Path) -> None:
    text = (CONSTRUCTED / "vllm_metrics_after.prom").read_text()
    assert find in text
    with pytest.raises(IngestError, match=message):
        read_file(write(tmp_path / "x", text.replace(find, put)))


def test_metrics_two_models(tmp_path: Path) -> None:
    text = (CONSTRUCTED / "vllm_metrics_after.prom").read_text()
    other = "\n".join(
        line.replace("deepseek-v4.1-flash", "other") for line in text.splitlines() if line.startswith("vllm:")
    )
    with pytest.raises(IngestError, match="several models"):
        read_file(write(tmp_path / "x", text + other + "\n"))


def test_prefix_cache_hits_are_flagged(tmp_path: Path) -> None:
    text = (CONSTRUCTED / "vllm_metrics_after.prom").read_text()
    text = text.replace(f"vllm:prefix_cache_hits_total{LABEL} 0.0", f"vllm:prefix_cache_hits_total{LABEL} 45056.0")
    (cell,) = read_file(write(tmp_path / "x", text)).cells
    assert cell.prefix_hit_share == pytest.approx(0.5) and "prefix-cache" in codes(cell)


# counter window


def test_counter_window_real() -> None:
    """8,222 accepted over 3,197 drafts of 5: mean_accepted_per_draft 2.5717860494213327 stands in the file."""
    (cell,) = read_file(REAL / "counter_window_c8.json").cells
    assert cell.tokens_per_step == pytest.approx(1 + 2.5717860494213327) and (cell.k, cell.drafts) == (5, 3197)
    assert cell.survival == pytest.approx((2510 / 3197, 1924 / 3197, 1466 / 3197, 1257 / 3197, 1065 / 3197))


def test_counter_window_swapped_and_wrong(tmp_path: Path) -> None:
    raw = json.loads((REAL / "counter_window_c8.json").read_text())
    with pytest.raises(IngestError, match="smaller after than before"):
        read_file(write(tmp_path / "x", raw | {"before": raw["after"], "after": raw["before"]}))
    with pytest.raises(IngestError, match="delta says"):
        read_file(write(tmp_path / "x", raw | {"delta": raw["delta"] | {"num_drafts_total": 7}}))


# server logs


def test_vllm_log() -> None:
    found = read_file(CONSTRUCTED / "vllm_server.log")
    (cell,) = found.cells
    assert (cell.k, cell.concurrency_asked) == (5, 4.0)
    assert cell.step_s == pytest.approx(0.012, rel=2e-3) and cell.step_definition == "step_interval"
    assert cell.tokens_per_step == pytest.approx(3.65, rel=1e-3)
    assert cell.survival == pytest.approx((0.8, 0.65, 0.5, 0.4, 0.3), abs=2e-3)
    assert any("prefilled meanwhile" in note for note in found.notes)
    assert any("warm-up and drain" in note for note in found.notes)


def test_vllm_log_of_a_real_server() -> None:
    """Six intervals on four GB10: what a throughput line generates is what its own speculation line accepted, and one
    token more a draft (245.9 = 200.83 + 224.92 / 5 at 16:14:34), so the speculation line is the one printed after it.
    """
    lines = (REAL / "vllm_server_gb10.log").read_text().splitlines()
    for rate, spec in zip(lines[::2], lines[1::2], strict=True):
        generated = float(rate.split("generation throughput: ")[1].split()[0])
        accepted, drafted = (
            float(spec.split(f"{word} throughput: ")[1].split()[0]) for word in ("Accepted", "Drafted")
        )
        assert generated == pytest.approx(accepted + drafted / 5, rel=0.02)
    (cell,) = read_file(REAL / "vllm_server_gb10.log").cells
    # Requests came and went all the time, so only the pooled acceptance is left: 5,274 accepted of 10,220 drafted.
    assert (cell.k, cell.step_s) == (5, None) and "no-throughput" in codes(cell)
    assert cell.tokens_per_step == pytest.approx(1 + 5274 / (10220 / 5), rel=2e-3)


@pytest.mark.parametrize("stamped", [True, False])
def test_vllm_log_lines_find_each_other(stamped: bool, tmp_path: Path) -> None:
    """Acceptance changes from interval to interval while the step does not: pairs of different intervals would show."""
    lines = []
    for i in range(8):
        kept = 2.0 + 0.3 * (i % 4)
        drafts = round(4 * 10 / 0.02)
        stamp = f"INFO 09-15 10:{i:02d}:00 " if stamped else "INFO "
        lines += [
            f"{stamp}Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {4 * kept / 0.02:.1f} "
            "tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.9%, Prefix cache hit rate: 0.0%",
            f"{stamp}SpecDecoding metrics: Mean acceptance length: {kept:.2f}, Accepted throughput: 1 tokens/s, Drafted "
            f"throughput: 1 tokens/s, Accepted: {round(drafts * (kept - 1))} tokens, Drafted: {drafts * 3} tokens, "
            f"Per-position acceptance rate: {(kept - 1) / 2:.3f}, {(kept - 1) / 2:.3f}, Avg Draft acceptance rate: 9%",
        ]
    orders = [lines]
    if stamped:
        orders.append([line for pair in zip(lines[1::2], lines[::2], strict=True) for line in pair])
    for order in orders:
        (cell,) = read_file(write(tmp_path / "x", "\n".join(order))).cells
        assert cell.step_s == pytest.approx(0.02, rel=1e-3) and cell.noise == 0.005


def test_vllm_log_with_acceptance_only(tmp_path: Path) -> None:
    lines = (CONSTRUCTED / "vllm_server.log").read_text().splitlines()
    (cell,) = read_file(write(tmp_path / "x", "\n".join(line for line in lines if "SpecDecoding" in line))).cells
    assert (
        cell.step_s is None and cell.tokens_per_step == pytest.approx(3.64, abs=0.03) and "no-throughput" in codes(cell)
    )


def test_sglang_log_of_a_real_server() -> None:
    """32 streams on eight GB10: 32 x 4.89 / 899.85 = 174 ms at 00:16:04, and 40 decode steps between lines that are 6 to
    7 seconds apart.
    """
    (cell,) = read_file(REAL / "sglang_server_c32.log").cells
    steps = [
        32 * a / g
        for a, g in ((4.89, 899.85), (2.84, 487.43), (1.95, 368.31), (2.02, 284.54), (2.2, 456.84), (3.77, 585.48))
    ]
    assert cell.step_s == pytest.approx(float(np.median(steps))) and 6.0 / 40 < cell.step_s < 7.5 / 40
    assert (cell.concurrency_asked, cell.context_tokens) == (32.0, 256.0)


def test_real_tables_of_llama_cpp() -> None:
    """gpt-oss-120b on a GB10: 59.02 tok/s alone, 312.56 of 32 streams at 512 tokens."""
    batched = read_file(REAL / "llama_batched_bench_dgx_spark.md").cells
    assert len(batched) == 12 and batched[5].step_s == pytest.approx(32 / 312.56, rel=1e-3)
    assert batched[5].prefill_tok_s == pytest.approx(1983.16)
    plain = read_file(REAL / "llama_bench_dgx_spark.md").cells
    assert [c.context_tokens for c in plain if c.tok_s_per_stream] == [0, 4096, 8192, 16384, 32768]
    assert plain[1].tok_s_per_stream == 59.02 and plain[1].noise == pytest.approx(0.17 / 59.02)


def test_real_aiperf_export() -> None:
    """Plain decoding: the interval between chunks, 19.58 ms, is the time of a token, 19.56 ms; 4 asked, 3.7 in flight."""
    (cell,) = read_file(REAL / "aiperf_llama3_8b_c4.json").cells
    assert cell.itl_s == pytest.approx(cell.tpot_s, rel=1e-3) and "plain-decoding?" in codes(cell)
    assert cell.concurrency_asked == 4.0 and cell.concurrency_achieved == pytest.approx(3.6922, rel=1e-3)


def test_real_metrics_page_with_a_k_schedule() -> None:
    """35,726 accepted in 36,676 drafts of 2.06 tokens, at most 5."""
    (cell,) = read_file(REAL / "vllm_metrics_speculation.prom").cells
    assert cell.tokens_per_step == pytest.approx(1 + 35726 / 36676) and (cell.k, cell.drafts) == (5, 36676)
    assert {"draft-length-varies", "since-start"} <= codes(cell)


def test_sglang_log() -> None:
    found = read_file(CONSTRUCTED / "sglang_server.log")
    (cell,) = found.cells
    # speculative_num_draft_tokens counts the last kept token: 6 verified rows are k = 5.
    assert (cell.k, cell.concurrency_asked) == (5, 4.0)
    assert cell.step_s == pytest.approx(0.012, rel=1e-3) and cell.tokens_per_step == pytest.approx(3.65, rel=2e-3)
    assert "Decode batch: est. decode TFLOPS/s (per GPU)" in found.unknown


def test_llama_server_log() -> None:
    """Steps are tokens minus accepted drafts, exactly: 2048 - 1186 = 862 at 35.2 ms in the constructed log."""
    (cell,) = read_file(CONSTRUCTED / "llama_server.log").cells
    assert cell.step_s == pytest.approx(0.0352, rel=1e-5)
    assert cell.tokens_per_step == pytest.approx((2048 + 1024 + 1500) / (862 + 424 + 620))
    assert cell.k is None


# other benches


def test_sglang_bench_both_clients() -> None:
    spread, chunks = read_file(CONSTRUCTED / "sglang_bench.jsonl").cells
    assert spread.itl_unit == "token" and spread.step_s is None
    assert chunks.itl_unit == "chunk" and chunks.step_s == pytest.approx(0.012)
    for cell in (spread, chunks):
        assert cell.acceptance_source == "server_average" and "server-average" in codes(cell)


def test_trtllm_bench() -> None:
    found = read_file(CONSTRUCTED / "trtllm_bench_report.json")
    (cell,) = found.cells
    assert cell.k == 3 and cell.tokens_per_step == 2.47 and cell.tpot_s == pytest.approx(3.578e-3)
    assert cell.concurrency_achieved == 3.97 and cell.tok_s_aggregate == 1092.3
    assert list(found.unknown) == ["energy"]


def test_aiperf_inter_token_latency_is_tpot() -> None:
    found = read_file(CONSTRUCTED / "aiperf_export.json")
    (cell,) = found.cells
    assert cell.tpot_s == pytest.approx(3.288e-3) and cell.step_s == pytest.approx(0.012)
    assert (cell.k, cell.tokens_per_step, cell.concurrency_asked) == (5, 3.65, 4.0)
    assert list(found.unknown) == ["novel_metric"]


def test_genai_perf() -> None:
    (cell,) = read_file(CONSTRUCTED / "genai_perf_export.json").cells
    assert cell.step_s is None and cell.tpot_s == pytest.approx(6.1e-3) and cell.concurrency_asked == 4


def test_aiperf_unit_must_be_known(tmp_path: Path) -> None:
    raw = json.loads((CONSTRUCTED / "aiperf_export.json").read_text())
    raw["inter_token_latency"]["unit"] = "fortnights"
    with pytest.raises(IngestError, match="unit 'fortnights'"):
        read_file(write(tmp_path / "x", raw))


def test_inferencex_disaggregated_is_excluded(tmp_path: Path) -> None:
    raw = json.loads((REAL / "inferencex_agg_kimik2.5_conc4.json").read_text()) | {
        "disagg": True,
        "is_multinode": True,
        "num_decode_gpu": 16,
    }
    (cell,) = read_file(write(tmp_path / "x", raw)).cells
    assert cell.exclude and cell.tok_s_aggregate == pytest.approx(16 * 27.678011491816765)


def test_llama_bench_real() -> None:
    """llama.cpp's own example: pp512 7100.0 tok/s, tg128 118.88 +- 1.04 tok/s."""
    prefill, decode = read_file(REAL / "llama_bench_readme.json").cells
    assert prefill.prefill_tok_s == pytest.approx(7100.002165) and prefill.step_s is None
    assert decode.step_s == pytest.approx(1 / 118.881588) and decode.noise == pytest.approx(1.041811 / 118.881588)
    assert (decode.k, decode.concurrency_asked) == (0, 1.0)


def test_llama_batched_bench_both_forms() -> None:
    lines, table = (read_file(CONSTRUCTED / f"llama_batched_bench.{kind}") for kind in ("jsonl", "md"))
    for cells in (lines.cells, table.cells):
        assert [c.concurrency_asked for c in cells] == [1, 4, 8]
        assert [c.step_s for c in cells] == pytest.approx([0.71 / 128, 1.02 / 128, 1.41 / 128])
        assert "same-tokens" in codes(cells[1])


def test_acceptance_lengths_real() -> None:
    found = read_file(REAL / "acceptance_lengths_dsv4_mtp.yaml")
    assert len(found.cells) == 16
    assert (found.cells[2].k, found.cells[2].tokens_per_step) == (3, 2.49)
    assert "acceptance-only" in codes(found)


# tables


def test_peer_table_markdown() -> None:
    found = read_file(CONSTRUCTED / "peer_table.md")
    first, second, four = found.cells
    assert (first.context_tokens, second.context_tokens) == (2048, 16384)
    assert (first.tok_s_per_stream, four.tok_s_per_stream, four.tok_s_aggregate) == (696.5, 402.1, 1608.4)
    assert first.noise == pytest.approx(3.1 / 696.5) and first.ttft_s == pytest.approx(0.31) and four.ttft_s is None
    assert first.tokens_per_step == 5.92 and first.prefill_tok_s == 6480
    assert "column 'mood'" in found.unknown


def test_peer_table_csv_real() -> None:
    """GB10 sweep: at 2,048 tokens 20.646 tok/s, prefill 789.184 tok/s, end-to-end TTFT 5598.89 ms."""
    found = read_file(REAL / "peer_table_gb10_sweep.csv")
    assert len(found.cells) == 16
    cell = found.cells[0]
    assert (cell.context_tokens, cell.concurrency_asked, cell.tok_s_per_stream, cell.prefill_tok_s) == (
        2048,
        1,
        20.646,
        789.184,
    )
    assert cell.ttft_s == pytest.approx(5.59889)


def test_peer_table_test_column() -> None:
    found = read_file(CONSTRUCTED / "peer_table_benchy.md")
    assert [c.context_tokens for c in found.cells] == [2048, 2048, 6144, 6144]
    assert [c.tok_s_per_stream for c in found.cells] == [None, 50.48, None, 50.28]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,c,tg tok/s\n2048,0,50\n", "at least 1"),
        ("prompt,c,tg tok/s\n2048,1,-50\n", "negative"),
        ("prompt,c,tg tok/s\n2048,1,50,9\n", "4 cells in a table of 3"),
        ("prompt,prompt,tg tok/s\n1,2,3\n", "two columns are named"),
        ("prompt,c,tg tok/s,ttft\n2048,1,50,3\n", "has no unit"),
        ("prompt,c,tg tok/s,accept len\n2048,1,50,0.4\n", "at least 1"),
        ("prompt,c,tg tok/s\n", "no row with a rate"),
    ],
)
def test_peer_table_refuses(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=message):
        read_file(write(tmp_path / "x.csv", text))


def test_llama_bench_table_decodes_on_its_own(tmp_path: Path) -> None:
    table = (
        "| model | size | test | t/s |\n|---|---|---|---|\n"
        "| m | 4 GiB | pp 512 | 7340.20 ± 23.45 |\n"
        "| m | 4 GiB | tg 128 @ d512 | 120.60 ± 0.59 |\n"
    )
    prefill, decode = read_file(write(tmp_path / "x.md", table)).cells
    assert (prefill.context_tokens, decode.context_tokens, decode.tok_s_per_stream) == (512, 512, 120.6)


@pytest.mark.parametrize("name", ["step_cost.csv", "step_cost.json"])
def test_step_cost(name: str) -> None:
    found = read_file(CONSTRUCTED / name)
    assert {c.batch_tokens: c.step_s for c in found.cells}[8] == pytest.approx(8.5e-3)


def test_step_cost_of_sglang() -> None:
    found = read_file(CONSTRUCTED / "sglang_sps_table.json")
    assert [c.step_s for c in found.cells] == pytest.approx([1 / 117.6, 1 / 91.7, 1 / 70.4])


# routing


def test_routing_counts_both_forms_agree() -> None:
    a, b = (read_file(CONSTRUCTED / f"routing_counts.{kind}").extras["routing_counts"] for kind in ("json", "csv"))
    assert a == b and (a["layers"], a["experts"]) == (4, 64)


def test_expert_trace_uniform_law(tmp_path: Path) -> None:
    """Independent uniform ids: unique experts at m tokens are E (1 - (1 - K/E)^m), here within sampling error."""
    found = read_file(build.expert_trace(tmp_path / "x.npz", tokens=4000, layers=4, top_k=4, experts=32))
    unique = found.extras["routing_trace"]["unique_experts_mean"]
    for m in (1, 2, 4, 8, 16):
        assert unique[str(m)] == pytest.approx(32 * (1 - (1 - 4 / 32) ** m), rel=0.03)
    assert not found.cells and list(found.unknown) == ["array note"]


def test_expert_trace_of_pickled_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, expert_ids=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(IngestError, match="holds Python objects"):
        read_file(path)
