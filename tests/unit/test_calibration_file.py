"""Calibration files: read, drawn from, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from twin.errors import CalibrationError
from twin.fitting.calibration import (
    Calibration,
    calibration_names,
    find_calibration,
    load_calibration,
    prior_calibration,
    read_calibration,
)
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.step.coefficients import coefficients

ROOTS = catalogue_roots()
BASE = coefficients(load_lane("tp4", ROOTS))


def shipped() -> dict[str, Any]:
    path = find_calibration("tp4", ROOTS)
    assert path is not None
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return raw


def write(folder: Path, raw: object) -> Path:
    path = folder / "mine.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", calibration_names(ROOTS))
def test_shipped_calibrations_are_whole(name: str) -> None:
    path = find_calibration(name, ROOTS)
    assert path is not None
    calibration, sha256 = read_calibration(path)
    assert len(sha256) == 64 and calibration.receipts > 0 and len(calibration.receipt_ids) == calibration.receipts
    assert 0 < calibration.fitted_parameters <= len(calibration.parameters)
    covariance = np.array(calibration.covariance)
    assert np.allclose(covariance, covariance.T)
    assert np.sqrt(np.diag(covariance)) == approx([p.log_sd for p in calibration.parameters], rel=1e-6)
    # Data can only narrow a prior, and what it did not move is said.
    assert all(p.log_sd <= p.prior_log_sd * 1.001 for p in calibration.parameters)
    assert calibration.range is not None and calibration.range.traffic


@pytest.mark.parametrize("name", ["sidecar", "tp4"])
def test_both_lanes_are_fitted_with_fewer_parameters_than_receipts(name: str) -> None:
    path = find_calibration(name, ROOTS)
    assert path is not None
    calibration, _ = read_calibration(path)
    assert calibration.lane == name and calibration.fitted_parameters < calibration.receipts


def test_a_calibration_comes_from_a_name_or_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, shipped())
    one, _ = load_calibration("tp4", "tp4", BASE, ROOTS)
    other, _ = load_calibration(str(path), "tp4", BASE, ROOTS)
    assert one == other
    priors, sha256 = load_calibration("priors", "tp4", BASE, ROOTS)
    assert priors.receipts == 0 and sha256 == "" and all(p.prior_dominated for p in priors.parameters)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 3}, "schema_version is 3, expected 2"),
        ({"schema_version": None}, "schema_version is None"),
        ({"parameters": "none"}, "parameters"),
        ({"covariance": [[1.0]]}, "covariance: expected"),
        ({"extra": 1}, "extra"),
        ({"residual_log_sd": -1.0}, "residual_log_sd"),
        ({"seed": "0"}, "seed"),
    ],
)
def test_a_wrong_file_is_told_by_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = write(tmp_path, shipped() | change)
    with pytest.raises(CalibrationError) as refused:
        read_calibration(path)
    assert str(path) in str(refused.value) and says in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"schema_version": 1}', "[" * 100_000, '"\ud83d"'])
def test_a_file_that_is_no_calibration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CalibrationError, match=r"mine\.json"):
        read_calibration(path)


def test_numbers_without_end_are_refused(tmp_path: Path) -> None:
    raw = shipped()
    raw["parameters"][0]["log_factor"] = float("nan")
    with pytest.raises(CalibrationError, match=r"parameters\.0\.log_factor"):
        read_calibration(write(tmp_path, raw))
    raw = shipped()
    raw["covariance"][0][0] = float("inf")
    with pytest.raises(CalibrationError, match=r"covariance\.0\.0"):
        read_calibration(write(tmp_path, raw))


def test_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"no calibration named 'tp5'.*'tp4'"):
        load_calibration("tp5", "tp4", BASE, ROOTS)
    with pytest.raises(CalibrationError, match="no such file; write one with `twin fit"):
        load_calibration(str(tmp_path / "none.json"), "tp4", BASE, ROOTS)


def test_a_calibration_of_another_box_is_refused(tmp_path: Path) -> None:
    raw = shipped()
    for index, parameter in enumerate(raw["parameters"]):
        parameter["key"] = f"engine.other.{index}"
    path = write(tmp_path, raw | {"lane": "other"})
    with pytest.raises(CalibrationError, match="fitted for lane 'other' and shares no part with 'tp4'"):
        load_calibration(str(path), "tp4", BASE, ROOTS)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_draws_have_the_fitted_factor_as_their_mean() -> None:
    calibration, _ = load_calibration("tp4", "tp4", BASE, ROOTS)
    normals = np.random.default_rng(1).standard_normal((len(calibration.parameters), 200_000))
    drawn, mean = calibration.draw_factors(normals), calibration.mean_factors()
    for parameter in calibration.parameters:
        log = np.log(drawn[parameter.key])
        assert drawn[parameter.key].mean() == approx(mean[parameter.key], rel=0.01)
        assert log.std() == approx(parameter.log_sd, rel=0.02)


@given(strategies.models("twin.fitting.calibration.Calibration"), st.integers(1, 5))
def test_draws_of_any_calibration_are_finite_and_positive(calibration: Calibration, samples: int) -> None:
    normals = np.random.default_rng(0).standard_normal((len(calibration.parameters), samples))
    drawn = calibration.draw_factors(normals)
    assert set(drawn) == {p.key for p in calibration.parameters}
    assert all(np.isfinite(array).all() and (array > 0).all() and array.shape == (samples,) for array in drawn.values())


def test_a_covariance_that_misses_by_a_hair_still_draws() -> None:
    calibration = prior_calibration("tp4", BASE)
    size = len(calibration.parameters)
    nearly = np.full((size, size), 0.01) - 1e-12 * np.eye(size)
    broken = calibration.model_copy(update={"covariance": nearly.tolist()})
    assert all(np.isfinite(v).all() for v in broken.draw_factors(np.ones((size, 3))).values())
