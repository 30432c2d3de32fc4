"""The command: files of three formats with the same rows, choices, refusals, and a real interruption."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from twin.cli.sweep import command
from twin.errors import TwinError

GRID = ["--lane", "sidecar", "--lane", "tp4", "--grid", "k=0..3", "--grid", "streams=1,4", "--samples", "16"]


def done(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*GRID, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_files_of_every_format_hold_the_same_rows(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    for kind in ("jsonl", "csv", "parquet"):
        done("-o", str(tmp_path / f"s.{kind}"))
    assert {p.name for p in tmp_path.iterdir()} == {"s.jsonl", "s.csv", "s.parquet"}  # no partial results are left
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert pq.read_table(tmp_path / "s.parquet").to_pylist() == rows
    with (tmp_path / "s.csv").open() as stream:
        assert [float(r["step_ms"]) for r in csv.DictReader(stream)] == [r["step_ms"] for r in rows]
    assert done("--format", "csv") == (tmp_path / "s.csv").read_text()
    with pytest.raises(TwinError, match="--force"):
        done("-o", str(tmp_path / "s.csv"))


def test_best_front_and_constraints_agree_with_the_rows() -> None:
    rows = [json.loads(line) for line in done("--format", "jsonl").splitlines()]
    found = json.loads(
        done(
            "--json",
            "--best",
            "tok_s_aggregate",
            "--subject-to",
            "k<=2, lane=tp4",
            "--pareto",
            "tok_s_per_stream,tok_s_aggregate",
        )
    )
    inside = [r for r in rows if r["k"] <= 2 and r["lane"] == "tp4"]
    assert found["cells"] == 16 and found["kept"] == len(inside)
    assert found["best"] == max(inside, key=lambda r: r["tok_s_aggregate"])
    assert found["best"] in found["pareto"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--best", "tok_s_agregate"], "tok_s_aggregate"),
        (["--best", "step_ms", "--subject-to", "k>50"], "loosen"),
        (["-o", "x.xlsx"], r"\.csv"),
        (["--grid", "traffic=prosa"], "prose"),
        (["--sensitivity", "k"], "expected one of"),
    ],
)
def test_mistakes_are_answered(arguments: list[str], says: str) -> None:
    with pytest.raises(TwinError, match=says):
        done(*arguments)


def test_a_scenario_file_is_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('schema_version = 1\ntitle = "t"\nks = [1, 2]\nstreams = [1]\n[[settings]]\nlane = "tp4"\n')
    result = CliRunner().invoke(command, ["--scenario", str(path), "--samples", "8", "--json"], catch_exceptions=False)
    assert [(r["lane"], r["k"]) for r in json.loads(result.stdout)["rows"]] == [("tp4", 1), ("tp4", 2)]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out, parts = tmp_path / "s.jsonl", tmp_path / "s.jsonl.parts"
    arguments = [
        sys.executable,
        "-m",
        "twin.cli.main",
        "sweep",
        "--lane",
        "tp4",
        "--grid",
        "k=0..9",
        "--grid",
        "streams=1..200",
    ]
    arguments += ["--samples", "32", "-o", str(out), "--workers", "2"]
    running = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not list(parts.glob("[!.]*.jsonl")):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 1 and "the same command goes on" in said and "Traceback" not in said
    assert not out.exists()
    kept = {p.name: p.stat().st_mtime_ns for p in parts.iterdir()}
    assert kept
    again = subprocess.run([*arguments, "--store", str(parts)], check=True, capture_output=True, text=True)
    assert "wrote 2,000 cells" in again.stderr
    assert {p.name: p.stat().st_mtime_ns for p in parts.iterdir() if p.name in kept} == kept
