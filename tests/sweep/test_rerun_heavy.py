"""`twin rerun` on what heavy commands print: the same answer on another number of processes, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.errors import GateFailed

SERVED = ["--lane", "tp4", "--prompt", "100", "--output", "30", "--requests", "40"]
SWEEP = ["sweep", "--lane", "tp4", "--grid", "k=0..3", "--samples", "16"]
ASKED = {
    "sweep of a grid": [*SWEEP, "--grid", "streams=1,4", "--best", "tok_s_aggregate", "--subject-to", "k>0", "--pareto", "step_ms,k"],
    "sweep of a sequence": [*SWEEP, "--sobol", "8", "--seed", "3"],
    "sensitivity": ["sweep", "--lane", "tp4", "--grid", "k=3", "--samples", "8", "--sensitivity", "step_ms"],
    "plan": ["plan", *SERVED, "--slo", "p95 TTFT 2 s", "--replications", "2", "--workers", "1", "--no-pareto"],
    "simulate": ["simulate", *SERVED, "--rate", "2", "--replications", "2"],
    "suggest": ["suggest", "--lane", "tp4", "--question", "k=7 vs k=5"],
}  # fmt: skip


def _print(arguments: list[str], path: Path) -> dict[str, object]:
    found = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    path.write_text(found.stdout, encoding="utf-8")
    answer: dict[str, object] = json.loads(found.stdout)
    return answer


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_heavy_answer_is_repeated(asked: list[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    _print(asked, path)
    again = CliRunner().invoke(cli, ["rerun", str(path), "--workers", "2"], catch_exceptions=False)
    assert "identical" in again.output


def test_a_rerun_writes_no_rows_and_reads_no_partial_results(tmp_path: Path) -> None:
    rows, store, path = tmp_path / "rows.csv", tmp_path / "parts", tmp_path / "result.json"
    asked = [*SWEEP, "--output", str(rows), "--store", str(store), "--workers", "2"]
    answer = _print(asked, path)
    assert not {"output", "store", "workers", "cluster"} & set(answer["settings"])  # type: ignore[call-overload]
    rows.unlink()
    for part in store.iterdir():
        part.write_bytes(b"")
    again = CliRunner().invoke(cli, ["rerun", str(path)], catch_exceptions=False)
    assert "identical" in again.output and not rows.exists()
    assert all(part.stat().st_size == 0 for part in store.iterdir())


def test_an_altered_number_is_found(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    answer = _print([*SWEEP, "--best", "step_ms"], path)
    answer["best"]["step_ms"] *= 1.001  # type: ignore[index]
    path.write_text(json.dumps(answer), encoding="utf-8")
    found = CliRunner().invoke(cli, ["rerun", str(path)])
    assert isinstance(found.exception, GateFailed) and "best.step_ms" in found.output
