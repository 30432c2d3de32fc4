"""`twin import` on the command line, and the round trip: a file of every format in, receipts out, fit, predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ingest_build as build
import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.errors import TwinError
from twin.fitting.receipts import read_receipts
from twin.ingest.registry import READERS
from twin.ingest.routing_receipts import ROUTING_FORMATS

CONSTRUCTED, REAL = build.FIXTURES / "constructed", build.FIXTURES / "real"
TP4 = ["--lane", "tp4", "--traffic", "codegen-padded"]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, TwinError), result.exception
    return str(result.exception)


#: format -> files and the flags that say what they cannot
ROUND_TRIPS: dict[str, tuple[list[Path], list[str]]] = {
    "vllm-bench": ([CONSTRUCTED / "vllm_bench_spec.json"], ["--verification", "block"]),
    "vllm-metrics": (
        [CONSTRUCTED / "vllm_metrics_before.prom", CONSTRUCTED / "vllm_metrics_after.prom"],
        ["--verification", "block", "--concurrency", "4"],
    ),
    "vllm-log": ([CONSTRUCTED / "vllm_server.log"], ["--verification", "block", "--context", "2048"]),
    "counter-window": (
        [REAL / "counter_window_c8.json"],
        ["--verification", "token", "--concurrency", "8", "--context", "2048"],
    ),
    "sglang-bench": ([CONSTRUCTED / "sglang_bench.jsonl"], ["--k", "5", "--verification", "block"]),
    "sglang-log": ([CONSTRUCTED / "sglang_server.log"], ["--verification", "block"]),
    "trtllm-bench": ([CONSTRUCTED / "trtllm_bench_report.json"], ["--verification", "token"]),
    "aiperf": ([CONSTRUCTED / "aiperf_export.json"], ["--verification", "block"]),
    "inferencex": ([REAL / "inferencex_agg_kimik2.5_conc4.json"], ["--k", "3", "--verification", "token"]),
    "llama-bench": ([REAL / "llama_bench_readme.json"], []),
    "llama-batched-bench": ([CONSTRUCTED / "llama_batched_bench.jsonl"], []),
    "llama-server-log": (
        [CONSTRUCTED / "llama_server.log"],
        ["--k", "3", "--verification", "token", "--concurrency", "1", "--context", "733"],
    ),
    "peer-table": ([CONSTRUCTED / "peer_table.md"], ["--k", "7", "--verification", "block"]),
    "step-cost": ([CONSTRUCTED / "step_cost.csv"], ["--k", "7", "--verification", "block", "--context", "2048"]),
    "nsys-csv": ([CONSTRUCTED / "nsys_gpu_trace.csv"], ["--k", "0", "--concurrency", "1", "--context", "2048"]),
    "torch-trace": ([Path("trace.json")], ["--k", "0", "--concurrency", "1", "--context", "2048"]),
    "nsys-sqlite": ([Path("trace.sqlite")], ["--k", "0", "--concurrency", "1", "--context", "2048"]),
    "acceptance-lengths": (
        [REAL / "acceptance_lengths_dsv4_mtp.yaml"],
        ["--verification", "token", "--concurrency", "1", "--context", "2048"],
    ),
}


def test_every_format_has_a_round_trip() -> None:
    """Those of routing counts and expert traces are in test_ingest_routing.py: what they move is no time."""
    assert {reader.name for reader in READERS} == set(ROUND_TRIPS) | set(ROUTING_FORMATS)


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
def test_round_trip(name: str, tmp_path: Path) -> None:
    files, flags = ROUND_TRIPS[name]
    if name == "torch-trace":
        files = [build.torch_trace(tmp_path / "trace.json")]
    if name == "nsys-sqlite":
        files = [build.nsys_sqlite(tmp_path / "trace.sqlite")]
    table, fit = tmp_path / "receipts.csv", tmp_path / "fit.json"
    result = run("import", *files, "-o", table, *TP4, *flags)
    assert result.exit_code == 0, result.exception
    receipts = read_receipts(table)
    assert receipts and any(r.use == "fit" for r in receipts)
    result = run("fit", table, "--lane", "tp4", "-o", fit)
    assert result.exit_code == 0, (result.exception, result.output)
    result = run("predict", "--lane", "tp4", "--k", "5", "--traffic", "mixed", "--calibration", fit, "--json")
    assert result.exit_code == 0, result.exception
    answer = json.loads(result.stdout)
    assert answer["calibration"]["receipts"] == sum(r.use == "fit" for r in receipts)
    assert answer["cells"][0]["step_ms"]["mean"] > 0


def test_several_files_at_once(tmp_path: Path) -> None:
    table = tmp_path / "receipts.csv"
    files = [CONSTRUCTED / "vllm_bench_spec.json", CONSTRUCTED / "peer_table.md"]
    assert run("import", *files, "-o", table, *TP4, "--k", "7", "--verification", "block").exit_code == 0
    sources = {r.source.split(" ")[0].rsplit("/", 1)[-1] for r in read_receipts(table)}
    assert sources == {"vllm_bench_spec.json", "peer_table.md"}


def test_separate_imports_of_one_base_name_can_be_fitted_together(tmp_path: Path) -> None:
    """Two runs, both saved as bench.json: their receipts differ by the digest in the id. One run twice stays refused."""
    tables = []
    for run_number in (1, 2):
        folder = tmp_path / str(run_number)
        folder.mkdir()
        raw = json.loads((CONSTRUCTED / "vllm_bench_spec.json").read_text())
        raw["mean_itl_ms"] = raw["mean_itl_ms"] * (1 + 0.01 * run_number)
        (folder / "bench.json").write_text(json.dumps(raw))
        tables.append(folder / "receipts.csv")
        arguments = ("import", folder / "bench.json", "-o", tables[-1], *TP4, "--verification", "block")
        assert run(*arguments).exit_code == 0
    assert run("fit", *tables, "--lane", "tp4").exit_code == 0
    again = tmp_path / "again.csv"
    assert run("import", tmp_path / "1" / "bench.json", "-o", again, *TP4, "--verification", "block").exit_code == 0
    assert "already used" in refusal("fit", tables[0], again, "--lane", "tp4")


def test_a_file_alone_is_described() -> None:
    result = run("import", CONSTRUCTED / "vllm_bench_identity_fails.json")
    assert result.exit_code == 0
    assert "vllm-bench, 1 cell" in result.stdout and "identity-failed" in result.stdout
    assert "kept without a meaning (1): box" in result.stdout
    assert "--lane" in result.stderr


def test_json_keeps_unknown_keys_flags_and_evidence(tmp_path: Path) -> None:
    trace = build.torch_trace(tmp_path / "trace.json")
    result = run("import", CONSTRUCTED / "vllm_bench_spec.json", trace, "--json")
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1 and document["receipts"] == []
    bench, traced = document["files"]
    assert bench["unknown"] == {"box": "four cards"} and bench["cells"][0]["k"] == 7
    assert traced["extras"]["trace"]["evidence"]["period_kernels"] == build.STEP_KERNELS


def test_json_with_receipts() -> None:
    result = run("import", CONSTRUCTED / "vllm_bench_spec.json", "--json", *TP4, "--verification", "block")
    assert len(json.loads(result.stdout)["receipts"]) == 5


def test_an_existing_table_is_kept(tmp_path: Path) -> None:
    table = tmp_path / "receipts.csv"
    table.write_text("mine")
    arguments = ("import", CONSTRUCTED / "vllm_bench_spec.json", "-o", table, *TP4, "--verification", "block")
    assert "exists already" in refusal(*arguments) and table.read_text() == "mine"
    assert run(*arguments, "--force").exit_code == 0 and table.read_text() != "mine"


def test_a_refusal_leaves_no_table(tmp_path: Path) -> None:
    table = tmp_path / "receipts.csv"
    assert "--traffic" in refusal("import", CONSTRUCTED / "vllm_bench_spec.json", "-o", table, "--lane", "tp4")
    assert list(tmp_path.iterdir()) == []


def test_the_output_is_not_one_of_the_files(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes((REAL / "peer_table_gb10_sweep.csv").read_bytes())
    assert "one of the files to read" in refusal("import", table, "-o", table, "--force", *TP4)


def test_formats_are_listed() -> None:
    result = run("import", "--formats")
    assert all(reader.name in result.stdout for reader in READERS)


def test_no_file_is_a_usage_error() -> None:
    assert run("import", "-o", "x.csv").exit_code == 2


def test_forced_format() -> None:
    assert "broken JSON" in refusal("import", CONSTRUCTED / "vllm_server.log", "--format", "vllm-bench")


def test_max_size_needs_a_unit_and_bounds_a_gzip_bomb(tmp_path: Path) -> None:
    import gzip

    bomb = tmp_path / "bomb.log.gz"
    line = (CONSTRUCTED / "vllm_server.log").read_bytes()
    bomb.write_bytes(gzip.compress(line + b"x" * 70 + b"\n" + (b"0" * 99 + b"\n") * 100_000))
    assert "has no unit" in refusal("import", bomb, "--max-size", "1000")
    assert "more than" in refusal("import", bomb, "--max-size", "1 MB")
