"""Code blocks of the Markdown pages and how each kind is held to the program.

    ```console     lines with `$ ` are run by bash in a folder of the page's own, what follows is compared
    ```python      run; the names of a page's earlier blocks are known
    ```toml, json  must parse
    other blocks   every line that starts with `twin ` must be a command line that click accepts, and is run too: nothing
                   is shown to compare with, so it has to end well. `# not run: why` behind it, for readers as for
                   tests, says what it needs; `# slow: why` leaves it to `python -m tests.docs`

A comment before a fence changes that: `<!-- slow -->` (left to `--slow`), `<!-- shown: 12 -->` (only so many lines are
shown, then `...`), `<!-- not run: why -->`. `<!-- file: name.json from tests/... -->` puts a file of the repository
beside the commands of a page, under the name they use. A line `...` in an output stands for any lines.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: a refit moves digits; what is further off makes a page out of date
TOLERANCE = 0.05
_FENCE = re.compile(
    r"(?:<!-- *(?P<mark>[^>]*?) *-->\n)?^```(?P<kind>[a-z]*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the comment before it, and where it starts."""

    page: str
    line: int
    kind: str
    text: str
    mark: str
    start: int  # where the text begins in the page, in characters

    @property
    def name(self) -> str:
        """A name for a test."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a console block with what is shown below it."""

    words: str
    shown: str


def pages() -> list[Path]:
    """README and everything under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8") if text is None else text
    return [
        Block(
            page.name,
            text.count("\n", 0, m.start("text")),
            m["kind"],
            m["text"],
            (m["mark"] or "").strip(),
            m.start("text"),
        )
        for m in _FENCE.finditer(text)
    ]


def command_lines(page: Path) -> list[tuple[int, str]]:
    """Line number and text of every `twin ...` line in a block that is not run, indented blocks included."""
    text = page.read_text(encoding="utf-8")
    found = [
        (b.line + i, line.strip())
        for b in blocks(page) if b.kind in ("", "sh", "bash") and not b.mark.startswith("not run")
        for i, line in enumerate(b.text.splitlines(), start=1)
    ]  # fmt: skip
    outside = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    found += [(i, line.strip()) for i, line in enumerate(outside.splitlines(), start=1) if line.startswith("    ")]
    joined: list[tuple[int, str]] = []
    for number, line in found:
        if joined and joined[-1][1].endswith("\\"):
            joined[-1] = joined[-1][0], joined[-1][1].removesuffix("\\") + line
        else:
            joined.append((number, line))
    return [(number, line) for number, line in joined if line.startswith(("twin ", "mkdir "))]


@dataclass(frozen=True)
class Listed:
    """A command line of a block without output, and why it is not run (`skip`) or only in long runs (`slow`)."""

    line: int
    words: str
    skip: str
    slow: str


def listed(page: Path) -> list[Listed]:
    """Every command line of the page's blocks without output; headings such as `twin report SCENARIO` are none."""
    found = []
    for number, line in command_lines(page):
        words, _, comment = line.partition("  #")
        if re.fullmatch(r"twin [a-z-]+( [A-Z][A-Z.]*)*", words.strip()):
            continue
        kind, _, why = comment.strip().partition(": ")
        found.append(Listed(number, words.strip(), why if kind == "not run" else "", why if kind == "slow" else ""))
    return found


def lay_out(page: Path, folder: Path) -> None:
    """Put the files that a page's commands read into their folder."""
    for name, source in re.findall(r"<!-- file: (\S+) from (\S+) -->", page.read_text(encoding="utf-8")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = (ROOT / source).read_bytes()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    # A page says `scenarios/...` for the folder of the repository.
    for name in ("scenarios", "calibration"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)


def commands(block: Block) -> Iterator[Command]:
    """Commands of a console block; a line that starts with `> ` continues the one before."""
    words: list[str] = []
    shown: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if words:
                yield Command("\n".join(words), "\n".join(shown))
            words, shown = [line[2:]], []
        elif line.startswith("> ") and not shown:
            words.append(line[2:])
        else:
            shown.append(line)
    if words:
        yield Command("\n".join(words), "\n".join(shown))


def run(words: str, folder: Path) -> str:
    """What a terminal of 100 columns would show; raises CalledProcessError on another exit code than 0."""
    passed = {n: t for n, t in os.environ.items() if not n.startswith(("TWIN_", "_TWIN"))}
    place = f"{Path(sys.executable).parent}{os.pathsep}{passed.get('PATH', '')}"
    environment = passed | {"COLUMNS": "100", "PATH": place, "NO_COLOR": "1"}
    # A page may show a refusal: `|| true` there says that it is meant.
    done = subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"exit {done.returncode} of: {words}\n{done.stdout[-2000:]}")
    return done.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether the page shows what was printed: the same words, numbers within TOLERANCE, `...` for any lines."""
    parts = re.split(r"^\s*\.\.\.\s*$", shown, flags=re.MULTILINE)
    rest = _lines(printed)
    for index, part in enumerate(parts):
        wanted = _lines(part)
        last = index == len(parts) - 1
        starts = [0] if index == 0 else [len(rest) - len(wanted)] if last else range(len(rest) - len(wanted) + 1)
        at = next((s for s in starts if s >= 0 and _same(wanted, rest[s : s + len(wanted)])), None)
        if at is None:
            return False
        rest = rest[at + len(wanted) :]
    return not rest or len(parts) > 1


def _lines(text: str) -> list[str]:
    # Bars and column widths follow the numbers.
    lines = (" ".join(re.sub("[─█▉▊▋▌▍▎▏]+", " ", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def _same(wanted: list[str], found: list[str]) -> bool:
    if len(wanted) != len(found):
        return False
    for one, two in zip(wanted, found, strict=True):
        if _NUMBER.sub("#", one) != _NUMBER.sub("#", two):
            return False
        pairs = zip(_NUMBER.findall(one), _NUMBER.findall(two), strict=True)
        numbers = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs]
        # Two printed digits may move by one unit: 0.32 against 0.33.
        if any(abs(a - b) > TOLERANCE * max(abs(a), abs(b)) + 0.1 for a, b in numbers):
            return False
    return True
