"""python -m tests.mutation [FILE ...] [--most N] [--seed S]: change one operator at a time and see whether a test notices.

The tree is copied; every mutant is written into the copy and the tests of its module run until the first failure. The score is the share
of mutants that some test killed. Survivors are printed: each is an equivalent program or a missing test.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: module -> the tests that are about it
TESTS = {
    "twin/routing/exact.py": ["tests/routing/test_exact.py"],
    "twin/step/fast.py": [
        "tests/unit/test_fast_engine.py",
        "tests/property/test_engines_agree.py",
        "tests/property/test_step_laws.py",
    ],
    "twin/step/costs.py": ["tests/unit/test_step_costs.py", "tests/property/test_step_laws.py"],
    "twin/step/builders.py": ["tests/property/test_engines_agree.py", "tests/property/test_step_laws.py"],
    "twin/step/prefill.py": ["tests/unit/test_step_costs.py", "tests/reference/test_seed_facts.py"],
    "twin/units.py": ["tests/unit/test_quantities.py"],
    "twin/files.py": ["tests/unit/test_files.py"],
}
_SWAPS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult], ast.FloorDiv: [ast.Mult], ast.Pow: [ast.Mult],
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq],
    ast.And: [ast.Or], ast.Or: [ast.And],
}  # fmt: skip


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what changed, text of the mutant)."""
    places = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.BinOp, ast.Compare, ast.BoolOp, ast.Constant, ast.If))
    ]
    for index in range(len(places)):
        for choice in range(2):
            tree = ast.parse(text)
            node = [
                n for n in ast.walk(tree) if isinstance(n, (ast.BinOp, ast.Compare, ast.BoolOp, ast.Constant, ast.If))
            ][index]
            change = _change(node, choice)
            if change is not None:
                yield node.lineno, change, ast.unparse(ast.fix_missing_locations(tree))


def _change(node: ast.AST, choice: int) -> str | None:
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        swaps = _SWAPS.get(type(node.op), [])
        if choice < len(swaps):
            old, node.op = type(node.op).__name__, swaps[choice]()  # type: ignore[assignment]
            return f"{old} became {type(node.op).__name__}"
    elif isinstance(node, ast.Compare):
        swaps = _SWAPS.get(type(node.ops[0]), [])
        if choice < len(swaps):
            old = type(node.ops[0]).__name__
            node.ops[0] = swaps[choice]()  # type: ignore[call-overload]
            return f"{old} became {type(node.ops[0]).__name__}"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and choice == 0:
        old_value, node.value = node.value, node.value + 1
        return f"{old_value} became {node.value}"
    elif isinstance(node, ast.If) and choice == 0:
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "a condition was turned around"
    return None


def main() -> int:
    """Print survivors and a score a file; exit 0 whatever the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "file", nargs="*", default=["twin/routing/exact.py", "twin/step/fast.py"], help=", ".join(TESTS)
    )
    parser.add_argument("--most", type=int, default=40, help="mutants a file, drawn at random; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "build", "dist", ".hypothesis", "*.svg")
        )
        for name in given.file:
            _score(copy, name, given.most, given.seed)
    return 0


def _score(copy: Path, name: str, most: int, seed: int) -> None:
    path = copy / name
    text = path.read_text(encoding="utf-8")
    every = list(mutants(text))
    chosen = sorted(random.Random(seed).sample(every, most)) if 0 < most < len(every) else every
    killed = 0
    for line, change, mutant in chosen:
        path.write_text(mutant, encoding="utf-8")
        if _noticed(copy, name):
            killed += 1
        else:
            print(f"{name}:{line}: survived: {change}: {text.splitlines()[line - 1].strip()}", flush=True)
    path.write_text(text, encoding="utf-8")
    if _noticed(copy, name):
        raise SystemExit(f"{name}: its tests fail without a mutation")
    print(
        f"{name}: {killed} of {len(chosen)} mutants killed ({100 * killed / max(1, len(chosen)):.0f} %), {len(every)} in all"
    )


def _noticed(copy: Path, name: str) -> bool:
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS[name]]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return True  # a loop that does not end is noticed
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
