"""Numbers of a table whose meaning the file leaves open: a token rate of one stream or of all, an acceptance as tokens per
step or as a share of the drafts. A flag decides, else what the value admits, else a refusal that names the flag.
"""

from __future__ import annotations

from twin.errors import IngestError
from twin.ingest.fill import Fill
from twin.ingest.meaning import live_streams, settle
from twin.ingest.model import Cell


def clear(cell: Cell, fill: Fill, where: str) -> None:
    """Give numbers with an open meaning theirs: rates by --tg-is unless one stream ran, acceptance by --accept-is."""
    if cell.unclear_tok_s is not None:
        streams = live_streams(cell) or fill.concurrency
        rate_is = fill.tg_is or cell.tg_hint
        if not rate_is and streams != 1:
            raise IngestError(
                f"{where}: the table does not say whether its token rate is of one stream or of all; pass --tg-is "
                "per-stream or --tg-is aggregate."
            )
        if rate_is == "aggregate":
            cell.tok_s_aggregate = cell.unclear_tok_s
        else:
            cell.tok_s_per_stream = cell.unclear_tok_s
        cell.unclear_tok_s = None
    if cell.unclear_accept is not None:
        if _accept_is(cell, fill, where) == "rate":
            cell.accept_rate = cell.unclear_accept / 100.0 if cell.unclear_accept > 1.0 else cell.unclear_accept
        else:
            cell.tokens_per_step, cell.acceptance_source = cell.unclear_accept, "run"
        cell.unclear_accept = None
    if cell.accept_rate is not None:
        k = cell.k if cell.k is not None else fill.k
        if k is None or cell.accept_rate > 1.0:
            reason = "needs the draft length, so pass --k" if cell.accept_rate <= 1.0 else "is more than 100 %"
            raise IngestError(f"{where}: an acceptance rate of {cell.accept_rate:.1%} {reason}.")
        cell.tokens_per_step, cell.acceptance_source = 1.0 + k * cell.accept_rate, "run"
        cell.notes.append(f"tokens per step = 1 + {k} x acceptance rate {cell.accept_rate:.3f}")
        cell.accept_rate = None
    if cell.tokens_per_step is not None and cell.tokens_per_step < 1.0:
        raise IngestError(
            f"{where}: {cell.tokens_per_step:g} tokens per step; with the bonus token it is at least 1 "
            "(--accept-is rate?)."
        )
    settle(cell)


def _accept_is(cell: Cell, fill: Fill, where: str) -> str:
    """What an acceptance column holds: as told, or as its value admits; below 1 no length, above k + 1 neither."""
    value, k = cell.unclear_accept or 0.0, cell.k if cell.k is not None else fill.k
    if fill.accept_is is not None:
        return fill.accept_is
    if value < 1.0:
        return "rate"
    if k is None or k == 0:
        raise IngestError(
            f"{where}: acceptance {value:g} may be tokens per step or a percentage of the drafted tokens; pass --k, or "
            "--accept-is length (with the bonus token) or --accept-is rate."
        )
    read_as = "length" if value <= k + 1 else "rate"
    meant = "tokens per step" if read_as == "length" else "a percentage of the drafts"
    cell.flag("acceptance-read-as", f"acceptance {value:g} at k = {k} read as {meant}; --accept-is says otherwise")
    return read_as
