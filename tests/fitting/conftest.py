"""Receipts and roots shared by the tests of fitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from twin.fitting.cells import ReceiptCell
from twin.fitting.load import read_all, receipt_files, resolve_receipts
from twin.lane.catalogue import catalogue_roots


@pytest.fixture(scope="session")
def roots() -> tuple[Path, ...]:
    return catalogue_roots()


@pytest.fixture(scope="session")
def cells(roots: tuple[Path, ...]) -> list[ReceiptCell]:
    """Every shipped receipt that is not excluded."""
    return resolve_receipts([r for r in read_all(receipt_files(roots)) if r.use != "exclude"], roots)
