"""Files of earlier formats, kept as they were: they read, mean the same, and predict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import twin
from twin.errors import CalibrationError
from twin.fitting.calibration import read_calibration

DATA = Path(__file__).parent.parent / "data"
#: the first calibration of tp4 that was committed, and the same in the format before it
FIRST, BEFORE = DATA / "calibration_schema_1_first.json", DATA / "calibration_schema_0.json"


def test_the_first_calibration_still_reads_and_predicts() -> None:
    calibration, _ = read_calibration(FIRST)
    assert calibration.lane == "tp4" and calibration.receipts == 8
    cell = twin.predict("tp4", k=7, calibration=str(FIRST), traffic="codegen-padded").cells[0]
    # 8.5 ms was measured; the first fit was within 5 %, and its file must not come to mean something else.
    assert cell.step_ms.mean == pytest.approx(8.5, rel=0.05)


def test_the_time_of_a_host_expert_became_the_share_of_its_link(tmp_path: Path) -> None:
    """A factor 1.2 on the time is 1 / 1.2 on the bandwidth reached; correlations with the rest turn with it."""
    raw = json.loads(FIRST.read_text())
    raw["parameters"][0]["key"] = "engine.vllm-grace.host_expert_time"
    path = tmp_path / "old.json"
    path.write_text(json.dumps(raw))
    old, new = read_calibration(FIRST)[0], read_calibration(path)[0]
    assert new.parameters[0].key == "engine.vllm-grace.host_read_efficiency"
    assert new.parameters[0].log_factor == -old.parameters[0].log_factor
    assert new.parameters[0].log_sd == old.parameters[0].log_sd
    assert new.covariance[0][0] == old.covariance[0][0]
    assert new.covariance[0][1:] == [-v for v in old.covariance[0][1:]]
    assert new.covariance[1] == [-old.covariance[1][0], *old.covariance[1][1:]]


def test_version_0_means_the_same_after_migration() -> None:
    assert read_calibration(BEFORE)[0] == read_calibration(FIRST)[0]


@pytest.mark.parametrize("version", [-1, 99, None, "1", True, 1.5])
def test_an_unknown_version_is_refused(tmp_path: Path, version: object) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(json.loads(FIRST.read_text()) | {"schema_version": version}))
    with pytest.raises(CalibrationError, match="schema_version"):
        read_calibration(path)
