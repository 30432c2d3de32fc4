"""The per-request records of a vLLM result, read twice: first when each request began and ended, then its chunks.

Which chunk intervals are steady is known only once every request's end is, and `itls` may come before `start_times`. So
the first walk keeps four numbers a request and the second, beside it in the same file, folds the intervals.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream, documents
from twin.ingest.numbers import number, numbers
from twin.ingest.source import Source
from twin.ingest.steady import Steady, SteadyFold

#: requests of one result, some hundred bytes each while the steady span is looked for
MAX_REQUESTS = 1_000_000
KEYS = frozenset(("itls", "start_times", "ttfts"))


@dataclass
class Requests:
    """When each request of a result began, its time to first token, and the sum and number of its chunk intervals."""

    start_s: array[float] = field(default_factory=lambda: array("d"))
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    chunks_s: array[float] = field(default_factory=lambda: array("d"))
    chunks: int = 0

    def read(self, key: str, stream: JsonStream) -> None:
        """Take one of KEYS, whose value the stream stands at."""
        into = {"itls": self.chunks_s, "start_times": self.start_s, "ttfts": self.ttft_s}[key]
        if stream.peek() != "[":
            stream.skip()
            return
        for request in stream.elements():
            if request >= MAX_REQUESTS:
                raise IngestError(
                    f"{stream.where}: more than {MAX_REQUESTS:,} requests in {key}; save the run in parts."
                )
            where = f"{key}[{request}]"
            if key == "itls":
                one = numbers(stream.value(), stream.where, where)
                self.chunks += len(one)
                into.append(sum(one))
            else:
                value = number(stream.value(), stream.where, where)
                if value is None:
                    raise IngestError(f"{stream.where}: {where} is empty.")
                into.append(value)

    def complete(self, where: str) -> bool:
        """Whether all three lists are there. Raises IngestError when they are not of the same requests."""
        if not (self.chunks and self.start_s and self.ttft_s):
            return False
        if not len(self.start_s) == len(self.ttft_s) >= len(self.chunks_s):
            raise IngestError(
                f"{where}: start_times ({len(self.start_s)}), ttfts ({len(self.ttft_s)}) and itls "
                f"({len(self.chunks_s)}) are not of the same requests."
            )
        return True


class SecondWalk:
    """A second walk through the same file, result by result, as far as it is asked."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stream: JsonStream | None = None
        self._at = -1

    def close(self) -> None:
        """Close the file if it was opened."""
        if self._stream is not None:
            self._stream.close()

    def steady(self, result: int, requests: Requests, level: float | None) -> Steady | None:
        """The steady part of result number `result`; results must be asked in order."""
        start, ttft = np.array(requests.start_s), np.array(requests.ttft_s)
        last = start + ttft
        last[: len(requests.chunks_s)] += np.array(requests.chunks_s)
        fold = SteadyFold(start, start + ttft, last, level)
        if self._stream is None:
            self._stream = JsonStream(self._source)
            self._results = documents(self._stream)
        while self._at < result:
            self._at = next(self._results)
            if self._at < result:
                self._stream.skip()
        for key in self._stream.members():
            if key != "itls" or self._stream.peek() != "[":
                self._stream.skip()
                continue
            for request in self._stream.elements():
                chunks = numbers(self._stream.value(), self._stream.where, "itls")
                if chunks:
                    fold.add(request, np.array(chunks))
        return fold.result()
