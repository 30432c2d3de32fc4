"""python -m tests.docs [--update] [PAGE ...]: run the console blocks and command lines of the pages, slow ones too."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks, commands, lay_out, listed, matches, pages, run


def _printed(block: Block, folder: Path) -> tuple[str, bool]:
    shown = int(m[1]) if (m := re.search(r"shown: (\d+)", block.mark)) else None
    text, good = "", True
    for command in commands(block):
        output = run(command.words, folder)
        good &= matches(command.shown, output)
        first, *more = command.words.splitlines()
        text += "".join([f"$ {first}\n", *(f"> {line}\n" for line in more)])
        lines = [line.rstrip() for line in output.strip("\n").splitlines()]
        if shown is not None and len(lines) > shown:
            lines = [*lines[:shown], "..."]
        text += "".join(f"{line}\n" for line in lines)
    return text, good


def main() -> int:
    """Exit 1 when a page shows what is not printed (or, with --update, never)."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the outputs into the pages")
    parser.add_argument("page", nargs="*", help="names such as tutorial.md; all without")
    given = parser.parse_args()
    stale = 0
    for page in pages():
        if given.page and page.name not in given.page:
            continue
        text = page.read_text(encoding="utf-8")
        moved = 0
        with tempfile.TemporaryDirectory() as folder:
            lay_out(page, Path(folder))
            for command in listed(page):
                if not command.skip:
                    run(command.words, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            for block in blocks(page, text):
                if block.kind != "console" or block.mark.startswith("not run"):
                    continue
                new, good = _printed(block, Path(folder))
                if not good:
                    stale += 1
                    print(f"{page.relative_to(ROOT)}:{block.line}: {'updated' if given.update else 'out of date'}")
                    at = block.start + moved
                    text = text[:at] + new + text[at + len(block.text) :]
                    moved += len(new) - len(block.text)
        if given.update:
            page.write_text(text, encoding="utf-8")
    return 1 if stale and not given.update else 0


if __name__ == "__main__":
    sys.exit(main())
