"""What one verify step is asked to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """`streams` live streams of `rows` verified tokens each (k + 1, or fewer when the engine verifies a prefix).

    `accepted_rows` is the expected number of rows a stream that turn out to be kept context (tokens per step, bonus
    included): rejected rows may route differently. `context_tokens` is the mean context of a stream.
    """

    streams: int
    k: int
    rows: float
    accepted_rows: float
    context_tokens: float

    @property
    def tokens(self) -> float:
        """Verified tokens in flight."""
        return self.streams * self.rows
