"""Receipts against a calibration: which rows count, and what was already in the fit."""

from __future__ import annotations

import pytest

from twin.fitting.load import read_all, receipt_files
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.lane.override import override
from twin.planning.residuals import residuals

ROOTS = catalogue_roots()
MISSION = [r for r in read_all(receipt_files(ROOTS)) if r.lane in ("sidecar", "tp4") and r.id.startswith("seed-")]


def test_the_mission_s_receipts_are_met_and_known_to_be_fitted() -> None:
    rows = residuals(MISSION, ROOTS)
    assert {row.lane for row in rows} == {"sidecar", "tp4"}
    assert not any(row.quantity.endswith("_ratio") for row in rows)
    assert all(row.in_fit for row in rows)
    # Step times of both lanes, measured within 2 %.
    assert all(abs(row.error) < 0.03 for row in rows if row.quantity == "step_time")
    for row in rows:
        assert row.p05 < row.predicted < row.p95
        assert row.error == pytest.approx(row.predicted / row.measured - 1.0)
        assert row.covered == (row.p05 <= row.measured <= row.p95)


def test_a_receipt_can_be_held_against_a_what_if() -> None:
    step = [r for r in MISSION if r.id == "seed-05"]
    slow = override(load_lane("sidecar", ROOTS), ["engine.host_gap=5 ms"])
    (now,), (then,) = residuals(step, ROOTS), residuals(step, ROOTS, lane=slow)
    assert then.predicted == pytest.approx(now.predicted + 4.7, abs=0.1)


def test_an_excluded_receipt_is_left_out() -> None:
    gone = [r.model_copy(update={"use": "exclude", "reason": "x"}) for r in MISSION[:2]]
    assert residuals(gone, ROOTS) == []
