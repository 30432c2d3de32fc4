"""README and docs: every command line is one, every block runs, what is shown is what is printed, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from docs.pages import ROOT, blocks, commands, lay_out, listed, matches, pages, run
from twin.cli.main import cli

SLOW = bool(os.environ.get("TWIN_SLOW_TESTS"))
each_page = pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)


def _refusal(words: list[str]) -> str | None:
    """Why click does not accept a command line, without running it."""
    context = click.Context(cli, info_name="twin")
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            return None
        name, words = words[0], words[1:]
        command = command.get_command(context, name)
        if command is None:
            return f"no command {name!r}"
    assert command is not None
    try:
        command.make_context(command.name, words)
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


@each_page
def test_every_command_line_is_one(page: Path) -> None:
    wrong = []
    for given in listed(page):
        for part in re.split(r" && | \| ", given.words):
            words = shlex.split(part.split(" > ")[0])
            if words[0] == "twin" and (reason := _refusal(words[1:])) is not None:
                wrong.append(f"{page.name}:{given.line}: {given.words}\n    {reason}")
    assert not wrong, "\n".join(wrong)


@each_page
def test_every_command_line_runs(page: Path, tmp_path: Path) -> None:
    lay_out(page, tmp_path)
    for given in listed(page):
        if not given.skip and (SLOW or not given.slow):
            run(given.words, tmp_path)  # raises with what was printed


@each_page
def test_what_is_shown_is_what_is_printed(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.kind != "console" or block.mark.startswith("not run") or ("slow" in block.mark and not SLOW):
            continue
        for command in commands(block):
            printed = run(command.words, tmp_path)
            assert matches(command.shown, printed), (
                f"{block.name}: $ {command.words}\nthe page shows\n{command.shown}\nprinted was\n{printed}\n"
                "`python -m tests.docs --update` writes what is printed into the pages"
            )


@each_page
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.kind == "python" and not block.mark.startswith("not run"):
            exec(compile(block.text, block.name, "exec"), names)


@each_page
def test_data_blocks_parse_and_links_lead_somewhere(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "json":
            json.loads(block.text)
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("name", ["cli", "formats", "python-api"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), name, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [p.name for p in pages()[1:] if p.name not in text]
    assert not missing, f"add to nav in mkdocs.yml: {missing}"


def test_every_command_has_its_place_in_the_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(f"## twin {name}\n" in text for name in cli.list_commands(click.Context(cli)))


def test_the_comparison_can_fail() -> None:
    assert matches("a 1.00 ms\n...\nend", "a 1.01 ms\nb\nc\nend\n")
    assert not matches("a 1.00 ms", "a 2.00 ms")
    assert not matches("a 1.00 ms", "b 1.00 ms")
    assert not matches("a", "a\nb")
    assert not matches("a\n...\nend", "a\nb")
