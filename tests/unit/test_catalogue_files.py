"""Catalogue files: how they are found, put together, and refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from twin.errors import CatalogueError, TwinError
from twin.lane.catalogue import (
    FOLDERS,
    MAX_FILE_BYTES,
    catalogue_roots,
    find,
    load_entry,
    load_lane,
    names,
    shipped_root,
)
from twin.lane.check import check_catalogue, sourced_values

SHIPPED = shipped_root() / "hardware"


def roots(own: Path) -> tuple[Path, ...]:
    return (own, shipped_root())


def copy(own: Path, folder: str, name: str, new: str, *changes: tuple[str, str]) -> Path:
    """A shipped entry under a new name, with texts replaced."""
    text = (SHIPPED / folder / f"{name}.toml").read_text(encoding="utf-8")
    for old, replacement in ((f'name = "{name}"', f'name = "{new}"'), *changes):
        assert old in text, old
        text = text.replace(old, replacement, 1)
    path = own / "hardware" / folder / f"{new}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(own: Path, folder: str, name: str) -> str:
    with pytest.raises(CatalogueError) as refused:
        load_lane(name, roots(own)) if folder == "lanes" else load_entry(folder, name, roots(own))
    return str(refused.value)


# --- what is shipped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_shipped_entry_loads_with_a_source_on_every_value(folder: str) -> None:
    for name in names(folder, catalogue_roots()):
        entry = load_entry(folder, name, catalogue_roots())
        assert all(value.source.strip() for _, value in sourced_values(entry)), name


def test_the_shipped_catalogue_passes_its_own_check() -> None:
    assert [f for f in check_catalogue(catalogue_roots()) if f.level == "error"] == []


def test_both_lanes_are_what_they_say() -> None:
    sidecar, tp4 = (load_lane(name, catalogue_roots()) for name in ("sidecar", "tp4"))
    assert (sidecar.ranks, sidecar.cold_experts, sidecar.placement.cold_on) == (1, 89, "sidecar")
    assert sidecar.policy.schedule == [[1, 4, 5], [5, 8, 3], [9, 32, 3]]
    assert sidecar.links["sidecar"].staged and not sidecar.links["sidecar"].peer_to_peer
    assert sidecar.engine.max_batched_tokens.value == 8192
    assert (tp4.ranks, tp4.cold_experts, tp4.placement.cold_on) == (4, 0, "none")
    assert (tp4.policy.k, tp4.policy.verification, tp4.engine.launch_mode) == (7, "block", "persistent")
    assert tp4.engine.max_batched_tokens.value == 4096 and tp4.placement.engram_on == "nvme"


# --- where entries are looked for -------------------------------------------------------------------------------------


def test_a_users_folder_comes_first(catalogue: Path) -> None:
    changed = copy(catalogue, "devices", "gb300", "gb300", ('value = "6481 GB/s"', 'value = "7000 GB/s"'))
    assert find("devices", "gb300", roots(catalogue)) == changed
    assert load_lane("sidecar", roots(catalogue)).devices["primary"].read_bandwidth.value == 7e12
    assert load_lane("sidecar", catalogue_roots()).devices["primary"].read_bandwidth.value == 6.481e12


def test_roots_from_option_and_environment(catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWIN_CATALOGUE", str(tmp_path))
    assert catalogue_roots(catalogue) == (catalogue, tmp_path, shipped_root())
    with pytest.raises(CatalogueError, match=r"--catalogue: .* is not a folder"):
        catalogue_roots(tmp_path / "none")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(CatalogueError, match="no lane named 'sidcar'; did you mean 'sidecar'"):
        load_lane("sidcar", catalogue_roots())
    with pytest.raises(CatalogueError, match="did you mean 'gb300'"):
        load_entry("devices", "gb30", catalogue_roots())


@pytest.mark.parametrize("name", ["../lanes/sidecar", "/etc/passwd", "", ".hidden", "a/b", "a" * 200, "gb300\n"])
def test_a_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(CatalogueError, match="letters, digits, dots and dashes"):
        find("devices", name, catalogue_roots())


def test_a_link_cannot_leave_its_catalogue(catalogue: Path, tmp_path: Path) -> None:
    outside = tmp_path / "gb300.toml"
    shutil.copy(SHIPPED / "devices" / "gb300.toml", outside)
    (catalogue / "hardware" / "devices" / "far.toml").symlink_to(outside)
    assert "leaves its catalogue" in refusal(catalogue, "devices", "far")


# --- what a file may say ----------------------------------------------------------------------------------------------


def test_extends_gives_only_what_differs(catalogue: Path) -> None:
    path = catalogue / "hardware" / "engines" / "mine.toml"
    path.write_text(
        'extends = "vllm-sidecar"\nname = "mine"\nlaunch_time = { value = "1 us", source = "a test", kind = "assumed" }\n',
        encoding="utf-8",
    )
    base, mine = (load_entry("engines", name, roots(catalogue)) for name in ("vllm-sidecar", "mine"))
    differs = {n for n in type(base).model_fields if getattr(base, n) != getattr(mine, n)}
    assert differs == {"name", "launch_time"}


def test_extends_reaches_into_tables(catalogue: Path) -> None:
    path = catalogue / "hardware" / "checkpoints" / "mine.toml"
    path.write_text(
        'extends = "deepseek-v4.1-flash"\nname = "mine"\n[draft]\nstages = { value = 1, source = "a test", kind = "assumed" }\n',
        encoding="utf-8",
    )
    draft = load_entry("checkpoints", "mine", roots(catalogue)).draft  # type: ignore[attr-defined]
    assert draft.stages.value == 1 and draft.experts.value == 128


def test_extends_must_end(catalogue: Path) -> None:
    folder = catalogue / "hardware" / "engines"
    (folder / "a.toml").write_text('extends = "b"\nname = "a"\n', encoding="utf-8")
    (folder / "b.toml").write_text('extends = "a"\nname = "b"\n', encoding="utf-8")
    assert "`extends` goes in a circle: a -> b -> a" in refusal(catalogue, "engines", "a")
    (folder / "c.toml").write_text('extends = "c"\nname = "c"\n', encoding="utf-8")
    assert "goes in a circle: c -> c" in refusal(catalogue, "engines", "c")
    (folder / "d.toml").write_text('extends = ["a"]\nname = "d"\n', encoding="utf-8")
    assert "extends: expected a name" in refusal(catalogue, "engines", "d")
    (folder / "e.toml").write_text('extends = "nobody"\nname = "e"\n', encoding="utf-8")
    assert "no engine named 'nobody'" in refusal(catalogue, "engines", "e")


@pytest.mark.parametrize(
    ("folder", "name", "change", "says"),
    [
        ("devices", "gb300", ("read_bandwidth =", "read_bandwith ="), ["unknown key 'read_bandwith'", "did you mean 'read_bandwidth'"]),
        ("devices", "gb300", ("read_bandwidth =", "# read_bandwidth ="), ["the key 'read_bandwidth' is missing"]),
        ("devices", "gb300", ('"6481 GB/s"', '"6481 GB"'), ["read_bandwidth", "is not a bandwidth"]),
        ("devices", "gb300", ('"6481 GB/s"', "6481"), ["read_bandwidth", "has no unit"]),
        ("devices", "gb300", ('"6481 GB/s"', '"nan GB/s"'), ["read_bandwidth", "not a number"]),
        ("devices", "gb300", ('"6481 GB/s"', '"0 GB/s"'), ["read_bandwidth", "got 0 GB/s"]),
        ("devices", "gb300", ('kind = "measured"', 'kind = "guessed"'), ["kind", "'measured'"]),
        ("devices", "gb300", ('kind = "measured"', 'sort = "measured"'), ["unknown key 'sort'"]),
        ("devices", "gb300", ('kind = "gpu"', 'kind = "tpu"'), ["kind", "gpu"]),
        ("checkpoints", "deepseek-v4.1-flash", ("experts = { value = 384", "experts = { value = 38.4"), ["experts", "whole number"]),
        ("checkpoints", "deepseek-v4.1-flash", ("top_k = { value = 6", "top_k = { value = 600"), ["top_k is 600, more than the 384 experts"]),
        ("lanes", "sidecar", ("[links]", "[lnks]"), ["unknown key 'lnks'", "did you mean 'links'"]),
        ("lanes", "sidecar", ('sidecar = "rtx-pro-6000-max-q"', 'sidecr = "rtx-pro-6000-max-q"'), ["devices"]),
        ("lanes", "sidecar", ('primary = "gb300"', 'primary = "gb30"'), ["devices.primary: no device named 'gb30'", "gb300"]),
        ("lanes", "sidecar", ("hot = { value = 295", "hot = { value = 395"), ["placement.hot is 395", "0 to 384"]),
        ("lanes", "sidecar", ('cold_on = "sidecar"', 'cold_on = "none"'), ['cold_on is "none" but only 295 of 384']),
        ("lanes", "sidecar", ('sidecar = "pcie5-x16-staged"\n', ""), ["links.sidecar is missing"]),
        ("lanes", "sidecar", ('cold_on = "sidecar"', 'cold_on = "sidcar"'), ["placement.cold_on"]),
        ("lanes", "tp4", ('peer = "pcie5-x16-p2p"', ""), ["links.peer is missing"]),
        ("lanes", "tp4", ("expert_parallel = { value = 1", "expert_parallel = { value = 3"), ["must divide"]),
        ("lanes", "tp4", ("k = 7", "k = -7"), ["policy.k"]),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_key_and_file(
    catalogue: Path, folder: str, name: str, change: tuple[str, str], says: list[str]
) -> None:
    path = copy(catalogue, folder, name, "mine", change)
    message = refusal(catalogue, folder, "mine")
    assert str(path) in message
    assert all(part in message for part in says), message


def test_name_and_file_must_agree(catalogue: Path) -> None:
    shutil.copy(SHIPPED / "devices" / "gb300.toml", catalogue / "hardware" / "devices" / "other.toml")
    assert "name is 'gb300' but the file is 'other'" in refusal(catalogue, "devices", "other")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"name = \n", "not valid TOML"),
        (b"name = 'a'\nname = 'b'\n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than 1 MiB"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"", "the key 'name' is missing"),
    ],
)
def test_a_file_that_is_not_a_page_of_toml(catalogue: Path, content: bytes, says: str) -> None:
    path = catalogue / "hardware" / "devices" / "bad.toml"
    path.write_bytes(content)
    message = refusal(catalogue, "devices", "bad")
    assert str(path) in message and (says in message or "nested too deeply" in message), message


# --- the check --------------------------------------------------------------------------------------------------------


def findings(own: Path, level: str) -> list[str]:
    return [f"{f.check}: {f.where}: {f.message}" for f in check_catalogue(roots(own)) if f.level == level]


def test_a_value_without_a_source_fails_the_check(catalogue: Path) -> None:
    copy(catalogue, "links", "c2c", "mine", ('source = "no direct figure"', 'source = " "'))
    (finding,) = findings(catalogue, "error")
    assert finding.startswith("source: links/mine: latency") and "has no source" in finding


def test_what_is_assumed_is_listed_and_does_not_fail(catalogue: Path) -> None:
    assert any("devices/gb300: compute" in f for f in findings(catalogue, "assumed"))


def test_a_placement_that_does_not_fit_fails_the_check(catalogue: Path) -> None:
    copy(catalogue, "lanes", "sidecar", "mine", ("hot = { value = 295", "hot = { value = 380"))
    (finding,) = findings(catalogue, "error")
    assert finding.startswith("capacity: lanes/mine") and "hot experts" in finding and "more than" in finding


def test_a_unit_slip_is_warned_of(catalogue: Path) -> None:
    copy(catalogue, "links", "pcie5-x16-staged", "slip", ('"15.1 us"', '"15.1 s"'))
    copy(catalogue, "lanes", "sidecar", "mine", ('"pcie5-x16-staged"', '"slip"'))
    assert any("links.sidecar.latency" in f and "check the unit" in f for f in findings(catalogue, "warning"))


def test_a_policy_with_a_gap_fails_the_check(catalogue: Path) -> None:
    copy(catalogue, "lanes", "sidecar", "mine", ("[5, 8, 3]", "[6, 8, 3]"))
    assert any("no k for 5 streams" in f for f in findings(catalogue, "error"))


def test_every_refusal_is_one_of_ours(catalogue: Path) -> None:
    assert issubclass(CatalogueError, TwinError) and CatalogueError.exit_code == 1
