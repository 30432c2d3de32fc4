"""`twin` as a user runs it: in this process through click, or as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from twin.cli import main


@dataclass(frozen=True)
class Answer:
    """Exit code, stdout and stderr of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as JSON."""
        return json.loads(self.out)


class Twin:
    """Runs `twin ARGS` through the program's own entry point, with what a terminal would see captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Answer:
        self._monkeypatch.setattr(sys, "argv", ["twin", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main.main()
        seen = self._capsys.readouterr()
        code = stop.value.code
        assert isinstance(code, int), f"exit code {code!r}"
        assert "Traceback" not in seen.out + seen.err
        return Answer(code, seen.out, seen.err)

    def good(self, *arguments: str) -> Answer:
        """The answer of a call that must do its job."""
        answer = self(*arguments)
        assert answer.code == 0, answer.err
        return answer

    def refused(self, *arguments: str) -> Answer:
        """A call that must be refused: exit 1 or 2, nothing on stdout, a short reason on stderr."""
        answer = self(*arguments)
        assert answer.code in (1, 2), answer
        assert answer.out == "" and answer.err.strip()
        return answer


def program(*arguments: str, **environment: str) -> Answer:
    """`twin ARGS` as a program of its own, as installed beside this Python."""
    script = Path(sys.executable).with_name("twin")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "twin.cli.main"]
    plain = {
        name: value for name, value in os.environ.items() if name not in ("TWIN_CATALOGUE", "COLUMNS", "FORCE_COLOR")
    }
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=plain | environment,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
