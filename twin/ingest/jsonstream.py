"""JSON read piece by piece: a top-level object or array of any size in bounded memory.

The standard decoder builds everything at once. Result files hold small numbers of interest beside arrays of megabytes,
and traces hold millions of events, so this walks the outer levels itself and hands only complete small values to the
decoder. Depth, size of one value and length of a number are bounded; NaN and Infinity come through as floats, because
real files hold them, and it is for the meaning of a field to refuse them.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from twin.errors import IngestError
from twin.ingest.source import Source

MAX_DEPTH = 64
#: decoded, a value of many small parts takes some twenty times its text
MAX_VALUE_CHARS = 4 * 2**20
_READ_BYTES = 2**18
_SPACE = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'["\[\]{}]')
_STRING_REST = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_decoder = json.JSONDecoder()


class JsonStream:
    """A cursor over one JSON text. Call `value`, `skip`, `members` or `elements` at the start of a value."""

    def __init__(self, source: Source) -> None:
        self.where = source.where
        self._stream = source.open()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._done, self._read = "", 0, False, 0
        self._depth = 0
        self._fill()
        self._text = self._text.removeprefix("\ufeff")

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> JsonStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def peek(self) -> str:
        """The next character that is not space, or "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self, limit: int = MAX_VALUE_CHARS) -> Any:
        """Decode the next value, at most `limit` characters of it."""
        if not self.peek():
            raise self._broken("the text ends where a value was expected")
        while True:
            self._room()
            try:
                # A number near the end of the buffer may go on in the next chunk, also after a point or an exponent's
                # sign, which the decoder leaves where no digit follows ("1." or "1e-").
                found, end = _decoder.raw_decode(self._text, self._at)
                open_end = 2 if isinstance(found, (int, float)) else 0
                if end + open_end < len(self._text) or self._done:
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                if self._done or (error.pos < len(self._text) - 16 and not self._open_string(error)):
                    raise self._broken(error.msg) from None
            except RecursionError:
                raise self._too_deep() from None
            except ValueError as error:
                raise self._broken(str(error).split(";")[0]) from None
            have = len(self._text) - self._at
            if have > limit:
                raise IngestError(
                    f"{self.where}: one JSON value of more than {limit / 2**20:g} MiB; this is no result file."
                )
            # Doubling keeps the repeated attempts linear in the length of the value.
            self._more(min(max(_READ_BYTES, have), limit + 1 - have))

    def skip(self) -> int:
        """Pass over the next value without building it; returns how many elements or members its outer level had."""
        first = self.peek()
        if first not in ("[", "{"):
            self.value()
            return 1
        depth, commas = 0, 0
        empty = True
        while True:
            match = _STRUCTURE.search(self._text, self._at)
            start, end = self._at, match.start() if match else len(self._text)
            if depth == 1:
                piece = self._text[start:end]
                commas += piece.count(",")
                empty = empty and not piece.strip()
            self._at = end
            if match is None:
                if not self._more():
                    raise self._broken("the text ends inside an array or object")
                continue
            self._at += 1
            symbol = match.group()
            if symbol == '"':
                self._skip_string()
                empty = False
            elif symbol in "[{":
                empty = empty and depth == 0
                depth += 1
                if self._depth + depth > MAX_DEPTH:
                    raise self._too_deep()
            else:
                depth -= 1
                if depth == 0:
                    return 0 if empty else commas + 1
            self._room()

    def members(self) -> Iterator[str]:
        """Keys of the object that starts here; consume each value before asking for the next key."""
        self._open("{")
        if self.peek() == "}":
            self._at += 1
            self._depth -= 1
            return
        while True:
            if self.peek() != '"':
                raise self._broken("expected a key in double quotes")
            key = self.value(limit=2**16)
            if self.peek() != ":":
                raise self._broken(f"expected ':' after the key {str(key)[:40]!r}")
            self._at += 1
            yield str(key)
            if self._comma_or("}"):
                return

    def elements(self) -> Iterator[int]:
        """Indices of the array that starts here; consume each element before asking for the next."""
        self._open("[")
        if self.peek() == "]":
            self._at += 1
            self._depth -= 1
            return
        index = 0
        while True:
            yield index
            index += 1
            if self._comma_or("]"):
                return

    def _open(self, symbol: str) -> None:
        if self.peek() != symbol:
            raise self._broken(f"expected {symbol!r}")
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._too_deep()

    def _comma_or(self, closing: str) -> bool:
        found = self.peek()
        self._at += 1
        if found == closing:
            self._depth -= 1
            return True
        if found == ",":
            return False
        self._at -= 1
        raise self._broken(f"expected ',' or {closing!r}" if found else "the text ends inside an array or object")

    def _skip_string(self) -> None:
        while True:
            match = _STRING_REST.match(self._text, self._at)
            if match:
                self._at = match.end()
                return
            # Keep an odd backslash at the end for the next chunk.
            keep = len(self._text) - len(self._text.rstrip("\\"))
            self._at = max(self._at, len(self._text) - keep)
            self._room()
            if not self._more():
                raise self._broken("the text ends inside a string")

    def _open_string(self, error: json.JSONDecodeError) -> bool:
        # The decoder reports an unfinished string at its start, however far back that is.
        return error.msg.startswith("Unterminated string")

    def _room(self) -> None:
        if self._at > _READ_BYTES:
            self._text, self._at = self._text[self._at :], 0

    def _fill(self, size: int = _READ_BYTES) -> None:
        data = self._stream.read(size)
        try:
            self._text += self._utf8.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise IngestError(
                f"{self.where}: not UTF-8 text (near byte {self._read + error.start}); save it as UTF-8."
            ) from None
        self._read += len(data)
        self._done = not data

    def _more(self, size: int = _READ_BYTES) -> bool:
        if not self._done:
            self._room()
            self._fill(size)
        return self._at < len(self._text)

    def _broken(self, reason: str) -> IngestError:
        near = self._text[self._at : self._at + 30].split("\n")[0]
        return IngestError(
            f"{self.where}: broken JSON, {reason}" + (f", near {near!r}." if near else "; the file may be cut off.")
        )

    def _too_deep(self) -> IngestError:
        return IngestError(f"{self.where}: JSON nested deeper than {MAX_DEPTH} levels; this is no result file.")


def documents(stream: JsonStream) -> Iterator[int]:
    """Indices of the values of a stream: one document, JSON lines, or one array of objects. Consume each."""
    if stream.peek() == "[":
        yield from stream.elements()
        if stream.peek():
            raise IngestError(f"{stream.where}: text after the end of the JSON array.")
        return
    index = 0
    while stream.peek():
        yield index
        index += 1
