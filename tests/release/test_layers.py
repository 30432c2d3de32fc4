"""The layers of docs/design.md: a package imports only from those above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = {"errors", "units", "files", "memory", "workers"}
#: modules that only put the layers together
TOP = {"api", "__init__"}
EXCEPTIONS = {
    # `twin check` parses the schedule of a lane as the acceptance layer will.
    ("lane/check.py", "acceptance"),
}


def layers() -> list[str]:
    """The order that the design document states."""
    return re.findall(r"^\| `twin/(\w+)/`", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)


def imports() -> Iterator[tuple[str, str, str]]:
    """(file, its package, the package it imports)."""
    for path in sorted((ROOT / "twin").rglob("*.py")):
        file = path.relative_to(ROOT / "twin")
        own = file.parts[0] if len(file.parts) > 1 else file.stem
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                if module.startswith("twin.") and (other := module.split(".")[1]) != own:
                    yield file.as_posix(), own, other


def test_every_package_is_in_the_table() -> None:
    packages = {p.name for p in (ROOT / "twin").iterdir() if (p / "__init__.py").exists()}
    assert packages == set(layers())


def test_a_layer_imports_only_from_those_above() -> None:
    order = {name: place for place, name in enumerate(layers())}
    wrong = [
        f"twin/{file} imports twin.{other}"
        for file, own, other in imports()
        if own not in TOP and other not in BESIDE and (file, other) not in EXCEPTIONS
        and (own in BESIDE or order[other] > order[own])
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_no_file_is_evaluated_or_unpickled_and_no_lane_is_known_by_name() -> None:
    for path in sorted((ROOT / "twin").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", "") or "", *(a.name for a in node.names)]
                assert not {"pickle", "shelve", "marshal"} & set(names), f"{path}:{node.lineno}"
        assert not re.search(r"\b(lane|name) == ['\"](tp4|sidecar)", text), path
