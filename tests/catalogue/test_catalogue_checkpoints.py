"""Checkpoints against published sizes: bytes of an expert, total and active parameters."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from twin.lane.catalogue import catalogue_roots, load_entry
from twin.lane.checkpoint import Checkpoint

_TABLE = Path(__file__).parent / "data" / "models.csv"
_ROWS = list(csv.DictReader(_TABLE.read_text(encoding="utf-8").splitlines()))


def _load(name: str) -> Checkpoint:
    found = load_entry("checkpoints", name, catalogue_roots())
    assert isinstance(found, Checkpoint)
    return found


def _parameters(checkpoint: Checkpoint, row: dict[str, Any]) -> tuple[float, float, float]:
    """Routed, dense and head parameters of a checkpoint, from its bytes and the bits a weight takes."""
    routed = checkpoint.routed_bytes * 8 / float(row["expert_bits"])
    dense = checkpoint.dense_bytes.value * 8 / float(row["dense_bits"])
    return routed, dense, checkpoint.head_bytes.value * 8 / float(row["head_bits"])


@pytest.mark.parametrize("row", _ROWS, ids=[r["checkpoint"] for r in _ROWS])
def test_dimensions_are_the_published_ones(row: dict[str, Any]) -> None:
    checkpoint = _load(row["checkpoint"])
    for key in ("layers", "moe_layers", "hidden", "experts", "top_k"):
        assert getattr(checkpoint, key).value == int(row[key]), key


@pytest.mark.parametrize("row", _ROWS, ids=[r["checkpoint"] for r in _ROWS])
def test_expert_bytes_are_three_matrices_at_the_stated_precision(row: dict[str, Any]) -> None:
    stored = 3 * int(row["hidden"]) * int(row["expert_intermediate"]) * float(row["expert_bits"]) / 8
    # 1.5 %: block scales and the rounding of published bytes an expert
    assert _load(row["checkpoint"]).expert_bytes.value == pytest.approx(stored, rel=0.015)


@pytest.mark.parametrize("row", _ROWS, ids=[r["checkpoint"] for r in _ROWS])
def test_parameters_add_up_to_the_published_total(row: dict[str, Any]) -> None:
    """Routed, dense, embedding and head, each from its bytes: within 3 % (totals are published rounded)."""
    checkpoint = _load(row["checkpoint"])
    routed, dense, head = _parameters(checkpoint, row)
    assert (routed + dense + 2 * head) / 1e9 == pytest.approx(float(row["total_b"]), rel=0.03)
    assert checkpoint.total_parameters.value / 1e9 == pytest.approx(float(row["total_b"]), rel=0.001)


@pytest.mark.parametrize("row", _ROWS, ids=[r["checkpoint"] for r in _ROWS])
def test_active_parameters_are_top_k_experts_dense_weights_and_head(row: dict[str, Any]) -> None:
    """Within 12 %: makers count head, shared experts and rounding differently (5.1 B is 5.0 to 5.7 B for gpt-oss)."""
    checkpoint = _load(row["checkpoint"])
    routed, dense, head = _parameters(checkpoint, row)
    active = routed * checkpoint.top_k.value / checkpoint.experts.value + dense + head
    assert active / 1e9 == pytest.approx(float(row["active_b"]), rel=0.12)
    assert checkpoint.active_parameters.value / 1e9 == pytest.approx(float(row["active_b"]), rel=0.001)


@pytest.mark.parametrize("row", _ROWS, ids=[r["checkpoint"] for r in _ROWS])
def test_what_was_recalled_says_so(row: dict[str, Any]) -> None:
    if row["provenance"] == "recalled":
        assert _load(row["checkpoint"]).experts.kind == "assumed"
