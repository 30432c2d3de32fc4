"""Numbers, bars, tables and files as people read them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

import twin
from twin.errors import GateFailed, TwinError, nearest
from twin.files import write_text
from twin.report.prediction import prediction_csv, print_prediction
from twin.report.terminal import bar, number


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 3, "0"), (8.5, 3, "8.50"), (12.345, 3, "12.3"), (466.2, 3, "466"), (4660.0, 3, "4,660"), (0.105, 3, "0.105"),
        (1234567.0, 3, "1,234,567"), (-8.5, 3, "-8.50"), (0.25, 2, "0.25"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


@given(st.floats(1e-9, 1e9))
def test_a_number_keeps_its_size(value: float) -> None:
    assert float(number(value).replace(",", "")) == approx(value, rel=0.006)


@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(1, 40))
def test_a_bar_stays_in_its_width(value: float, whole: float, width: int) -> None:
    assert len(bar(value, whole, width)) <= width


def test_a_bar_of_all_is_full() -> None:
    assert bar(1.0, 1.0, 10) == "█" * 10 and bar(0.0, 1.0, 10) == "" and bar(0.5, 1.0, 10) == "█" * 5


@pytest.mark.parametrize(
    ("name", "valid", "says"),
    [
        ("sidcar", ["sidecar", "tp4"], "did you mean 'sidecar'?"),
        ("GB300", ["gb300", "b300"], "did you mean 'gb300'?"),
        ("zzz", ["sidecar", "tp4"], "valid names: sidecar, tp4."),
        ("zzz", [], "there are none."),
        ("zzz", [f"n{i:02}" for i in range(30)], "n19, ..."),
    ],
)
def test_a_wrong_name_is_answered_with_right_ones(name: str, valid: list[str], says: str) -> None:
    assert says in nearest(name, valid)


@given(st.text(max_size=10), st.lists(st.text(min_size=1, max_size=10), max_size=5))
def test_nearest_always_says_something_that_is_valid(name: str, valid: list[str]) -> None:
    assert nearest(name, valid).endswith(("?", "."))


def test_exit_codes_of_refusals() -> None:
    assert TwinError.exit_code == 1 and GateFailed.exit_code == 3


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_text(path, "one", force=False)
    with pytest.raises(TwinError, match="exists already; give --force"):
        write_text(path, "two", force=False)
    assert path.read_text(encoding="utf-8") == "one"
    write_text(path, "two", force=True)
    assert path.read_text(encoding="utf-8") == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(TwinError, match="cannot be written"):
        write_text(tmp_path / "no such folder" / "out.json", "one", force=False)


# --- a prediction -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prediction() -> twin.Prediction:
    return twin.predict("sidecar", k=5, concurrency=(1, 4), traffic="codegen-padded")


def test_csv_has_a_row_a_cell_and_the_same_numbers(prediction: twin.Prediction) -> None:
    rows = list(csv.DictReader(io.StringIO(prediction_csv(prediction))))
    assert [row["concurrency"] for row in rows] == ["1", "4"]
    for row, cell in zip(rows, prediction.cells, strict=True):
        assert float(row["step_ms_mean"]) == approx(cell.step_ms.mean, rel=1e-5)
        assert float(row["tok_s_aggregate_p95"]) == approx(cell.tok_s_aggregate.p95, rel=1e-5)
        parts = [float(value) for name, value in row.items() if name.startswith("breakdown_ms_")]
        assert sum(parts) == approx(cell.step_ms.mean, rel=1e-4)


def test_the_table_says_everything_once(prediction: twin.Prediction, capsys: pytest.CaptureFixture[str]) -> None:
    print_prediction(prediction, "a box")
    text = capsys.readouterr().out
    for expected in (
        "sidecar",
        "a box",
        "step ms",
        "tokens/step",
        "tok/s in all",
        "Where a step goes",
        "90 % interval",
        "receipts",
    ):
        assert expected in text
    assert "\x1b[" not in text, "no colours into a pipe"
    assert max(map(len, text.splitlines())) <= 160


def test_a_record_is_frozen_and_has_the_contract(prediction: twin.Prediction) -> None:
    with pytest.raises(AttributeError):
        prediction.seed = 1  # type: ignore[misc]
    first = prediction.to_dict()["cells"][0]
    assert first["warnings"] == list(prediction.cells[0].warnings)
    assert list(first["step_ms"]) == ["mean", "p05", "p50", "p95"]


def test_the_same_seed_gives_the_same_record_and_another_seed_another(prediction: twin.Prediction) -> None:
    again = twin.predict("sidecar", k=5, concurrency=(1, 4), traffic="codegen-padded")
    assert again == prediction
    other = twin.predict("sidecar", k=5, concurrency=(1, 4), traffic="codegen-padded", seed=1)
    assert other.cells[0].step_ms != prediction.cells[0].step_ms
    assert other.cells[0].step_ms.mean == approx(prediction.cells[0].step_ms.mean, rel=0.01)


def test_a_cell_does_not_depend_on_the_cells_beside_it(prediction: twin.Prediction) -> None:
    alone = twin.predict("sidecar", k=5, concurrency=(4,), traffic="codegen-padded")
    assert alone.cells[0] == prediction.cells[1]


def test_python_takes_a_lane_a_schedule_and_what_ifs() -> None:
    lane = twin.load_lane("sidecar", settings=["placement.hot=300"])
    cells = twin.predict(lane, schedule="1-4:5, 5-8:3", concurrency=(4, 8)).cells
    assert [cell.k for cell in cells] == [5, 3] and isinstance(lane, twin.Lane)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = twin.nothing  # type: ignore[attr-defined]
