"""From what a person asked (k or a schedule, numbers of streams) to the cells to predict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from twin.acceptance.policy import Schedule, parse_schedule
from twin.errors import PolicyError
from twin.lane.lane import Lane
from twin.planning.predict import CellRequest

MAX_K = 64
MAX_CONCURRENCY = 65536
MAX_CELLS = 10_000
MAX_CONTEXT = 16_000_000


def parse_concurrency(text: str) -> list[int]:
    """ "1,4,8" or "1..32" (both ends in), or a mixture, as a list. Raises PolicyError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise PolicyError(
                f"--concurrency {text!r}: {part.strip()!r} is not a whole number or a range; expected for example 1,4,8 or 1..32."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise PolicyError(
                f"--concurrency {text!r}: the range {part.strip()!r} runs backwards; write {last}..{first}."
            )
        if first < 1:
            raise PolicyError(f"--concurrency {text!r}: expected at least 1 live stream, got {first}.")
        if last > MAX_CONCURRENCY or last - first >= MAX_CELLS:
            raise PolicyError(f"--concurrency {text!r}: at most {MAX_CONCURRENCY} streams and {MAX_CELLS} cells.")
        found += range(first, last + 1)
    if len(found) > MAX_CELLS:
        raise PolicyError(f"--concurrency {text!r}: {len(found)} cells; at most {MAX_CELLS}.")
    return list(dict.fromkeys(found))


def cell_requests(
    lane: Lane, *, k: int | None, schedule: Schedule | None, concurrency: Sequence[int], verification: str | None, context_tokens: int,
    cached_tokens: int = 0,
) -> list[CellRequest]:  # fmt: skip
    """One request for every number of live streams. Raises PolicyError for an impossible policy.

    Without k and schedule the lane's own policy decides.
    """
    if k is not None and schedule is not None:
        raise PolicyError("--k and --schedule both say how long drafts are; give one of them.")
    if k is not None and not 0 <= k <= MAX_K:
        raise PolicyError(f"k = {k}: a draft has 0 (plain decoding) to {MAX_K} tokens.")
    if not 1 <= context_tokens <= MAX_CONTEXT:
        raise PolicyError(f"--context {context_tokens}: expected 1 to {MAX_CONTEXT} tokens.")
    if k is None and schedule is None and lane.policy.schedule is not None:
        schedule = parse_schedule(lane.policy.schedule)
    rule = verification or lane.policy.verification
    requests = []
    for streams in concurrency:
        if not 1 <= streams <= MAX_CONCURRENCY:
            raise PolicyError(f"concurrency {streams}: expected 1 to {MAX_CONCURRENCY} live streams.")
        drafts = k if k is not None else schedule.k_for(streams) if schedule is not None else lane.policy.k
        requests.append(CellRequest(drafts, streams, rule, context_tokens, cached_tokens))
    return requests
