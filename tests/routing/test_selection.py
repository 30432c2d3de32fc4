"""Which family the shipped measurements prefer, and how far the laws part where nobody measured."""

from __future__ import annotations

import numpy as np
import pytest

from twin.errors import IngestError, TrafficError
from twin.routing.batch import RoutingShape
from twin.routing.evidence import UnionRow, measured_series, read_union, shipped_union
from twin.routing.families import FAMILIES, fit_parameter
from twin.routing.scoring import by_source, score_rows
from twin.routing.selection import DEFAULT_FAMILY, Curve, Extrapolation, score, select
from twin.routing.table import UnionTable, find_curve

V41 = RoutingShape(40, 384, 6)


@pytest.fixture(scope="module")
def rows() -> list[UnionRow]:
    return read_union(shipped_union())


@pytest.fixture(scope="module")
def v41(rows: list[UnionRow]) -> Extrapolation:
    return Extrapolation(Curve.of(measured_series(rows)["DeepSeek-V4.1-Flash", "ALL"]))


def test_the_default_is_the_best_by_cross_validation(rows: list[UnionRow]) -> None:
    errors = select(rows)
    assert next(iter(errors)) == DEFAULT_FAMILY
    assert errors[DEFAULT_FAMILY] < 0.01 and errors["stretched"] < 0.012
    assert errors["beta_bernoulli"] > 3 * errors["stretched"]


@pytest.mark.parametrize("name", [DEFAULT_FAMILY, "stretched"])
def test_the_chosen_laws_pass_the_six_points(v41: Extrapolation, name: str) -> None:
    # J-M-Recipes unique_experts_vs_k.json, class ALL: 6.0, 10.1, 13.65, 16.83, 22.45, 27.38 at 1, 2, 3, 4, 6, 8 tokens.
    law = v41.scored[name].family
    measured = {1: 6.0, 2: 10.1, 3: 13.65, 4: 16.83, 6: 22.45, 8: 27.38}
    worst = max(abs(law.mean(m) / u - 1) for m, u in measured.items())
    # One exponent leaves 1.1 % (at 8 tokens), the default 0.6 %.
    assert worst < (0.01 if name == DEFAULT_FAMILY else 0.0115)


def test_qwen36_code_with_its_own_exponent(rows: list[UnionRow]) -> None:
    curve = Curve.of(measured_series(rows)["Qwen3.6-35B-A3B", "code"])
    law = fit_parameter(FAMILIES["stretched"], 256, 8, curve.tokens, curve.unique, np.full(curve.tokens.size, 0.01))
    for tokens, measured in ((1, 8.0), (4, 22.1), (8, 35.9), (16, 56.3)):
        assert law.mean(tokens) == pytest.approx(measured, rel=0.02)


def test_inside_the_measured_range_the_answer_is_the_measurement(v41: Extrapolation) -> None:
    for tokens, measured in ((2, 10.1), (6, 22.45), (8, 27.38)):
        spread = v41.at(tokens)
        assert spread.chosen == pytest.approx(measured, rel=1e-6)
        assert spread.high / spread.low < 1.03
        assert all(value == pytest.approx(measured, rel=1e-6) for value in spread.families.values())


def test_at_64_tokens_the_interval_spans_a_factor_of_two(v41: Extrapolation) -> None:
    spread = v41.at(64)
    assert spread.families["stretched"] / spread.families["beta_bernoulli"] > 1.8
    assert spread.high / spread.low > 2.0
    assert spread.low < spread.chosen < spread.high
    widths = [v41.at(m).high / v41.at(m).low for m in (8, 16, 32, 64, 128)]
    assert widths == sorted(widths)


def test_one_token_is_exact(v41: Extrapolation) -> None:
    spread = v41.at(1)
    assert spread.low == spread.chosen == spread.high == pytest.approx(6.0)


def test_every_row_of_the_table_is_scored(rows: list[UnionRow], capsys: pytest.CaptureFixture[str]) -> None:
    scores = score_rows(rows)
    excluded = [r for r in rows if r.kind == "excluded"]
    assert len(rows) == 227 and len(scores) + len(excluded) == 227
    assert all(r.reason for r in excluded)
    lines = by_source(scores)
    with capsys.disabled():
        for s in lines:
            errors = f"{100 * s.median_error:5.1f} {100 * s.largest_error:6.1f} %"
            print(f"\n{s.source[:78]:78s} {s.kind:8s} {s.rows:3d} {errors}", end="")
        print()
    unions = [s for s in scores if s.row.kind in ("stream", "layer", "streams", "shuffled", "computed")]
    v41 = [s for s in unions if s.row.model == "DeepSeek-V4.1-Flash"]
    assert np.median([abs(s.error) for s in unions]) < 0.01
    # 22.6 experts at 6 tokens, layers from 18.4 to 28.6 and five classes: 3 %; 150 at 128 tokens (inferred): 6 %.
    assert max(abs(s.error) for s in v41 if (s.row.tokens or 0) <= 8) < 0.03
    assert max(abs(s.error) for s in v41) < 0.06
    lru = [s for s in scores if s.row.kind == "lru" and "36 topics" in s.row.workload]
    assert max(abs(s.predicted - s.measured) for s in lru) < 0.025  # in points of hit rate, 25 to 200 slots of 384
    static = [s for s in scores if s.row.kind == "static" and "36 topics" in s.row.workload]
    assert max(abs(s.predicted - s.measured) for s in static) < 0.025


def test_a_curve_is_found_by_checkpoint_and_workload(rows: list[UnionRow]) -> None:
    found = find_curve(rows, "deepseek-v4.1-flash", V41, "prose")
    assert found is not None and found[0].unique[-1] == 26.97
    assert find_curve(rows, "some-other-model", V41, None) is None
    assert find_curve(rows, "deepseek-v4.1-flash", RoutingShape(40, 128, 6), None) is None
    with pytest.raises(TrafficError, match="prose"):
        find_curve(rows, "deepseek-v4.1-flash", V41, "proze")


def test_table_of_streams(rows: list[UnionRow]) -> None:
    found = find_curve(rows, "deepseek-v4.1-flash", V41, None)
    assert found is not None
    cells = {(c.streams, c.tokens): c for c in UnionTable(V41, found[0]).cells((1, 6, 64), (1, 4, 16))}
    assert cells[4, 1].unique == pytest.approx(23.5, rel=0.015)  # about 2 % shared by four streams
    assert cells[1, 6].layer_low == pytest.approx(18.2, rel=0.03) and cells[1, 6].layer_high == pytest.approx(
        29.5, rel=0.03
    )
    for cell in cells.values():
        assert cell.low <= cell.unique <= cell.high <= 384
        assert cell.unique <= cell.uniform * 1.001
    shared = UnionTable(V41, found[0], diversity=0.0).cells((6,), (8,))[0]
    apart = UnionTable(V41, found[0], diversity=1.0).cells((6,), (8,))[0]
    assert shared.unique < 0.5 * apart.unique


def test_an_unmeasured_router_gets_a_wide_interval() -> None:
    cell = UnionTable(RoutingShape(40, 256, 8), None).cells((8,), (1,))[0]
    assert cell.high / cell.low > 1.5
    known = UnionTable(RoutingShape(40, 256, 8), None, beta=0.746).cells((8,), (1,))[0]
    assert known.high / known.low < 1.1 and known.unique == pytest.approx(35.9, rel=0.02)


def test_a_broken_table_names_the_place(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    bad = tmp_path / "union.csv"
    bad.write_text("id,source,model,kind,unique\na,s,m,stream,many\n")
    with pytest.raises(IngestError, match="line 2, column 'unique'"):
        read_union(bad)
    bad.write_text("id,source,model,kind\na,s,m,strange\n")
    with pytest.raises(IngestError, match="kind"):
        read_union(bad)
    with pytest.raises(IngestError, match="cannot be read"):
        read_union(tmp_path / "none.csv")


def test_a_short_curve_is_scored_too() -> None:
    one = Curve(64, 4, np.asarray([2.0]), np.asarray([7.0]))
    assert score(FAMILIES["stretched"], one).worst_fit < 1e-6
