"""`twin rerun`: a result repeats to the same bytes, a changed one is noticed, a hostile one writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from twin import __version__
from twin.cli.main import cli
from twin.errors import GateFailed, TwinError
from twin.report.compare import differences
from twin.report.result_file import read_result

OLD = Path(__file__).parent.parent / "data" / "prediction_schema_1_without_settings.json"
PREDICT = ("predict", "--lane", "sidecar", "--k", "3", "-c", "1,2", "--set", "links.sidecar.latency=8 us")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def printed(tmp_path: Path, *words: str) -> Path:
    path = tmp_path / "result.json"
    path.write_text(run(*words, "--json").stdout, encoding="utf-8")
    return path


def edited(path: Path, **change: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return path


@pytest.mark.parametrize(
    "words",
    [
        PREDICT,
        ("explain", "sidecar:k=5", "tp4:k=7,verification=block"),
        ("union", "--checkpoint", "deepseek-v4.1-flash", "--tokens", "1,2", "--streams", "1,4"),
        ("acceptance", "--traffic", "code"),
        ("simulate", "--lane", "sidecar", "-c", "2", "--requests", "8"),
    ],
    ids=lambda words: words[0],
)
def test_a_result_repeats_exactly(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = printed(tmp_path, *words)
    result = run("rerun", str(path), "--tolerance", "0")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "identical" in result.output


def test_a_result_says_version_command_and_settings(tmp_path: Path) -> None:
    found = json.loads(printed(tmp_path, *PREDICT).read_text())
    assert found["version"] == __version__
    assert found["command_line"].startswith("twin predict --lane=sidecar")
    assert found["settings"]["settings"] == ["links.sidecar.latency=8 us"]
    assert found["lane_sha256"] and found["calibration"]["sha256"]


def test_files_that_were_read_are_named_with_their_hash(tmp_path: Path) -> None:
    fit = tmp_path / "mine.json"
    fit.write_bytes((Path(__file__).parents[2] / "calibration" / "fits" / "tp4.json").read_bytes())
    path = printed(tmp_path, "predict", "--lane", "tp4", "--calibration", str(fit))
    assert len(json.loads(path.read_text())["inputs"][str(fit)]) == 64
    assert run("rerun", str(path)).exit_code == 0
    edited(fit, residual_log_sd=0.5)
    result = run("rerun", str(path))
    assert isinstance(result.exception, GateFailed)
    assert "the file" in str(result.exception) and "changed" in str(result.exception)


def test_a_changed_answer_is_named_and_fails_the_gate(tmp_path: Path) -> None:
    path = printed(tmp_path, *PREDICT)
    cells = json.loads(path.read_text())["cells"]
    cells[0]["step_ms"]["mean"] *= 1.01
    result = run("rerun", str(edited(path, cells=cells)))
    assert isinstance(result.exception, GateFailed) and result.exception.exit_code == 3
    assert "cells[0].step_ms.mean" in result.output


def test_a_result_printed_before_settings_were_recorded_still_reads() -> None:
    # Kept as 0.1.0 printed it before the key `settings`. Numbers move with the model; that it is understood must not.
    settings = read_result(OLD)["settings"]
    assert settings["lane_name"] == "sidecar" and settings["k"] == 5 and settings["concurrency"] == "1,4"
    result = run("rerun", str(OLD))
    assert result.exit_code == 0 or isinstance(result.exception, GateFailed)


def test_version_0_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    old = json.loads(OLD.read_text())
    path = tmp_path / "r.json"
    path.write_text(json.dumps(old | {"schema_version": 0, "calibration": "sidecar"}))
    assert read_result(path)["calibration"] == {"name": "sidecar"}
    path.write_text(json.dumps(old | {"schema_version": 99}))
    with pytest.raises(TwinError, match="a newer twin"):
        read_result(path)


def test_a_hostile_result_writes_nothing_and_runs_no_other_command(tmp_path: Path) -> None:
    path = printed(tmp_path, *PREDICT)
    target = tmp_path / "owned.svg"
    settings = json.loads(path.read_text())["settings"] | {"plot": str(target), "force": True, "output": str(target)}
    run("rerun", str(edited(path, settings=settings)))
    assert not target.exists()
    result = run("rerun", str(edited(path, command="init")))
    assert isinstance(result.exception, TwinError) and "cannot be repeated" in str(result.exception)


@pytest.mark.parametrize("text", ["", "[]", "{}", "nul", "[" * 100_000, '{"command": "predict"}', "\x00", '{"a": NaN}'])
def test_what_is_not_a_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    result = run("rerun", str(path))
    assert isinstance(result.exception, TwinError) and str(path) in str(result.exception)


def test_differences_are_named_by_key() -> None:
    old = {"a": [1.0, {"b": "x"}], "gone": 1, "flag": True}
    new = {"a": [1.0 + 1e-12, {"b": "y"}], "flag": 1, "added": 2}
    assert list(differences(old, new, 1e-9)) == [("a[1].b", "x", "y"), ("gone", 1, None), ("flag", True, 1)]
    assert next(key for key, _, _ in differences(old, new)) == "a[0]"
