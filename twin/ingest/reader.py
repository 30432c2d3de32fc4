"""The interface of a format reader, and how a file's first bytes are scored against its signature.

A reader is a module with `FORMAT`, a `Reader` record: its name, one line about it, `score(head)` in 0..1 from the first
64 KiB, and `read(source) -> Found`. A score of 0.75 or more means "this is mine".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from twin.errors import IngestError
from twin.ingest.model import Found
from twin.ingest.source import Source

ACCEPT = 0.75
# A log line may start with a date in brackets, so an array must go on as one.
_JSON_START = re.compile(r'\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:[\[{"\]]|-?[0-9.eE+-]+\s*(?:,|\]|$)|true|false|null|NaN|$))')
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,120})"\s*:')


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, with the views that signatures look at."""

    data: bytes

    @cached_property
    def text(self) -> str:
        """The head as text; bytes that are no UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", errors="replace").removeprefix("\ufeff")

    @cached_property
    def json(self) -> bool:
        """Whether the text starts as a JSON object or array."""
        return _JSON_START.match(self.text) is not None

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every text in the head that stands where a JSON key stands, at any level."""
        return frozenset(_KEY.findall(self.text)) if self.json else frozenset()

    @cached_property
    def lines(self) -> list[str]:
        """The first 200 lines."""
        return self.text.splitlines()[:200]

    @cached_property
    def binary(self) -> bool:
        """Whether the head holds a NUL byte."""
        return b"\x00" in self.data


@dataclass(frozen=True)
class Reader:
    """One format: `name` for --format, `title` for people, `score` and `read`."""

    name: str
    title: str
    score: Callable[[Head], float]
    read: Callable[[Source], Found]


def key_score(
    head: Head, must: Iterable[str], some: Iterable[str] = (), *, enough: int = 1, never: Iterable[str] = ()
) -> float:
    """1 when the head has every key of `must`, `enough` of `some` and none of `never`; less the more is missing.

    Partial scores stay below ACCEPT: they only serve to name the closest format.
    """
    must, some = set(must), set(some)
    if not head.json or head.keys & set(never):
        return 0.0
    have = len(must & head.keys) / len(must) if must else 1.0
    more = min(1.0, len(some & head.keys) / enough) if some else 1.0
    if have == 1.0 and more == 1.0:
        return 1.0
    return 0.5 * (have if must else more) * (more if must else 1.0) + 0.2 * min(have, more)


def line_score(head: Head, pattern: re.Pattern[str], near: re.Pattern[str] | None = None) -> float:
    """0.9 when a line of the head matches `pattern`, 0.4 when one matches only `near`."""
    if head.binary:
        return 0.0
    if any(pattern.search(line) for line in head.lines) or pattern.search(head.text):
        return 0.9
    return 0.4 if near is not None and near.search(head.text) else 0.0


def words(text: str) -> frozenset[str]:
    """The words of a text, for lists of keys."""
    return frozenset(text.split())


def nothing_inside(source: Source, title: str, missing: str) -> IngestError:
    """The refusal of a file that looks right but holds no measurement."""
    return IngestError(f"{source.where}: looks like {title} but holds {missing}.")
