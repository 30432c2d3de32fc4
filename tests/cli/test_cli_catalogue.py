"""`twin lanes`, `twin show`, `twin check`, `twin --help`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Twin

import twin as package
from twin.lane.catalogue import FOLDERS, catalogue_roots, names, shipped_root

KIND_OF = {folder: folder.removesuffix("s") for folder in FOLDERS}


def test_lanes_are_listed(twin: Twin) -> None:
    text = twin.good("lanes").out
    assert "sidecar" in text and "tp4" in text and "deepseek-v4.1-flash" in text
    answer = twin.good("lanes", "--json").json
    assert (answer["schema_version"], answer["command"]) == (1, "lanes")
    found = {lane["lane"]: lane for lane in answer["lanes"]}
    assert set(found) == set(names("lanes", catalogue_roots()))
    for name in ("sidecar", "tp4"):
        assert set(found[name]) >= {"lane", "title", "checkpoint", "engine", "receipts", "fitted_parameters"}
        assert 0 < found[name]["fitted_parameters"] < found[name]["receipts"]


@pytest.mark.parametrize(("kind", "name", "says"), [
    ("lane", "sidecar", ["placement.hot", "295", "measured", "fits", "sum", "capacity", "Engram table, pinned", "128.0"]),
    ("device", "gb300", ["6481 GB/s", "measured", "gb300-membench.log"]),
    ("link", "pcie5-x16-staged", ["15.1 us", "staged"]),
    ("engine", "vllm-sidecar", ["launches_per_step", "1317"]),
    ("checkpoint", "deepseek-v4.1-flash", ["18.80064 MB", "draft.trained_block"]),
    ("traffic", "codegen-padded", ["5.1", "0.775"]),
])  # fmt: skip
def test_show_names_the_source_of_every_value(twin: Twin, kind: str, name: str, says: list[str]) -> None:
    text = twin.good("show", kind, name).out
    assert all(part in text for part in says), text


@pytest.mark.parametrize("folder", FOLDERS)
def test_show_knows_every_entry(twin: Twin, folder: str) -> None:
    for name in names(folder, catalogue_roots()):
        answer = twin.good("show", KIND_OF[folder], name, "--json").json
        assert (answer["command"], answer["kind"], answer["entry"]["name"]) == ("show", KIND_OF[folder], name)


def test_check_lists_what_is_assumed_and_passes(twin: Twin) -> None:
    text = twin.good("check").out
    assert "Assumed: nobody measured these yet" in text and "ok: every value has a source" in text
    answer = twin.good("check", "--json").json
    assert answer["ok"] is True and {f["level"] for f in answer["findings"]} <= {"assumed", "warning"}


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_check_fails_on_a_value_without_a_source(twin: Twin, catalogue: Path, output: tuple[str, ...]) -> None:
    text = (shipped_root() / "hardware" / "links" / "c2c.toml").read_text(encoding="utf-8")
    text = text.replace('name = "c2c"', 'name = "mine"').replace(', source = "no direct figure"', "")
    (catalogue / "hardware" / "links" / "mine.toml").write_text(text, encoding="utf-8")
    answer = twin("check", "--catalogue", str(catalogue), *output)
    assert answer.code == 3 and "links/mine: latency" in answer.err and "has no source" in answer.err
    if output:
        assert answer.json["ok"] is False


def test_check_strict_fails_on_a_warning(twin: Twin, catalogue: Path) -> None:
    links, lanes = (shipped_root() / "hardware" / folder for folder in ("links", "lanes"))
    slip = (
        (links / "pcie5-x16-staged.toml")
        .read_text(encoding="utf-8")
        .replace("15.1 us", "15.1 s")
        .replace('"pcie5-x16-staged"', '"slip"')
    )
    lane = (
        (lanes / "sidecar.toml")
        .read_text(encoding="utf-8")
        .replace('name = "sidecar"', 'name = "mine"')
        .replace("pcie5-x16-staged", "slip")
    )
    (catalogue / "hardware" / "links" / "slip.toml").write_text(slip, encoding="utf-8")
    (catalogue / "hardware" / "lanes" / "mine.toml").write_text(lane, encoding="utf-8")
    assert twin("check", "--catalogue", str(catalogue)).code == 0
    strict = twin("check", "--catalogue", str(catalogue), "--strict")
    assert strict.code == 3 and "check the unit" in strict.err


def test_a_users_lane_is_predicted_like_a_shipped_one(twin: Twin, catalogue: Path) -> None:
    text = (
        (shipped_root() / "hardware" / "lanes" / "sidecar.toml")
        .read_text(encoding="utf-8")
        .replace('name = "sidecar"', 'name = "mine"')
    )
    (catalogue / "hardware" / "lanes" / "mine.toml").write_text(text, encoding="utf-8")
    answer = twin.good("predict", "--lane", "mine", "--catalogue", str(catalogue), "--json").json
    assert answer["calibration"]["name"] == "priors"
    assert any("no receipts of this lane" in text for text in answer["cells"][0]["warnings"])
    # The parts are those of the shipped lane, so its calibration can be asked for.
    asked = twin.good(
        "predict", "--lane", "mine", "--catalogue", str(catalogue), "--calibration", "sidecar", "--json"
    ).json
    shipped = twin.good("predict", "--lane", "sidecar", "--json").json
    assert asked["cells"][0]["step_ms"]["mean"] == pytest.approx(shipped["cells"][0]["step_ms"]["mean"], rel=0.1)
    assert "mine" in twin.good("lanes", "--catalogue", str(catalogue)).out


def test_help_names_the_commands(twin: Twin) -> None:
    for flag in ("--help", "-h"):
        text = twin.good(flag).out
        assert all(name in text for name in ("predict", "lanes", "show", "check", "fit"))
    assert package.__version__ in twin.good("--version").out


@pytest.mark.parametrize("command", ["predict", "lanes", "show", "check", "fit"])
def test_every_command_has_a_page_of_help(twin: Twin, command: str) -> None:
    text = twin.good(command, "--help").out
    assert "Usage: twin" in text and "--json" in text


def test_without_a_command_the_help_is_shown(twin: Twin) -> None:
    answer = twin()
    assert answer.code in (0, 2) and "predict" in answer.out + answer.err
