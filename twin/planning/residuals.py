"""What a lane's calibration says of receipts: measured, predicted with interval, seen by the fit or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from twin.errors import ReceiptError
from twin.fitting.calibration import find_calibration, load_calibration
from twin.fitting.cells import ReceiptCell
from twin.fitting.load import resolve_receipts
from twin.fitting.receipts import Receipt
from twin.fitting.score import score
from twin.lane.lane import Lane
from twin.step.coefficients import coefficients


@dataclass(frozen=True)
class ResidualRow:
    """One receipt against the model, in the receipt's unit; `error` is predicted over measured, less one.

    A row with `in_fit` was used to fit the calibration: its error is a residual and no test of the model.
    """

    id: str
    source: str
    lane: str
    traffic: str
    k: int
    verification: str
    concurrency: int
    context_tokens: int
    quantity: str
    unit: str
    measured: float
    predicted: float
    p05: float
    p95: float
    error: float
    covered: bool
    in_fit: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def residuals(receipts: Sequence[Receipt], roots: Sequence[Path], *, lane: Lane | None = None) -> list[ResidualRow]:
    """Every receipt of one lane predicted; ratios between lanes and excluded rows are left out.

    `lane` replaces the catalogue's lane of that name, to hold receipts against a what-if. Raises ReceiptError.
    """
    wanted = [r for r in receipts if r.use != "exclude" and not r.quantity.endswith("_ratio")]
    cells = resolve_receipts(wanted, roots)
    if lane is not None:
        cells = [replace(cell, lane=lane) if cell.lane.name == lane.name else cell for cell in cells]
    groups: dict[str, list[ReceiptCell]] = {}
    for cell in cells:
        groups.setdefault(cell.lane.name, []).append(cell)
    return [row for group in groups.values() for row in _of_lane(group, roots)]


def _of_lane(cells: list[ReceiptCell], roots: Sequence[Path]) -> list[ResidualRow]:
    lane = cells[0].lane
    name = lane.calibration or lane.name
    name = name if find_calibration(name, roots) is not None else "priors"
    calibration, _ = load_calibration(name, lane.name, coefficients(lane), roots)
    seen = set(calibration.receipt_ids)
    rows = []
    for one in score(cells, calibration):
        r = one.cell.receipt
        if not one.predicted > 0:
            raise ReceiptError(f"receipt {r.id!r}: the model has no positive value for {r.quantity} {r.stage}.")
        rows.append(
            ResidualRow(
                id=r.id,
                source=r.source,
                lane=r.lane,
                traffic=r.traffic,
                k=r.k,
                verification=r.verification,
                concurrency=r.concurrency,
                context_tokens=r.context_tokens,
                quantity=f"{r.quantity} {r.stage}".strip(),
                unit=r.unit,
                measured=r.value,
                predicted=one.predicted,
                p05=one.p05,
                p95=one.p95,
                error=one.relative_error,
                covered=one.covered,
                in_fit=r.id in seen,
            )
        )
    return rows
