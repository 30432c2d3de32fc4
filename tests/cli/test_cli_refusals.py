"""What a user gets wrong: exit 1 or 2, and a message that says what, where, and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Twin

from twin.lane.catalogue import shipped_root

TP4 = ("predict", "--lane", "tp4")
SIDECAR = ("predict", "--lane", "sidecar")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        # lanes, classes, commands
        (("predict",), ["--lane"]),
        (("predict", "--lane", "sidcar"), ["no lane named 'sidcar'", "did you mean 'sidecar'"]),
        (("predict", "--lane", ""), ["lane ''"]),
        (("predict", "--lane", "../../etc/passwd"), ["letters, digits, dots and dashes"]),
        ((*TP4, "--traffic", "mixd"), ["'mixd'", "did you mean 'mixed'"]),
        ((*TP4, "--traffic", "../mixed"), ["plain name"]),
        ((*TP4, "--verification", "blok"), ["--verification 'blok'", "token, block or greedy"]),
        ((*TP4, "--calibration", "tp5"), ["no calibration named 'tp5'", "'tp4'"]),
        ((*TP4, "--calibration", "none.json"), ["--calibration 'none.json'", "no such file", "twin fit"]),
        (("predct", "--lane", "tp4"), ["no command 'predct'", "did you mean 'predict'"]),
        ((*TP4, "--kk", "5"), ["--kk"]),
        # k
        ((*TP4, "--k", "-1"), ["k = -1", "0 (plain decoding) to 64"]),
        ((*TP4, "--k", "65"), ["k = 65"]),
        ((*TP4, "--k", "4.5"), ["--k", "4.5", "not a valid integer"]),
        ((*TP4, "--k", "many"), ["--k", "not a valid integer"]),
        ((*TP4, "--k", "9" * 30), ["k = 999"]),
        # live streams
        ((*TP4, "-c", "0"), ["--concurrency '0'", "at least 1 live stream"]),
        ((*TP4, "-c", "-4"), ["--concurrency '-4'", "1,4,8 or 1..32"]),
        ((*TP4, "-c", "1.5"), ["--concurrency '1.5'", "not a whole number"]),
        ((*TP4, "-c", "8..1"), ["runs backwards", "1..8"]),
        ((*TP4, "-c", "1..99999"), ["at most 65536 streams"]),
        # schedules
        ((*SIDECAR, "--schedule", "1-4:5, 6-8:3"), ["no k for 5 streams"]),
        ((*SIDECAR, "--schedule", "2-4:5"), ["no k for 1 streams"]),
        ((*SIDECAR, "--schedule", "1-4:5, 4-8:3"), ["ranges overlap at 4 streams"]),
        ((*SIDECAR, "--schedule", "4-1:5"), ["the first number is larger"]),
        ((*SIDECAR, "--schedule", "1-4:99"), ["k = 99", "0 to 64"]),
        ((*SIDECAR, "--schedule", "1-4=5"), ["schedule part '1-4=5'", "FIRST-LAST:K"]),
        ((*SIDECAR, "--schedule", ""), ["the schedule is empty"]),
        ((*SIDECAR, "--schedule", "[[1,4,5],[5,8]]"), ["[first, last, k]"]),
        ((*SIDECAR, "--schedule", "[[1,4,5.5]]"), ["whole numbers"]),
        ((*SIDECAR, "--schedule", "[[1,4,5]"), ["not a list of [first, last, k]"]),
        ((*SIDECAR, "--schedule", "1-4:5", "-c", "9"), ["covers 1 to 4 streams, asked for 9", "add a range"]),
        ((*SIDECAR, "-c", "33"), ["covers 1 to 32 streams, asked for 33"]),
        ((*SIDECAR, "--schedule", "1-4:5", "--k", "5"), ["--k and --schedule both"]),
        # tokens
        ((*TP4, "--context", "0"), ["--context 0", "expected 1 to"]),
        ((*TP4, "--context", "-5"), ["--context -5"]),
        ((*TP4, "--context", "2k"), ["--context", "not a valid integer"]),
        ((*TP4, "--cached", "4096"), ["4096 cached tokens of a prompt of 2048"]),
        ((*TP4, "--cached", "-1"), ["-1 cached tokens"]),
        ((*TP4, "--seed", "-1"), ["--seed"]),
        ((*TP4, "--json", "--csv"), ["--json and --csv"]),
        # what-ifs
        ((*SIDECAR, "--set", "placement.hot"), ["expected KEY=VALUE"]),
        ((*SIDECAR, "--set", "placement.hott=330"), ["no such key", "did you mean 'placement.hot'"]),
        ((*SIDECAR, "--set", "links.sidecar.latency=8"), ["links.sidecar.latency", "has no unit", "15.1 us"]),
        ((*SIDECAR, "--set", "links.sidecar.latency=8 GB/s"), ["links.sidecar.latency", "is not a time"]),
        ((*SIDECAR, "--set", "links.sidecar.latency=nan us"), ["links.sidecar.latency", "not a number"]),
        ((*SIDECAR, "--set", "placement.hot=400"), ["placement.hot is 400", "0 to 384"]),
        ((*SIDECAR, "--set", "placement.hot=380"), ["does not fit", "GiB hot experts", "250.7 GiB", "Lower placement.hot"]),
        ((*SIDECAR, "--set", "placement.kv_memory=200 GiB"), ["does not fit", "200.0 GiB KV memory"]),
        ((*SIDECAR, "--set", "checkpoint.layers=1000000"), ["checkpoint.layers", "1000"]),
        # folders
        ((*TP4, "--catalogue", "/no/such/folder"), ["--catalogue", "is not a folder"]),
        (("show", "lan", "tp4"), ["show 'lan'", "did you mean 'lane'"]),
        (("show", "device", "gb30"), ["no device named 'gb30'", "gb300"]),
        (("show", "lane"), ["NAME"]),
        (("fit", "none.csv"), ["none.csv", "cannot be read"]),
        (("fit", "--lane", "tp5"), ["'tp5'"]),
    ],
)  # fmt: skip
def test_a_mistake_is_answered(twin: Twin, arguments: tuple[str, ...], says: list[str]) -> None:
    answer = twin.refused(*arguments)
    assert all(part in answer.err for part in says), answer.err
    assert len(answer.err) < 1500


def write_lane(catalogue: Path, change: tuple[str, str]) -> None:
    text = (shipped_root() / "hardware" / "lanes" / "sidecar.toml").read_text(encoding="utf-8")
    assert change[0] in text
    text = text.replace('name = "sidecar"', 'name = "mine"').replace(*change)
    (catalogue / "hardware" / "lanes" / "mine.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[devices]", "[devices"), ["not valid TOML", "line"]),
        (('"8.5 GiB"', '"8.5 GB/s"'), ["placement.kv_memory", "is not a bytes"]),
        (('"8.5 GiB"', '"8.5"'), ["placement.kv_memory", "has no unit", "18.8 MB"]),
        (("hot = ", "hott = "), ["unknown key 'placement.hott'"]),
        (("hot = { value = 295", "hot = { value = 390"), ["placement.hot is 390"]),
        (("hot = { value = 295", "hot = { value = 370"), ["lane 'mine' does not fit", "GiB hot experts"]),
        (("[5, 8, 3]", "[6, 8, 3]"), ["no k for 5 streams"]),
        (("[5, 8, 3]", "[4, 8, 3]"), ["overlap at 4 streams"]),
        (("k = 5", "k = 2.5"), ["policy.k"]),
        (
            ('engine = "vllm-sidecar"', 'engine = "vllm-sidecr"'),
            ["mine.toml: engine: no engine named 'vllm-sidecr'", "vllm-sidecar"],
        ),
    ],
)
def test_a_wrong_lane_file_is_answered(twin: Twin, catalogue: Path, change: tuple[str, str], says: list[str]) -> None:
    write_lane(catalogue, change)
    answer = twin.refused("predict", "--lane", "mine", "--catalogue", str(catalogue))
    assert all(part in answer.err for part in says), answer.err
    assert "mine" in answer.err or "schedule" in answer.err


def test_a_broken_class_and_a_broken_calibration(twin: Twin, catalogue: Path) -> None:
    (catalogue / "scenarios" / "traffic" / "mine.toml").write_text("name = [", encoding="utf-8")
    answer = twin.refused(*TP4, "--traffic", "mine", "--catalogue", str(catalogue))
    assert "mine.toml" in answer.err and "not valid TOML" in answer.err
    (catalogue / "calibration" / "fits" / "tp4.json").write_text("{", encoding="utf-8")
    answer = twin.refused(*TP4, "--catalogue", str(catalogue))
    assert "tp4.json" in answer.err and "not a JSON calibration" in answer.err


def test_a_file_in_the_place_of_a_folder(twin: Twin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "is not a folder" in twin.refused(*TP4, "--catalogue", str(tmp_path / "file")).err


def test_a_name_in_the_environment_is_told_as_such(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWIN_CATALOGUE", "/no/such/folder")
    assert "TWIN_CATALOGUE" in twin.refused(*TP4).err or "--catalogue" in twin.refused(*TP4).err
