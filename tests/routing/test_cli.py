"""`twin union` and `twin placement` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from twin.cli.placement import command as placement
from twin.cli.union import command as union
from twin.errors import TrafficError, TwinError


def run(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=True)  # type: ignore[arg-type]


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    shares = rng.gamma(1.0, size=(3, 32))
    file = tmp_path / "counts.json"
    file.write_text(json.dumps([rng.multinomial(5000, row / row.sum()).tolist() for row in shares]))
    return file


def test_the_table_of_the_flash_checkpoint() -> None:
    result = run(
        union, "--checkpoint", "deepseek-v4.1-flash", "--tokens", "1,2,4,6,8,16,64", "--streams", "1,4,16", "--json"
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    cells = {(c["streams"], c["tokens"]): c for c in answer["cells"]}
    assert len(cells) == 21 and answer["measured"] and answer["longest_measured"] == 8
    assert cells[1, 6]["unique"] == pytest.approx(22.45, rel=0.01)
    assert cells[1, 6]["uniform"] == pytest.approx(34.6, abs=0.1)
    assert cells[1, 64]["high"] > 2 * cells[1, 64]["low"]
    text = run(union, "--checkpoint", "deepseek-v4.1-flash").stdout
    assert "uniform" in text and "Measured up to 8 tokens" in text


def test_a_router_by_its_numbers_and_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "out.svg"
    result = run(union, "--experts", "64", "--top-k", "4", "--tokens", "1,4", "--streams", "1", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert plot.read_text().lstrip().startswith("<?xml") and "No union of this router" in result.stdout
    assert run(union, "--experts", "64", "--top-k", "4", "--plot", str(tmp_path / "x.doc")).exit_code == 1


@pytest.mark.parametrize(
    "text",
    ["", "--experts 8", "--experts 4 --top-k 8", *(f"--experts 8 --top-k 2 {x}" for x in
     ("--tokens 0", "--tokens a,b", "--tokens 1,,2", "--workload x", "--streams 99999999", "--diversity 2"))],
)  # fmt: skip
def test_union_usage_errors(text: str) -> None:
    assert run(union, *text.split()).exit_code == 2


def test_union_refusals() -> None:
    result = run(union, "--checkpoint", "deepseek-v4.1-flash", "--workload", "proze")
    assert isinstance(result.exception, TrafficError) and "prose" in str(result.exception)


def test_a_hot_map_is_written_and_judged(counts: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    result = run(placement, str(counts), "--top-k", "2", "--hot", "24", "--ranks", "4", "--out", str(out), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert len(answer["forecast"]["by_layer"]) == 3 and answer["ranks"]["ranks"] == 4
    written = json.loads(out.read_text())
    assert [len(row) for row in written["hot"]] == [24, 24, 24]
    again = run(placement, str(counts), "--top-k", "2", "--map", str(out), "--json")
    judged = json.loads(again.stdout)
    assert judged["forecast"]["cold_share"] == pytest.approx(answer["forecast"]["cold_share"])
    assert judged["retraining"]["share"] == pytest.approx(judged["retraining"]["share_retrained"])
    assert "maps of other sizes" in run(placement, str(counts), "--top-k", "2").stdout


def test_a_trace_gives_locality(tmp_path: Path) -> None:
    ids = np.argsort(np.random.default_rng(0).random((200, 2, 16)), axis=-1)[..., :3]
    file = tmp_path / "t.npz"
    np.savez(file, experts=ids)
    answer = json.loads(run(placement, str(file), "--experts", "16", "--hot", "8", "--json").stdout)
    assert answer["top_k"] == 3 and len(answer["locality"]) == 2
    assert answer["locality"][0]["unique"][0] == pytest.approx(3.0)
    assert answer["locality"][0]["cold_counted"] > 0
    assert "beta" in run(placement, str(file), "--experts", "16").stdout


def test_placement_refusals(counts: Path, tmp_path: Path) -> None:
    assert run(placement, str(counts)).exit_code == 2
    for arguments in (
        (str(tmp_path / "none.json"), "--top-k", "2"), (str(counts), "--top-k", "2", "--hot", "99"),
        (str(counts), "--top-k", "2", "--experts", "64"), (str(counts), "--top-k", "60"),
        (str(counts), "--top-k", "2", "--map", str(counts)), (str(counts), "--top-k", "2", "--out", str(tmp_path)),
        (str(counts), "--top-k", "2", "--splits", "64"),
    ):  # fmt: skip
        result = run(placement, *arguments)
        assert isinstance(result.exception, TwinError), (arguments, result.output)


def test_the_step_models_routing_needs_no_scipy() -> None:
    code = "import sys, twin.routing.batch, twin.routing.families, twin.routing.table; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
