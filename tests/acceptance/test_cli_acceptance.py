"""`twin acceptance` and `twin traffic`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from acceptance_support import DATA
from click.testing import CliRunner, Result

from twin.cli.main import cli
from twin.errors import TwinError

WINDOW = str(DATA / "rhys101_speculation_c8_window.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_json_has_every_cell() -> None:
    result = run("acceptance", "--traffic", "code", "--k", "0..9", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["trained_block"] == 5
    assert len(answer["cells"]) == 20
    for cell in answer["cells"]:
        interval = cell["tokens_per_step"]
        assert 1 <= interval["p05"] <= interval["mean"] <= interval["p95"] <= cell["k"] + 1
        assert len(cell["survival"]) == len(cell["conditional"]) == cell["k"]


def test_table_says_the_gain_and_warns_on_stderr() -> None:
    result = run("acceptance", "--traffic", "pooled", "--k", "5,9")
    assert result.exit_code == 0
    assert "+1.9 %" in result.stdout  # 3.20 to 3.26
    assert "trained" in result.stderr and "trained" not in result.stdout


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "code.svg"
    result = run("acceptance", "--traffic", "code", "--k", "1..9", "--plot", str(target))
    assert result.exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    "arguments",
    [
        ("acceptance", "--traffic", "prosa"),
        ("acceptance", "--traffic", "code", "--k", "9..1"),
        ("acceptance", "--traffic", "code", "--k", "a"),
        ("acceptance", "--traffic", "code", "--k", "99"),
        ("acceptance", "--traffic", "code", "--verification", "blok"),
        ("traffic", "show", "prosa"),
        ("traffic", "import", "--values", "0.5,0.7", "--name", "x", "--verification", "token"),
        ("traffic", "import", "--values", "a", "--name", "x", "--verification", "token"),
        ("traffic", "import", "--values", "0.5", "--name", "X y", "--verification", "token"),
        ("traffic", "import", "--mean", "9", "--k", "5", "--name", "x", "--verification", "token"),
        ("traffic", "import", "/does/not/exist", "--name", "x", "--verification", "token"),
        ("traffic", "import", WINDOW, "--name", "x", "--verification", "token", "-o", "/tmp/other.toml"),
    ],
)
def test_a_mistake_is_a_reason_not_a_traceback(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, TwinError)


def test_import_then_use(tmp_path: Path) -> None:
    target = tmp_path / "scenarios" / "traffic" / "window.toml"
    made = run(
        "traffic", "import", WINDOW, "--name", "window", "--verification", "token", "--streams", "8", "--like", "mixed",
        "-o", str(target),
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    used = run("acceptance", "--traffic", "window", "--k", "5", "--catalogue", str(tmp_path), "--json")
    cell = json.loads(used.stdout)["cells"][0]
    assert cell["tokens_per_step"]["mean"] == pytest.approx(3.5718, abs=1e-4)


def test_import_from_values_and_from_a_mean() -> None:
    values = run(
        "traffic", "import", "--values", "0.8, 0.7", "--kind", "conditional", "--drafts", "500", "--name", "v",
        "--verification", "block",
    )  # fmt: skip
    assert "0.56" in values.stdout and "drafts = 500" in values.stdout
    mean = run("traffic", "import", "--mean", "3.2", "--k", "5", "--name", "m", "--verification", "token")
    assert 'evidence = "derived"' in mean.stdout


def test_list_and_show() -> None:
    assert "codegen-padded" in run("traffic", "list").stdout
    names = {c["name"] for c in json.loads(run("traffic", "list", "--json").stdout)["classes"]}
    assert {"prose", "code"} <= names
    assert "[[profile]]" in run("traffic", "show", "prose").stdout
    assert json.loads(run("traffic", "show", "prose", "--json").stdout)["class"]["name"] == "prose"
