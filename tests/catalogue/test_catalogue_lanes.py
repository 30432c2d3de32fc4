"""Every lane of the catalogue loads and passes its checks; priors alone come near each lane's plain decoding."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from twin.acceptance.traffic import load_traffic, traffic_names
from twin.api import predict
from twin.lane.catalogue import catalogue_roots, load_lane, names
from twin.lane.check import check_catalogue

_ROOTS = catalogue_roots()
_TABLE = Path(__file__).parent / "data" / "plain_one_stream.csv"
_PLAIN = list(csv.DictReader(_TABLE.read_text(encoding="utf-8").splitlines()))


def test_no_errors_in_the_catalogue() -> None:
    assert [f"{f.where}: {f.message}" for f in check_catalogue(_ROOTS) if f.level == "error"] == []


@pytest.mark.parametrize("name", names("lanes", _ROOTS))
def test_lane_loads_and_its_traffic_exists(name: str) -> None:
    lane = load_lane(name, _ROOTS)
    assert lane.policy.traffic in traffic_names(_ROOTS)
    assert lane.policy.k == 0 or lane.checkpoint.draft is not None


@pytest.mark.parametrize("name", traffic_names(_ROOTS))
def test_more_drafts_never_accept_fewer_than_half_a_token_less(name: str) -> None:
    """Tokens per step of longer blocks may fall (block drafters are not nested), but not by more than half a token."""
    by_rule: dict[tuple[str, float], list[tuple[int, float]]] = {}
    for p in load_traffic(name, _ROOTS).profiles:
        by_rule.setdefault((p.verification, p.temperature), []).append((p.k, p.tokens_per_step))
    for cells in by_rule.values():
        ordered = [tokens for _, tokens in sorted(cells)]
        assert all(later > earlier - 0.5 for earlier, later in pairwise(ordered))


@pytest.mark.parametrize("row", _PLAIN, ids=[f"{r['lane']}-{r['context_tokens']}" for r in _PLAIN])
def test_priors_are_within_a_factor_of_the_measured_step(row: dict[str, Any]) -> None:
    """Plain decoding of one stream without any calibration: a sanity bound of a factor 1.6 either way, not a fit."""
    cell = predict(row["lane"], k=0, context_tokens=int(row["context_tokens"]), calibration="priors").cells[0]
    assert 1 / 1.6 < cell.step_ms.p50 / float(row["step_ms"]) < 1.6
