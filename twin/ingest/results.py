"""Result files of benchmark tools: one JSON object a run, alone, one a line, or in an array."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream, documents
from twin.ingest.reader import nothing_inside
from twin.ingest.source import Source

MAX_RESULTS = 10_000


def results(source: Source, title: str) -> Iterator[tuple[str, JsonStream]]:
    """A label and a stream at the start of each result; consume it before asking for the next.

    Raises IngestError when there is none, or more than MAX_RESULTS.
    """
    index = -1
    with JsonStream(source) as stream:
        for index in documents(stream):
            if index >= MAX_RESULTS:
                raise IngestError(f"{source.where}: more than {MAX_RESULTS:,} results in one file; split it.")
            yield f"result {index + 1}", stream
    if index < 0:
        raise nothing_inside(source, title, "no result")


def members(stream: JsonStream, passed: Container[str] = ()) -> dict[str, Any]:
    """The object that starts here; of the keys in `passed` only the number of their entries is kept.

    Raises IngestError when a key appears twice, because which value is right cannot be known.
    """
    raw: dict[str, Any] = {}
    for key in stream.members():
        if key in raw:
            raise twice(stream, key)
        raw[key] = stream.skip() if key in passed else stream.value()
    return raw


def single(source: Source, passed: Container[str] = ()) -> dict[str, Any]:
    """The one object of a file, as `members` reads it."""
    with JsonStream(source) as stream:
        return members(stream, passed)


def twice(stream: JsonStream, key: str) -> IngestError:
    """The refusal of an object that says a key twice."""
    return IngestError(f"{stream.where}: the key {key!r} appears twice; which value is right cannot be known.")
