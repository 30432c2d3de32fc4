"""k by the number of live streams. Two notations are read, one object comes out:

"1-4:5, 5-8:3, 9-32:3"          ranges of streams, then k
[[1, 4, 5], [5, 8, 3]]          [first, last, k], vLLM's num_speculative_tokens_per_batch_size; also inside the JSON
                                object that vLLM takes as --speculative-config
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from twin.acceptance.traffic import MAX_K
from twin.errors import PolicyError

MAX_STREAMS = 65536
VLLM_KEY = "num_speculative_tokens_per_batch_size"
_RANGE = re.compile(r"^\s*(\d{1,9})\s*(?:(?:-|\.\.)\s*(\d{1,9}))?\s*:\s*(\d{1,9})\s*$")
_HOW = 'write it as "1-4:5, 5-8:3" or [[1, 4, 5], [5, 8, 3]]'


@dataclass(frozen=True)
class Schedule:
    """k by live streams: `(first, last, k)` ranges, ascending, from one stream on, without gap or overlap."""

    ranges: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if not self.ranges:
            raise PolicyError(f"the schedule is empty; {_HOW}.")
        expected = 1
        for first, last, k in self.ranges:
            if first > last:
                raise PolicyError(f"schedule range {first}-{last}: the first number is larger than the last.")
            if not 0 <= k <= MAX_K:
                raise PolicyError(f"schedule range {first}-{last}: k = {k}; a draft block has 0 to {MAX_K} tokens.")
            if last > MAX_STREAMS:
                raise PolicyError(f"schedule range {first}-{last}: more than {MAX_STREAMS} streams.")
            if first < expected:
                raise PolicyError(f"schedule: ranges overlap at {first} streams; the last one ends at {expected - 1}.")
            if first > expected:
                missing = f"{expected}" if first == expected + 1 else f"{expected} to {first - 1}"
                raise PolicyError(f"schedule: no k for {missing} streams; ranges must follow each other from 1 on.")
            expected = last + 1

    @property
    def max_streams(self) -> int:
        """The largest number of live streams that the schedule covers."""
        return self.ranges[-1][1]

    @property
    def ks(self) -> tuple[int, ...]:
        """The block lengths in use, ascending."""
        return tuple(sorted({k for _, _, k in self.ranges}))

    def k_for(self, streams: int) -> int:
        """k at this number of live streams; raises PolicyError outside the schedule."""
        for first, last, k in self.ranges:
            if first <= streams <= last:
                return k
        more = f"{self.max_streams + 1}-{max(streams, self.max_streams + 1)}:{self.ranges[-1][2]}"
        raise PolicyError(
            f"the schedule {self.text()!r} covers 1 to {self.max_streams} streams, asked for {streams}; "
            f"add a range, for example {more}."
        )

    def text(self) -> str:
        """The short notation, "1-4:5, 5-8:3"."""
        return ", ".join(f"{a}-{b}:{k}" if a != b else f"{a}:{k}" for a, b, k in self.ranges)

    def vllm(self) -> str:
        """The value of vLLM's num_speculative_tokens_per_batch_size, "[[1, 4, 5], [5, 8, 3]]"."""
        return json.dumps([list(r) for r in self.ranges])

    def merged(self) -> Schedule:
        """The same schedule with neighbouring ranges of equal k joined."""
        out: list[tuple[int, int, int]] = []
        for first, last, k in self.ranges:
            out = [*out[:-1], (out[-1][0], last, k)] if out and out[-1][2] == k else [*out, (first, last, k)]
        return Schedule(tuple(out))


def fixed(k: int, max_streams: int = MAX_STREAMS) -> Schedule:
    """The same k at any number of streams."""
    return Schedule(((1, max_streams, k),))


def parse_schedule(given: str | Sequence[Sequence[int]]) -> Schedule:
    """Read a schedule in either notation. Raises PolicyError naming the part that is wrong."""
    if isinstance(given, str):
        text = given.strip()
        if len(text) > 20_000:
            raise PolicyError(f"a schedule of {len(text)} characters; {_HOW}.")
        if text[:1] not in ("[", "{"):
            return Schedule(tuple(_range(part) for part in text.split(",") if part.strip()))
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise PolicyError(f"schedule {text[:60]!r} is not a list of [first, last, k]; {_HOW}.") from None
        if isinstance(given, dict):
            given = given.get(VLLM_KEY, ())
    if not isinstance(given, Sequence):
        raise PolicyError(f"schedule {str(given)[:60]!r} is not a list of [first, last, k]; {_HOW}.")
    rows: list[tuple[int, int, int]] = []
    for row in given:
        good = isinstance(row, Sequence) and not isinstance(row, str) and len(row) == 3
        whole = [n for n in row if isinstance(n, int) and not isinstance(n, bool)] if good else []
        if len(whole) != 3:
            raise PolicyError(f"schedule row {str(row)[:60]}: expected [first, last, k] in whole numbers; {_HOW}.")
        rows.append((whole[0], whole[1], whole[2]))
    return Schedule(tuple(rows))


def _range(part: str) -> tuple[int, int, int]:
    match = _RANGE.match(part)
    if match is None:
        raise PolicyError(f"schedule part {part.strip()[:60]!r}: expected FIRST-LAST:K; {_HOW}.")
    first, last, k = int(match[1]), int(match[2] or match[1]), int(match[3])
    return first, last, k
