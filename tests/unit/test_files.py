"""Results are written whole or not at all: a full disk, a read-only folder or an existing file lose nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.errors import TwinError
from twin.files import write_text

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "calibration" / "receipts" / "mission.csv"
FULL = Path("/dev/full")
#: every command that writes one file, with the option that names it last
WRITERS = {
    "trace": ["trace", "--lane", "tp4", "-o"],
    "fit": ["fit", str(RECEIPTS), "--lane", "tp4", "-o"],
    "predict --plot": ["predict", "--lane", "tp4", "--plot"],
    "explain --plot": ["explain", "sidecar", "tp4", "--plot"],
    "report": ["report", "one-stream", "-o"],
    "simulate --requests-out": ["simulate", "--lane", "tp4", "-c", "1", "--requests", "3", "--requests-out"],
    "simulate --trace-out": ["simulate", "--lane", "tp4", "-c", "1", "--requests", "3", "--trace-out"],
    "simulate --plot": ["simulate", "--lane", "tp4", "-c", "1", "--requests", "3", "--plot"],
    "union --plot": ["union", "--checkpoint", "deepseek-v4.1-flash", "--tokens", "1,2", "--plot"],
    "acceptance --plot": ["acceptance", "--traffic", "code", "--plot"],
    "placement --out": ["placement", str(ROOT / "tests/ingest/fixtures/constructed/routing_counts.json"), "--top-k", "2", "--hot", "24", "--out"],
    "sweep": ["sweep", "--lane", "tp4", "--grid", "k=0..1", "-o"],
    "import": [
        "import", str(ROOT / "tests/ingest/fixtures/constructed/vllm_bench_spec.json"), "--lane", "tp4", "--traffic", "code",
        "--verification", "block", "-o",
    ],
    "validate": ["validate", "--receipts", str(RECEIPTS), "--lane", "tp4", "-o"],
}  # fmt: skip
_ENDINGS = {
    "plot": ".svg",
    "fit": ".json",
    "out": ".json",
    "requests-out": ".csv",
    "trace-out": ".json",
    "import": ".csv",
    "sweep": ".csv",
    "report": ".html",
}
every_writer = pytest.mark.parametrize("name", WRITERS)


def target(folder: Path, name: str) -> Path:
    return folder / f"result{_ENDINGS.get(name.split('--')[-1], '.json')}"


def refused(name: str, path: Path) -> str:
    result = CliRunner().invoke(cli, [*WRITERS[name], str(path)])
    assert isinstance(result.exception, TwinError), (name, result.output, result.exception)
    return str(result.exception)


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if ".part" in p.name and p.is_file())


@every_writer
def test_an_existing_file_is_not_overwritten_without_force(name: str, tmp_path: Path) -> None:
    path = target(tmp_path, name)
    path.write_text("earlier")
    assert str(path) in refused(name, path)
    assert path.read_text() == "earlier"


@every_writer
def test_a_disk_that_fills_keeps_the_earlier_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = target(tmp_path, name)
    path.write_text("earlier")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # Whatever a command does, the last step of an atomic write is this one: a disk that is full shows at the latest here.
    monkeypatch.setattr(os, "replace", full)
    result = CliRunner().invoke(cli, [*WRITERS[name], str(path), "--force"])
    assert result.exit_code != 0, f"{name} does not write through a temporary file"
    assert isinstance(result.exception, (TwinError, OSError))
    assert path.read_text() == "earlier"
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "sweep"])  # a sweep makes a folder of its chunks
def test_a_folder_that_is_not_there(name: str, tmp_path: Path) -> None:
    refused(name, target(tmp_path / "none", name))
    assert not (tmp_path / "none").exists()


class _Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root obeys the permissions of files: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH it is an owner like others."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version of the call, this thread
    sets = (_Capabilities * 2)()
    if libc.capget(header, sets) != 0:
        pytest.skip("root here cannot lay down its capabilities")
    had = sets[0].effective
    try:
        sets[0].effective = had & ~0b110
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        sets[0].effective = had
        assert libc.capset(header, sets) == 0


@every_writer
def test_a_read_only_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    path = target(folder, name)
    path.write_text("earlier")
    folder.chmod(0o555)
    try:
        with as_an_ordinary_user():
            with pytest.raises(PermissionError):
                (folder / "probe").touch()
            result = CliRunner().invoke(cli, [*WRITERS[name], str(path), "--force"])
        assert isinstance(result.exception, (TwinError, PermissionError)), result.exception
        assert "ermission" in str(result.exception)
        assert [p.name for p in folder.iterdir()] == [path.name] and path.read_text() == "earlier"
    finally:
        folder.chmod(0o755)


@every_writer
def test_a_disk_that_takes_no_more(name: str, tmp_path: Path) -> None:
    # The system itself refuses after a hundred bytes, in the middle of whatever the command writes with.
    path = target(tmp_path, name)
    path.write_text("earlier")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        result = CliRunner().invoke(cli, [*WRITERS[name], str(path), "--force"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(result.exception, (TwinError, OSError)), (result.output, result.exception)
    assert path.read_text() == "earlier" and not leftovers(tmp_path)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    path.write_text("earlier")
    really = Path.open

    def full(self: Path, *mode: str, **more: object) -> object:
        return really(FULL if ".part" in self.name else self, *mode, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(TwinError, match="No space left"):
        write_text(path, "new" * 100_000, force=True)
    monkeypatch.undo()
    assert path.read_text() == "earlier" and not leftovers(tmp_path)


def test_a_write_that_is_interrupted_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    path.write_text("earlier")

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new", force=True)
    assert path.read_text() == "earlier" and not leftovers(tmp_path)


def test_force_replaces_the_file_and_keeps_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "one", force=False)
    with pytest.raises(TwinError, match="--force"):
        write_text(path, "two", force=False)
    write_text(path, "two", force=True)
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["result.json"]
