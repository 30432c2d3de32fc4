"""Roots and strategies shared by the acceptance tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
ROOTS = (ROOT,)
TRAINED = 5

conditionals = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12).map(np.array)


def distributions(rows: int, size: int, alpha: float, seed: int) -> np.ndarray:
    """Random distributions, (rows, size)."""
    return np.random.default_rng(seed).dirichlet(np.full(size, alpha), rows)
