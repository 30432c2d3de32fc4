"""Receipts from files to resolved cells: lanes and traffic classes by name, what does not resolve said by receipt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from twin.acceptance.traffic import load_traffic
from twin.errors import ReceiptError, TwinError
from twin.fitting.cells import ReceiptCell, resolve_cell
from twin.fitting.receipts import Receipt, read_receipts
from twin.lane.catalogue import load_lane


def receipt_files(roots: Sequence[Path]) -> list[Path]:
    """Every shipped receipt table, in a stable order; a user's root adds its own."""
    return [path for root in roots for path in sorted((root / "calibration" / "receipts").rglob("*.csv"))]


def read_all(paths: Iterable[Path]) -> list[Receipt]:
    """Receipts of several files; an id may appear once over all of them."""
    receipts: list[Receipt] = []
    seen: dict[str, Path] = {}
    for path in paths:
        for receipt in read_receipts(path):
            if receipt.id in seen:
                raise ReceiptError(f"{path}: the id {receipt.id!r} was already used in {seen[receipt.id]}.")
            seen[receipt.id] = path
            receipts.append(receipt)
    return receipts


def resolve_receipts(receipts: Iterable[Receipt], roots: Sequence[Path]) -> list[ReceiptCell]:
    """Receipts tied to their lanes and classes. Raises ReceiptError naming the receipt whose lane or class is unknown."""
    cells = []
    for receipt in receipts:
        try:
            versus = load_lane(receipt.versus_lane, roots) if receipt.versus_lane else None
            cells.append(
                resolve_cell(receipt, load_lane(receipt.lane, roots), load_traffic(receipt.traffic, roots), versus)
            )
        except ReceiptError:
            raise
        except TwinError as error:
            raise ReceiptError(f"receipt {receipt.id!r}: {error}") from None
    return cells
