"""The first page a newcomer reads: short, two commands to set up, and what it shows is what the program prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_support import Twin
from pytest import approx

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = ["pip install . && twin predict --k 9 --lane tp4", 'pip install -e ".[dev]" && python -m pytest -n 2']


def indented() -> list[str]:
    return re.findall(r"^    (\S.*)$", README, re.MULTILINE)


def test_the_first_screen_has_two_commands_to_set_up() -> None:
    assert [line for line in indented() if line.startswith("pip install")] == SET_UP
    first_screen = README.splitlines()[:30]
    assert all(f"    {command}" in first_screen for command in SET_UP)


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for half in SET_UP[1].split(" && "):
        assert re.search(rf"^{re.escape(half)}( |$)", script, re.MULTILINE), half


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert "://" in target or (ROOT / target).exists(), target


def test_commands_exist(twin: Twin) -> None:
    listed = twin.good("--help").out
    named = set(re.findall(r"`twin ([a-z-]+)", README))
    assert named and all(re.search(rf"^  {name}\b", listed, re.MULTILINE) for name in named), named


@pytest.mark.parametrize("command", [line for line in indented() if line.startswith("twin ")])
def test_what_is_shown_is_what_is_printed(twin: Twin, command: str) -> None:
    printed = twin.good(*shlex.split(command)[1:]).out
    (shown,) = re.findall(rf"^    {re.escape(command)}\n\n```text\n(.*?)```", README, re.MULTILINE | re.DOTALL)

    def row(text: str) -> list[float]:
        (line,) = (line for line in text.splitlines() if re.match(r"^ +1 +\d+ ", line))
        return [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+", line)]

    # A refit moves digits; a page that is off by more than 5 % is out of date.
    assert row(shown)[:3] == approx(row(printed)[:3], rel=0.05)
    labels = [line for line in shown.splitlines() if line and not any(c.isdigit() for c in line)]
    assert all(
        " ".join(line.split()) in " ".join(printed.split())
        for line in labels
        if "─" not in line and line.strip() != "..."
    )
