"""Every format is recognised by its content, whatever the file is called; what is not known is refused helpfully."""

from __future__ import annotations

import gzip
from pathlib import Path

import ingest_build as build
import pytest

from twin.errors import IngestError
from twin.ingest.registry import READERS, by_name, read_file, recognise
from twin.ingest.source import source

EXPECTED = {
    "real/vllm_bench_old_seconds_glm5.json": "vllm-bench",
    "real/vllm_bench_minimax-m2.5_conc8.json": "vllm-bench",
    "real/inferencex_agg_kimik2.5_conc4.json": "inferencex",
    "real/acceptance_lengths_dsv4_mtp.yaml": "acceptance-lengths",
    "real/counter_window_c8.json": "counter-window",
    "real/peer_table_gb10_sweep.csv": "peer-table",
    "real/llama_bench_readme.json": "llama-bench",
    "real/llama_bench_dgx_spark.md": "peer-table",
    "real/llama_batched_bench_dgx_spark.md": "llama-batched-bench",
    "real/aiperf_llama3_8b_c4.json": "aiperf",
    "real/vllm_metrics_speculation.prom": "vllm-metrics",
    "real/vllm_server_gb10.log": "vllm-log",
    "real/sglang_server_c32.log": "sglang-log",
    "constructed/vllm_bench_spec.json": "vllm-bench",
    "constructed/vllm_bench_identity_fails.json": "vllm-bench",
    "constructed/vllm_metrics_before.prom": "vllm-metrics",
    "constructed/vllm_metrics_after.prom": "vllm-metrics",
    "constructed/vllm_metrics_after_restart.prom": "vllm-metrics",
    "constructed/vllm_server.log": "vllm-log",
    "constructed/sglang_server.log": "sglang-log",
    "constructed/sglang_bench.jsonl": "sglang-bench",
    "constructed/trtllm_bench_report.json": "trtllm-bench",
    "constructed/aiperf_export.json": "aiperf",
    "constructed/genai_perf_export.json": "aiperf",
    "constructed/llama_batched_bench.jsonl": "llama-batched-bench",
    "constructed/llama_batched_bench.md": "llama-batched-bench",
    "constructed/llama_server.log": "llama-server-log",
    "constructed/peer_table.md": "peer-table",
    "constructed/peer_table_benchy.md": "peer-table",
    "constructed/step_cost.csv": "step-cost",
    "constructed/step_cost.json": "step-cost",
    "constructed/sglang_sps_table.json": "step-cost",
    "constructed/nsys_kern_sum.csv": "nsys-csv",
    "constructed/nsys_gpu_trace.csv": "nsys-csv",
    "constructed/routing_counts.json": "routing-counts",
    "constructed/routing_counts.csv": "routing-counts",
    "constructed/expert_trace.csv": "expert-trace",
}


def test_every_fixture_is_listed() -> None:
    there = {
        str(p.relative_to(build.FIXTURES))
        for kind in ("real", "constructed")
        for p in (build.FIXTURES / kind).iterdir()
    }
    assert there == set(EXPECTED)


def test_every_reader_has_a_fixture() -> None:
    built = {"torch-trace", "nsys-sqlite", "expert-trace"}
    assert {reader.name for reader in READERS} == set(EXPECTED.values()) | built


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recognised_by_content(name: str, tmp_path: Path) -> None:
    disguised = tmp_path / "no-name"
    disguised.write_bytes((build.FIXTURES / name).read_bytes())
    assert recognise(source(disguised)).name == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_gzip_gives_the_same(name: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress((build.FIXTURES / name).read_bytes()))
    plain, unpacked = read_file(build.FIXTURES / name), read_file(packed)
    assert unpacked.format == plain.format
    assert unpacked.cells == plain.cells
    assert unpacked.unknown == plain.unknown


def test_built_files(tmp_path: Path) -> None:
    assert recognise(source(build.torch_trace(tmp_path / "a"))).name == "torch-trace"
    assert recognise(source(build.nsys_sqlite(tmp_path / "b"))).name == "nsys-sqlite"
    assert recognise(source(build.expert_trace(tmp_path / "c.npz"))).name == "expert-trace"


def test_unknown_json_names_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"request_rate": "inf", "burstiness": 1.0, "max_concurrency": 4, "answer": 42}')
    with pytest.raises(IngestError, match=r"closest is a vLLM `bench serve` result .*Known: .*trtllm-bench") as refusal:
        read_file(path)
    assert "--format" in str(refusal.value)


def test_prose_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("The quick brown fox.\n" * 50)
    with pytest.raises(IngestError, match="no known format"):
        read_file(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"  \n\t ", "empty"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd\x00", "Zstandard"),
        (b"%PDF-1.7", "PDF"),
        (b"\x1f\x8b\x08\x00\x00", "gzip data is cut off"),
        (b"\x00\x01\x02\x03" * 100, "no known format"),
    ],
)
def test_foreign_bytes(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(IngestError, match=message):
        read_file(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="No such file"):
        read_file(tmp_path / "nothing")
    with pytest.raises(IngestError, match="a folder"):
        read_file(tmp_path)


def test_unknown_format_name() -> None:
    with pytest.raises(IngestError, match="vllm-bench"):
        by_name("vlm-bench")


def test_a_log_that_starts_with_much_else(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    noise = "".join(f"INFO 09-15 10:00:00 [loader.py:{i}] Loading shard {i}\n" for i in range(4000))
    path.write_text(noise + (build.FIXTURES / "constructed/vllm_server.log").read_text())
    assert len(noise) > 100_000
    assert read_file(path).format == "vllm-log"
