"""Cells with what a file cannot say filled in, as receipts.

A file never knows the lane or the class of traffic, and often not k, the verification rule, the context or the number
of streams. Those come from `Fill`; a missing one is a refusal that names its flag, never a default. One run gives
several rows about the same seconds; the most direct one is for fitting, the others are kept with the reason why they
do not count twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import ValidationError

from twin.errors import IngestError
from twin.fitting.receipts import Receipt, Use
from twin.ingest.meaning import PREFIX_HIT_SHARE, live_streams, settle
from twin.ingest.model import Cell, Found, clean

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


#: largest draft length a receipt can carry
MAX_K = 64
TG_IS = ("per-stream", "aggregate")
ACCEPT_IS = ("length", "rate")


def receipts_of(found: Iterable[Found], fill: Fill) -> list[Receipt]:
    """Receipts of all cells, ids unique over all files. Raises IngestError listing every flag that is missing."""
    if fill.verification is not None and fill.verification not in get_args(Verification):
        raise IngestError(f"--verification {fill.verification!r}: expected one of {', '.join(get_args(Verification))}.")
    for flag, value, valid in (("--tg-is", fill.tg_is, TG_IS), ("--accept-is", fill.accept_is, ACCEPT_IS)):
        if value is not None and value not in valid:
            raise IngestError(f"{flag} {value!r}: expected {' or '.join(valid)}.")
    receipts: list[Receipt] = []
    taken: set[str] = set()
    for one in found:
        left_out: list[str] = []
        for number, cell in enumerate(one.cells, start=1):
            try:
                receipts += _receipts(one, cell, number, fill, taken)
            except ArithmeticError as error:
                raise IngestError(f"{one.where}, {cell.label}: its numbers give no receipt ({error}).") from None
            except _LeftOut as reason:
                left_out.append(f"{cell.label}: {reason}")
        if left_out and len(left_out) == len(one.cells):
            raise IngestError(f"{one.where}: no row fits; {left_out[0]}")
        one.notes += [f"left out {text}" for text in left_out]
    return receipts


class _LeftOut(Exception):
    """A row that does not fit the flags while others of its file may."""


def _clear(cell: Cell, fill: Fill, where: str) -> None:
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


def _receipts(found: Found, cell: Cell, number: int, fill: Fill, taken: set[str]) -> list[Receipt]:
    _clear(cell, fill, f"{found.where}, {cell.label}")
    rows = _rows(cell)
    if not rows:
        return []
    prefill_only = all(row[0] in ("ttft", "prefill_tok_s") for row in rows)
    common = _common(found, cell, fill, prefill_only)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", found.where.replace("\\", "/").rsplit("/", 1)[-1])[:80]
    notes = clean("; ".join([*cell.notes, *(f.code for f in cell.flags)]))[:2000]
    receipts, primary = [], ""
    for quantity, stage, value, unit, definition, use, reason in rows:
        # Several files of one name in different folders may be imported together, so a taken id gets a counter.
        base = f"{stem}-{number}-{quantity}" + (f"-{stage}" if stage else "")
        identity, copy = base, 1
        while identity in taken:
            copy += 1
            identity = f"{base}-{copy}"
        if stage and not reason and (common["k"] or 0) != 0:
            reason = "with speculation the draft pass's kernels are in this class too"
        if stage and reason:
            use = "exclude"
        if cell.exclude and use != "exclude":
            use, reason = "exclude", cell.exclude
        if reason == _SAME_RUN:
            reason = f"same run as {primary}; counted once" if primary else ""
            use = use if primary else "fit"
        values: dict[str, object] = dict(
            common,
            id=identity,
            quantity=quantity,
            stage=stage,
            value=value,
            unit=unit,
            definition=definition,
            use=use,
            reason=reason,
            notes=notes,
        )
        if cell.noise:
            values["noise"] = min(2.0, max(0.001, cell.noise))
        try:
            receipt = Receipt(**values)  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors()[0]
            raise IngestError(
                f"{found.where}, {cell.label}: the value of {'.'.join(map(str, first['loc']))} cannot be a receipt: "
                f"{first['msg']} (got {str(first.get('input'))[:60]!r})."
            ) from None
        if quantity in _DIRECT and use == "fit" and cell.doubt:
            receipt = receipt.model_copy(update={"use": "exclude", "reason": cell.doubt})
        primary = primary or (identity if quantity in _DIRECT and receipt.use == "fit" else "")
        taken.add(identity)
        receipts.append(receipt)
    return receipts


_SAME_RUN = "same run"
#: kernel class of a trace -> mechanism of the step model that it is compared with
STAGES = {
    "attention": "attention",
    "experts": "experts",
    "dense": "dense",
    "all_reduce": "all_reduce_exposed",
    "sampling": "sampling",
    "other": "other",
}
_STAGE_DOUBT = {
    "all_reduce": "a collective's kernel time includes waiting for the other ranks",
    "sampling": "kernel names do not separate sampling from other small reductions",
    "other": "kernels whose names say nothing",
}
_DIRECT = ("step_time", "tok_s_per_stream", "tok_s_aggregate")
_Row = tuple[str, str, float, str, str, Use, str]


def _rows(cell: Cell) -> list[_Row]:
    """quantity, stage, value, unit, definition, use, reason; the first direct one is the row for fitting."""
    rows: list[_Row] = []
    if cell.step_s:
        rows.append(("step_time", "", cell.step_s * 1e3, "ms", cell.step_definition, "fit", ""))
    if cell.tok_s_per_stream:
        rows.append(
            ("tok_s_per_stream", "", cell.tok_s_per_stream, "tok/s", cell.per_stream_definition, "exclude", _SAME_RUN)
        )
    if cell.tok_s_aggregate:
        rows.append(
            ("tok_s_aggregate", "", cell.tok_s_aggregate, "tok/s", cell.aggregate_definition, "exclude", _SAME_RUN)
        )
    if cell.tokens_per_step and cell.acceptance_source:
        rows.append(("tokens_per_step", "", cell.tokens_per_step, "tokens", "", *_acceptance_use(cell)))
    cold = _prefill_use(cell)
    if cell.ttft_s:
        rows.append(("ttft", "", cell.ttft_s * 1e3, "ms", "", *cold))
    if cell.prefill_tok_s:
        rows.append(("prefill_tok_s", "", cell.prefill_tok_s, "tok/s", "", *cold))
    rows += [
        ("stage_time", STAGES[name], seconds * 1e3, "ms", "pass_time", "fit", _STAGE_DOUBT.get(name, ""))
        for name, seconds in cell.stages_s.items()
        if seconds > 0
    ]
    return rows


def _acceptance_use(cell: Cell) -> tuple[Use, str]:
    if cell.acceptance_source == "server_average":
        return "exclude", "average of the server since its start, not of this run"
    if cell.acceptance_source == "itl_over_tpot":
        return "exclude", "derived from ITL / TPOT of the same run"
    return "fit", ""


def _prefill_use(cell: Cell) -> tuple[Use, str]:
    if cell.prefix_hit_share is not None and cell.prefix_hit_share > PREFIX_HIT_SHARE:
        return "exclude", "part of the prompt came from the prefix cache"
    if (live_streams(cell) or 1) > 1:
        return "exclude", "with several requests in flight this holds queueing and the others' prefill"
    return "fit", ""


def _common(found: Found, cell: Cell, fill: Fill, prefill_only: bool) -> dict[str, object]:
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
            raise _LeftOut(
                f"{cell.batch_tokens} tokens are not a whole number of streams of k + 1 = {k + 1} rows (--k {k})."
            )
        return k, cell.batch_tokens // (k + 1)
    if k is None and streams is not None:
        if cell.batch_tokens % streams:
            raise _LeftOut(f"{cell.batch_tokens} tokens do not divide by --concurrency {streams}.")
        k = cell.batch_tokens // streams - 1
        if k > MAX_K:
            raise _LeftOut(f"{cell.batch_tokens} tokens of {streams} streams would be k = {k}, more than {MAX_K}")
        return k, streams
    if k is not None and streams is not None and streams * (k + 1) != cell.batch_tokens:
        raise _LeftOut(
            f"{cell.batch_tokens} tokens are not {streams} streams x (k + 1 = {k + 1}); pass only one of --k and "
            "--concurrency."
        )
    return k, streams
