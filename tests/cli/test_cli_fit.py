"""`twin fit`: from a table of receipts to a calibration that `twin predict` uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Twin

HEADER = "id,source,lane,traffic,k,verification,context_tokens,concurrency,quantity,value,unit,tokens_per_step,noise,use,reason\n"
ROWS = (
    "a,my box,tp4,mixed,7,block,2048,1,step_time,10.2,ms,2.2,0.02,fit,\n"
    "b,my box,tp4,mixed,7,block,2048,4,step_time,21.0,ms,2.2,0.02,fit,\n"
    "c,my box,tp4,mixed,0,block,2048,1,step_time,6.4,ms,1.0,0.02,fit,\n"
    "d,my box,tp4,mixed,7,block,2048,8,step_time,99.0,ms,2.2,0.02,validate,\n"
    "e,my box,tp4,mixed,7,block,2048,8,step_time,999.0,ms,2.2,0.02,exclude,a power cut\n"
)


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + ROWS, encoding="utf-8")
    return path


def test_three_cells_make_a_calibration(twin: Twin, receipts: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.json"
    text = twin.good("fit", str(receipts), "--lane", "tp4", "-o", str(output)).out
    assert "fitted parameters, 3 receipts" in text and "prior-dominated" in text and "worst" in text
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["lane"] == "tp4" and written["receipt_ids"] == ["a", "b", "c"]

    plain = twin.good("predict", "--lane", "tp4", "--json").json
    mine = twin.good("predict", "--lane", "tp4", "--calibration", str(output), "--json").json
    assert mine["calibration"]["receipts"] == 3 and mine["calibration"]["sha256"] != plain["calibration"]["sha256"]
    assert mine["cells"][0]["step_ms"]["mean"] == pytest.approx(10.2, rel=0.05)


def test_the_same_receipts_write_the_same_bytes(twin: Twin, receipts: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for path in files:
        twin.good("fit", str(receipts), "--lane", "tp4", "--seed", "3", "--name", "same", "-o", str(path))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_json_says_what_a_fit_knows(twin: Twin, receipts: Path) -> None:
    answer = twin.good("fit", str(receipts), "--json").json
    assert (answer["command"], answer["receipts"]) == ("fit", 3)
    assert 0 < answer["fitted_parameters"] <= 3 < answer["coefficients"]
    assert [r["id"] for r in answer["residuals"]] == ["a", "b", "c"]
    assert set(answer["lanes"]["tp4"]["parameters"][0]) >= {
        "key",
        "log_factor",
        "log_sd",
        "prior_log_sd",
        "prior_dominated",
    }


def test_a_file_that_is_there_stays(twin: Twin, receipts: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.json"
    output.write_text("precious", encoding="utf-8")
    answer = twin("fit", str(receipts), "--lane", "tp4", "-o", str(output))
    assert answer.code == 1 and "--force" in answer.err and output.read_text(encoding="utf-8") == "precious"
    twin.good("fit", str(receipts), "--lane", "tp4", "-o", str(output), "--force")
    assert output.read_text(encoding="utf-8") != "precious"


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (("step_time,10.2", "step_time,ten"), (), ["line 2, column 'value'", "'ten' is not a number"]),
        (("traffic,", "trafic,"), (), ["unknown column 'trafic'", "did you mean 'traffic'"]),
        (("b,my box,tp4", "b,my box,tp5"), (), ["receipt 'b'", "no lane named 'tp5'"]),
        (("b,my box,tp4,mixed", "b,my box,tp4,mixt"), (), ["receipt 'b'", "mixt"]),
        (("b,my box", "a,my box"), (), ["line 3", "the id 'a' was used in line 2"]),
        (("fit,", "validate,"), (), ["none of the 5 receipts has use = fit"]),
        (("", ""), ("--lane", "sidecar"), ["no receipt with use = fit for lane 'sidecar'", "tp4"]),
        (("", ""), ("--lane", "tp5"), ["no lane named 'tp5'"]),
    ],
)
def test_a_table_that_cannot_be_fitted_is_answered(
    twin: Twin, receipts: Path, change: tuple[str, str], arguments: tuple[str, ...], says: list[str]
) -> None:
    receipts.write_text((HEADER + ROWS).replace(*change), encoding="utf-8")
    answer = twin.refused("fit", str(receipts), *arguments)
    assert all(part in answer.err for part in says), answer.err


def test_one_file_cannot_hold_two_lanes(twin: Twin, receipts: Path, tmp_path: Path) -> None:
    other = "f,my box,sidecar,mixed,5,token,2048,1,step_time,9.8,ms,2.1,0.02,fit,\n"
    receipts.write_text(HEADER + ROWS + other, encoding="utf-8")
    answer = twin.refused("fit", str(receipts), "-o", str(tmp_path / "both.json"))
    assert "of 2 lanes" in answer.err and "folder" in answer.err
    twin.good("fit", str(receipts), "-o", str(tmp_path / "fits"))
    assert sorted(p.name for p in (tmp_path / "fits").iterdir()) == ["sidecar.json", "tp4.json"]


def test_every_unit_of_a_coefficient_is_shown(twin: Twin) -> None:
    """A peak rate of cores is fitted on one lane only: printed, not looked up in vain."""
    assert "TFLOPS" in twin.good("fit", "--lane", "rtx3090-cpu-experts").out
