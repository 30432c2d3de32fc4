"""What the fuzzer found once, kept as cases of their own: each must be refused with a reason that names the place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.errors import TwinError

ROOT = Path(__file__).resolve().parents[2]


def refusal(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(w) for w in words])
    assert isinstance(result.exception, TwinError), (result.output, result.exception)
    return str(result.exception)


def test_a_lane_without_a_primary_device(catalogue: Path) -> None:
    text = (ROOT / "hardware" / "lanes" / "v4-flash-ds4-gb10.toml").read_text()
    (catalogue / "hardware" / "lanes" / "v4-flash-ds4-gb10.toml").write_text(
        text.replace('primary = "gb10"', 'host = "gb10"')
    )
    said = refusal("predict", "--lane", "v4-flash-ds4-gb10", "--catalogue", catalogue)
    assert "devices.primary" in said and "v4-flash-ds4-gb10.toml" in said


@pytest.mark.parametrize("folder", ["lanes", "devices"])
def test_a_number_of_five_thousand_digits(catalogue: Path, folder: str) -> None:
    name = "tp4" if folder == "lanes" else "rtx-pro-6000-max-q"
    path = catalogue / "hardware" / folder / f"{name}.toml"
    path.write_text("x = " + "9" * 5000)
    assert str(path) in refusal("predict", "--lane", "tp4", "--catalogue", catalogue)


@pytest.mark.parametrize("key", ["log_factor", "log_sd", "prior_log_sd"])
def test_a_calibration_of_absurd_factors(tmp_path: Path, key: str) -> None:
    fit = json.loads((ROOT / "calibration" / "fits" / "tp4.json").read_text())
    fit["parameters"][0][key] = 1e308
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fit))
    said = refusal("predict", "--lane", "tp4", "--calibration", path)
    assert key in said and str(path) in said


def test_a_covariance_of_absurd_size(tmp_path: Path) -> None:
    fit = json.loads((ROOT / "calibration" / "fits" / "tp4.json").read_text())
    fit["covariance"][0][0] = 1e300
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fit))
    assert "covariance" in refusal("predict", "--lane", "tp4", "--calibration", path)


def test_more_routes_than_can_be_counted(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps([[1e300, 1.0, 2.0, 3.0]] * 2))
    assert str(path) in refusal("placement", path, "--top-k", "2", "--hot", "2")


def test_a_hot_map_of_a_great_many_empty_layers(tmp_path: Path) -> None:
    counts = ROOT / "tests/ingest/fixtures/constructed/routing_counts.json"
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"kind": "hot_map", "schema_version": 1, "experts": 1 << 20, "hot": [[]] * 100_000}))
    assert str(path) in refusal("placement", counts, "--top-k", "2", "--map", path)
