"""Cells with what a file cannot say filled in, as receipts.

A file never knows the lane or the class of traffic, and often not k, the verification rule, the context or the number
of streams. Those come from `Fill`; a missing one is a refusal that names its flag, never a default. One run gives
several rows about the same seconds; the most direct one is for fitting, the others are kept with the reason why they
do not count twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from twin.errors import IngestError
from twin.fitting.receipts import Receipt
from twin.ingest.clarify import clear
from twin.ingest.fill import Fill, LeftOut, common_columns, receipt_id
from twin.ingest.model import Cell, Found, clean
from twin.ingest.receipt_rows import DIRECT, SAME_RUN, receipt_rows
from twin.ingest.routing_receipts import ROUTING_FORMATS, routing_receipts


def receipts_of(found: Iterable[Found], fill: Fill) -> list[Receipt]:
    """Receipts of all cells, ids unique over all files. Raises IngestError listing every flag that is missing."""
    fill.check()
    receipts: list[Receipt] = []
    taken: set[str] = set()
    for one in found:
        if one.format in ROUTING_FORMATS:
            receipts += routing_receipts(one, fill, taken)
            continue
        left_out: list[str] = []
        for number, cell in enumerate(one.cells, start=1):
            try:
                receipts += _receipts(one, cell, number, fill, taken)
            except ArithmeticError as error:
                raise IngestError(f"{one.where}, {cell.label}: its numbers give no receipt ({error}).") from None
            except LeftOut as reason:
                left_out.append(f"{cell.label}: {reason}")
        if left_out and len(left_out) == len(one.cells):
            raise IngestError(f"{one.where}: no row fits; {left_out[0]}")
        one.notes += [f"left out {text}" for text in left_out]
    return receipts


def _receipts(found: Found, cell: Cell, number: int, fill: Fill, taken: set[str]) -> list[Receipt]:
    clear(cell, fill, f"{found.where}, {cell.label}")
    rows = receipt_rows(cell)
    if not rows:
        return []
    prefill_only = all(row[0] in ("ttft", "prefill_tok_s") for row in rows)
    common = common_columns(found, cell, fill, prefill_only)
    notes = clean("; ".join([*cell.notes, *(f.code for f in cell.flags)]))[:2000]
    receipts, primary = [], ""
    for quantity, stage, value, unit, definition, use, reason in rows:
        identity = receipt_id(found, f"{number}-{quantity}" + (f"-{stage}" if stage else ""), taken)
        if stage and not reason and (common["k"] or 0) != 0:
            reason = "with speculation the draft pass's kernels are in this class too"
        if stage and reason:
            use = "exclude"
        if cell.exclude and use != "exclude":
            use, reason = "exclude", cell.exclude
        if reason == SAME_RUN:
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
        if quantity in DIRECT and use == "fit" and cell.doubt:
            receipt = receipt.model_copy(update={"use": "exclude", "reason": cell.doubt})
        primary = primary or (identity if quantity in DIRECT and receipt.use == "fit" else "")
        receipts.append(receipt)
    return receipts
