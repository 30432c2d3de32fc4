"""What is printed cannot drive the terminal: names, notes and servers' words come from others."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

#: C0 without tab and line ends, DEL, C1; a terminal obeys some of them
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
#: the same, where colours (SGR sequences, which rich writes) stay
_BUT_COLOURS = re.compile(r"(?!\x1b\[[0-9;]*m)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def escaped(text: str, *, colours: bool = False) -> str:
    """`text` with control characters as `\\x1b`; with `colours` those that only colour stay."""
    return (_BUT_COLOURS if colours else _CONTROL).sub(lambda hit: f"\\x{ord(hit[0]):02x}", text)


class Printable:
    """A text stream that writes `escaped` text to another; in all else it is that one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def beneath(self) -> Any:
        """The stream itself, for what moves the cursor: a line of progress, whose words are `escaped` by its writer."""
        return self._stream

    def write(self, text: str) -> int:
        """Write, escaped; colours stay where the stream is a terminal."""
        self._stream.write(escaped(text, colours=self._stream.isatty()))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Each line as `write` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def cursor_stream() -> TextIO:
    """stderr for lines of progress, which rewrite themselves."""
    return cast(TextIO, getattr(sys.stderr, "beneath", sys.stderr))
