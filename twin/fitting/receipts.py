"""Receipts: measured cells of real runs, one quantity a row, as a typed CSV table.

A receipt names the lane, the traffic class, the decode policy and one measured quantity with its definition. A tok/s
receipt without acceptance constrains only the product of acceptance and step rate; one with `tokens_per_step` gives a
step time. `use` says whether a fit may see the row; rows a fit has seen are never shown as validation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from twin.errors import ReceiptError, nearest
from twin.lane.sourced import Strict

MAX_BYTES = 64 * 2**20
MAX_ROWS = 200_000

Quantity = Literal[
    "step_time",  # one verify step, wall clock between steps; unit ms
    "tok_s_per_stream",
    "tok_s_aggregate",
    "tokens_per_step",  # with the bonus token
    "ttft",  # unit ms
    "prefill_tok_s",
    "step_time_ratio",
    "tok_s_ratio",
    "stage_time",  # one named stage of a step, unit ms; `stage` says which
    "unique_experts",  # distinct experts a layer of `rows` consecutive tokens of each stream; unit experts
    "cold_share",  # share of decode routes outside the lane's hot set; unit share
]
Definition = Literal[
    "",
    "first_to_last_token",
    "wall_with_ttft",
    "fixed_window",
    "pass_time",
    "step_interval",
    "chunk_interval",
    "mean_tpot",
]
Use = Literal["fit", "validate", "exclude"]
#: what a trace or counts of routing measure: no time in them, so they say nothing of the range a fit was timed in
ROUTING_QUANTITIES: tuple[Quantity, ...] = ("unique_experts", "cold_share")


class Receipt(Strict):
    """One measured quantity of one cell of a run. Times are in ms in the file's `value`, as people write them.

    `tokens_per_step` carries the acceptance measured in the same run (bonus token included) or None; `workload` names
    the
    harness's own prompts (cells of one workload share their acceptance), `prompts` whether its streams were of one
    kind; `rows` the verified rows a stream when the engine caps the verified prefix, else None (then k + 1); `noise`
    is the relative
    standard deviation between repeats of the run. `versus_*` name the other side of a ratio (this over that).
    """

    id: str = Field(min_length=1, max_length=200)
    source: str
    date: str = ""
    lane: str
    checkpoint: str = ""
    engine: str = ""
    traffic: str
    workload: str = ""
    prompts: Literal["", "unrelated", "similar", "same"] = ""
    k: int = Field(ge=0, le=64)
    verification: Literal["token", "block", "greedy"] = "token"
    context_tokens: int = Field(ge=0, le=16_000_000)
    concurrency: int = Field(ge=1, le=65536)
    quantity: Quantity
    definition: Definition = ""
    stage: str = ""
    value: float = Field(gt=0)
    unit: Literal["ms", "tok/s", "tokens", "ratio", "experts", "share"]
    tokens_per_step: float | None = Field(default=None, ge=1, le=65)
    rows: int | None = Field(default=None, ge=1, le=65536)
    output_tokens: int | None = Field(default=None, ge=1)
    noise: float = Field(default=0.04, gt=0, le=2)
    versus_lane: str = ""
    versus_k: int | None = Field(default=None, ge=0, le=64)
    versus_verification: Literal["", "token", "block", "greedy"] = ""
    use: Use = "fit"
    reason: str = ""
    notes: str = ""


COLUMNS: tuple[str, ...] = tuple(Receipt.model_fields)
_INT = {"k", "versus_k", "context_tokens", "concurrency", "rows", "output_tokens"}
_FLOAT = {"value", "tokens_per_step", "noise"}
_UNIT_OF = {
    "step_time": "ms", "stage_time": "ms", "ttft": "ms", "tok_s_per_stream": "tok/s", "tok_s_aggregate": "tok/s",
    "prefill_tok_s": "tok/s", "tokens_per_step": "tokens", "step_time_ratio": "ratio", "tok_s_ratio": "ratio", "unique_experts": "experts",
    "cold_share": "share",
}  # fmt: skip


def read_receipts(path: Path) -> list[Receipt]:
    """Read one CSV file of receipts. Raises ReceiptError naming file, line and column."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReceiptError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; split it into one file a source.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ReceiptError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise ReceiptError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8 CSV.") from None
    return parse_receipts(text, where=str(path))


def parse_receipts(text: str, *, where: str = "receipts") -> list[Receipt]:
    """Parse CSV text with a header of COLUMNS (any order, optional ones may be left out)."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        header = list(reader.fieldnames or [])
        for name in header:
            if name not in COLUMNS:
                raise ReceiptError(f"{where}: unknown column {name!r}; {nearest(name or '', COLUMNS)}")
        missing = [n for n, f in Receipt.model_fields.items() if f.is_required() and n not in header]
        if missing:
            raise ReceiptError(
                f"{where}: the column {missing[0]!r} is missing; a receipt table has {', '.join(COLUMNS)}."
            )
        receipts: list[Receipt] = []
        seen: dict[str, int] = {}
        for number, row in enumerate(reader, start=2):
            if number > MAX_ROWS:
                raise ReceiptError(f"{where}: more than {MAX_ROWS} rows; split the table.")
            receipt = _row(row, f"{where}, line {number}")
            if receipt.id in seen:
                raise ReceiptError(
                    f"{where}, line {number}: the id {receipt.id!r} was used in line {seen[receipt.id]}."
                )
            seen[receipt.id] = number
            receipts.append(receipt)
    except csv.Error as error:
        raise ReceiptError(f"{where}: not a CSV table ({error}).") from None
    return receipts


def _row(row: dict[str, str | None], where: str) -> Receipt:
    values: dict[str, object] = {}
    if None in row:
        raise ReceiptError(f"{where}: more cells than columns; quote cells that hold a comma.")
    for name, cell in row.items():
        if cell is None:
            raise ReceiptError(f"{where}: fewer cells than columns; the line is cut off at {name!r}.")
        cell = cell.strip()
        if cell == "":
            continue
        try:
            values[name] = int(cell) if name in _INT else float(cell) if name in _FLOAT else cell
        except ValueError:
            raise ReceiptError(f"{where}, column {name!r}: {cell!r} is not a number.") from None
    try:
        receipt = Receipt(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        raise ReceiptError(
            f"{where}, column {'.'.join(map(str, first['loc']))!r}: {first['msg']} (got {first.get('input')!r})."
        ) from None
    if receipt.unit != _UNIT_OF[receipt.quantity]:
        raise ReceiptError(
            f"{where}: {receipt.quantity} is in {_UNIT_OF[receipt.quantity]}, got the unit {receipt.unit!r}."
        )
    if receipt.quantity.endswith("_ratio") and (not receipt.versus_lane or receipt.versus_k is None):
        raise ReceiptError(f"{where}: a ratio needs versus_lane and versus_k, the other side of it.")
    if receipt.use == "exclude" and not receipt.reason:
        raise ReceiptError(f"{where}: an excluded receipt needs a reason.")
    return receipt


def receipts_csv(receipts: Iterable[Receipt], columns: Sequence[str] = COLUMNS) -> str:
    """The receipts as CSV text, one stable order of columns, empty cells for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for receipt in receipts:
        cells = receipt.model_dump()
        writer.writerow(
            ["" if cells[c] is None else repr(cells[c]) if isinstance(cells[c], float) else cells[c] for c in columns]
        )
    return out.getvalue()
