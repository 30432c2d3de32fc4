"""What the user says of a run that its file cannot: the flags of `twin import`, put together with what the file says.

A flag never overrides what the load generator was told; where the two contradict each other, the file is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from twin.errors import IngestError
from twin.ingest.meaning import live_streams
from twin.ingest.model import Cell, Found, clean
from twin.lane.lane import Lane
from twin.routing.placement import HotMap

Verification = Literal["token", "block", "greedy"]


@dataclass(frozen=True)
class Fill:
    """What the user says about the run. None means "the file should know"."""

    lane: str | None = None
    traffic: str | None = None
    k: int | None = None
    verification: str | None = None
    concurrency: int | None = None
    context_tokens: int | None = None
    checkpoint: str | None = None
    engine: str | None = None
    date: str | None = None
    tg_is: str | None = None
    accept_is: str | None = None
    #: the lane as the catalogue has it, and its hot map; only files of routing need them
    box: Lane | None = None
    hot_map: HotMap | None = None

    def check(self) -> None:
        """Raise IngestError for a flag with a value that it does not have."""
        if self.verification is not None and self.verification not in get_args(Verification):
            expected = ", ".join(get_args(Verification))
            raise IngestError(f"--verification {self.verification!r}: expected one of {expected}.")
        for flag, value, valid in (("--tg-is", self.tg_is, TG_IS), ("--accept-is", self.accept_is, ACCEPT_IS)):
            if value is not None and value not in valid:
                raise IngestError(f"{flag} {value!r}: expected {' or '.join(valid)}.")


#: largest draft length a receipt can carry
MAX_K = 64
TG_IS = ("per-stream", "aggregate")
ACCEPT_IS = ("length", "rate")


class LeftOut(Exception):
    """A row that does not fit the flags while others of its file may."""


def common_columns(found: Found, cell: Cell, fill: Fill, prefill_only: bool) -> dict[str, object]:
    """What every receipt of a cell says alike. Raises IngestError listing every flag that is missing."""
    where = f"{found.where}, {cell.label}"
    k, streams = _policy(cell, fill, where)
    # How many tokens are drafted later does not change a prefill.
    k = 0 if k is None and prefill_only else k
    context = cell.context_tokens if fill.context_tokens is None else fill.context_tokens
    if fill.verification and cell.verification and fill.verification != cell.verification:
        raise IngestError(
            f"{where}: the file says verification {cell.verification!r}, --verification says {fill.verification!r}."
        )
    verification = fill.verification or cell.verification or ("token" if k == 0 or prefill_only else None)
    missing = [
        flag
        for flag, value in (
            ("--lane (the box it ran on)", fill.lane),
            ("--traffic (the class of the prompts)", fill.traffic),
            ("--k (draft tokens a step; 0 without speculation)", k),
            ("--verification (token, block or greedy)", verification),
            ("--concurrency (streams in flight)", streams),
            ("--context (prompt tokens)", context),
        )
        if value is None
    ]
    if missing:
        raise IngestError(f"{where}: the file does not say, so pass {'; '.join(missing)}.")
    return {
        "source": clean(f"{found.where} sha256:{found.sha256[:16]} ({found.format})"),
        "date": clean(fill.date or cell.date),
        "lane": fill.lane,
        "checkpoint": clean(fill.checkpoint or cell.checkpoint),
        "engine": clean(fill.engine or cell.engine),
        "traffic": fill.traffic,
        "k": k,
        "verification": verification,
        "context_tokens": round(context or 0),
        "concurrency": streams,
        "tokens_per_step": cell.tokens_per_step if cell.tokens_per_step and cell.tokens_per_step >= 1 else None,
        "rows": cell.rows,
        "output_tokens": max(1, round(cell.output_tokens)) if cell.output_tokens else None,
    }


def _policy(cell: Cell, fill: Fill, where: str) -> tuple[int | None, int | None]:
    """k and concurrency from the cell and the flags; a batch size alone gives one of them when the other is known."""
    if cell.k is not None and fill.k is not None and cell.k != fill.k:
        raise IngestError(
            f"{where}: the file says k = {cell.k}, --k says {fill.k}; leave --k out, or check that it is the right "
            "file."
        )
    k = cell.k if cell.k is not None else fill.k
    streams = live_streams(cell)
    if fill.concurrency is not None:
        # The flag overrides an estimate, not what the load generator was told.
        if cell.concurrency_asked and round(cell.concurrency_asked) != fill.concurrency:
            raise IngestError(
                f"{where}: the file says {cell.concurrency_asked:g} requests in flight, --concurrency says "
                f"{fill.concurrency}."
            )
        streams = fill.concurrency
    if cell.batch_tokens is None:
        return k, streams
    if streams is None and k is None:
        raise IngestError(
            f"{where}: a batch of {cell.batch_tokens} tokens is streams x (k + 1); pass --k (then streams follow) or "
            "--concurrency (then k follows)."
        )
    if streams is None and k is not None:
        if cell.batch_tokens % (k + 1):
            raise LeftOut(
                f"{cell.batch_tokens} tokens are not a whole number of streams of k + 1 = {k + 1} rows (--k {k})."
            )
        return k, cell.batch_tokens // (k + 1)
    if k is None and streams is not None:
        if cell.batch_tokens % streams:
            raise LeftOut(f"{cell.batch_tokens} tokens do not divide by --concurrency {streams}.")
        k = cell.batch_tokens // streams - 1
        if k > MAX_K:
            raise LeftOut(f"{cell.batch_tokens} tokens of {streams} streams would be k = {k}, more than {MAX_K}")
        return k, streams
    if k is not None and streams is not None and streams * (k + 1) != cell.batch_tokens:
        raise LeftOut(
            f"{cell.batch_tokens} tokens are not {streams} streams x (k + 1 = {k + 1}); pass only one of --k and "
            "--concurrency."
        )
    return k, streams


def receipt_id(found: Found, what: str, taken: set[str]) -> str:
    """A receipt's name: the file's name, the start of its digest, and `what`; a taken one gets a counter.

    Runs saved under one name in different folders, or imported on different days, differ in their digest, so their
    tables can be fitted together; the same file twice cannot.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", found.where.replace("\\", "/").rsplit("/", 1)[-1])[:80]
    base = "-".join(part for part in (stem, found.sha256[:8], what) if part)
    identity, copy = base, 1
    while identity in taken:
        copy += 1
        identity = f"{base}-{copy}"
    taken.add(identity)
    return identity
