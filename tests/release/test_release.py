"""What people install: sdist and wheel built from this tree, the wheel in a fresh environment with core dependencies only,
used from outside the repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: what the extras bring; none of it may be needed by, or come with, the core
EXTRAS = ("matplotlib", "emcee", "pyarrow", "distributed", "starlette", "uvicorn", "httpx", "pytest")


def _run(words: list[str], folder: Path, *, code: int = 0) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    passed = {
        name: text for name, text in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    done = subprocess.run(
        words, cwd=folder, env=kept | passed, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, (
        f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it (so the sdist is complete)."""
    out = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_archives_carry_catalogue_types_and_licence(archives: tuple[Path, Path]) -> None:
    sdist, wheel = archives
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert "twin/py.typed" in inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)
    for folder in ("hardware", "calibration", "scenarios"):
        files = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert {f"twin/data/{name}" for name in files} <= inside
    assets = {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "twin").rglob("*") if p.suffix in (".css", ".js", ".html")
    }
    assert assets <= inside
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs/design.md", "tests/conftest.py"} <= names


def test_wheel_runs_outside_the_repository_with_core_dependencies_only(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python, twin = str(home / "bin" / "python"), str(home / "bin" / "twin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    _run([*pip, "install", "--quiet", "--no-compile", str(archives[1])], tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    installed = {p["name"].lower() for p in json.loads(_run([*pip, "list", "--format=json"], away))}
    assert not installed & set(EXTRAS)

    for lane in ("tp4", "sidecar"):
        cell = json.loads(_run([twin, "predict", "--lane", lane, "--k", "9", "--json"], away))["cells"][0]
        assert 1 < cell["step_ms"]["mean"] < 100
    assert "sidecar" in _run([twin, "lanes"], away)
    assert "ok:" in _run([twin, "check"], away)
    root = _run([python, "-c", "from twin.lane.catalogue import shipped_root; print(shipped_root())"], away).strip()
    assert Path(root).is_relative_to(home), "the catalogue must be the wheel's own"
    receipts = f"{root}/calibration/receipts/mission.csv"
    _run([twin, "fit", receipts, "--lane", "tp4", "-o", "fit.json"], away)
    (away / "r.json").write_text(_run([twin, "predict", "--lane", "tp4", "--calibration", "fit.json", "--json"], away))
    assert "identical" in _run([twin, "rerun", "r.json"], away)
    assert "step" in _run([python, "-c", "import twin; print(twin.predict('tp4', k=9).cells[0])"], away)
    # An extra that is missing is named with the command that brings it.
    _run([twin, "predict", "--lane", "tp4", "--plot", "a.svg"], away, code=1)


def test_version_is_semantic_and_the_same_everywhere() -> None:
    import twin

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", twin.__version__)
    assert project["version"] == twin.__version__
    assert f"## {twin.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_core_dependencies_are_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=]", text)[0] for text in project["dependencies"]}
    # prometheus-client reads metrics pages; rich is the terminal output.
    assert names == {"simpy", "numpy", "scipy", "pydantic", "click", "rich", "prometheus-client"}
