"""Axes, designs, constraints, fronts: what people type and what comes of it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_support import design

from twin.errors import PolicyError
from twin.planning.front import Best, Front, parse_constraints
from twin.planning.grid import FIELDS, parse_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=0..3", ("0", "1", "2", "3")),
        ("placement.hot=240..384/48", ("240", "288", "336", "384")),
        ("streams=1,2,8", ("1", "2", "8")),
        ("streams=1,4..6,5", ("1", "4", "5", "6")),
        ("links.sidecar.latency=4 us,8 us", ("4 us", "8 us")),
        ("links.sidecar.latency=4..8/2 us".replace("/2 us", " us/2"), ("4 us", "6 us", "8 us")),
        ("placement.map_mismatch=0.5..1.5/0.5", ("0.5", "1", "1.5")),
        ("c=3", ("3",)),
    ],
)
def test_axes(text: str, values: tuple[str, ...]) -> None:
    axis = parse_axis(text)
    assert axis.values == values
    assert "." in axis.key or axis.key in FIELDS.values()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("k", "KEY=VALUES"), ("k=", "KEY=VALUES"), ("kk=1", "'k'"), ("k=3..1", "backwards"), ("k=0..9/0", "above 0"), ("k=1,,2", "empty"),
        ("k=-1", "whole number"), ("k=65", "0 to 64"), ("streams=0", "1 to"), ("streams=x", "whole"), ("verification=tokn", "token"),
        ("a.b=0..1e300", "at most"), ("a.b=1..nan", "whole|not a range|finite|empty"), ("a.b=1 us..2 ms", "different units"),
    ],
)  # fmt: skip
def test_a_wrong_axis_is_refused_with_a_reason(text: str, says: str) -> None:
    if text == "a.b=1..nan":  # no range at all: one text, which the catalogue will refuse
        assert parse_axis(text).values == ("1..nan",)
        return
    with pytest.raises(PolicyError, match=says):
        parse_axis(text)


@given(st.text(max_size=40))
def test_any_text_is_an_axis_or_a_refusal(text: str) -> None:
    try:
        axis = parse_axis(text)
    except PolicyError:
        return
    assert axis.values


def test_a_grid_has_every_combination_once() -> None:
    points = list(design("k=0..2", "streams=1,2", "placement.hot=300,310"))
    assert (
        len(points)
        == len(set(points))
        == len(design("k=0..2", "streams=1,2", "placement.hot=300,310"))
        == 2 * 3 * 2 * 2
    )
    changes = sum(a.overrides != b.overrides or a.lane != b.lane for a, b in itertools.pairwise(points))
    assert changes == 3  # neighbours share a lane object


@pytest.mark.parametrize("kind", ["random", "sobol"])
def test_designs_stay_inside_their_axes_and_repeat(kind: str) -> None:
    made = design("k=0..9", "streams=1..32", "placement.map_mismatch=0.5..2.0/0.5", "traffic=prose,code", **{kind: 16})
    points = list(made)
    assert len(points) == 32 == len(made) and points == list(made)
    assert all(0 <= p.k <= 9 and 1 <= p.streams <= 32 for p in points if p.k is not None)
    assert {p.traffic for p in points} == {"prose", "code"}
    assert {p.k for p in points if p.lane == "tp4"} >= ({0, 9} if kind == "sobol" else set())


def test_two_designs_or_one_axis_twice_are_refused() -> None:
    with pytest.raises(PolicyError, match="one of them"):
        design("k=0..1", random=2, sobol=2)
    with pytest.raises(PolicyError, match="twice"):
        design("streams=1", "c=2")
    with pytest.raises(PolicyError, match="at most"):
        design("k=0..64", "streams=1..60000", "context=1..60000")


def test_constraints() -> None:
    columns = ["k", "tok_s_per_stream", "lane"]
    row = {"k": 3, "tok_s_per_stream": 40.0, "lane": "tp4"}
    for text, kept in (("k<=3", True), ("tok_s_per_stream>40", False), ("k=3, lane=tp4", True), ("lane!=tp4", False)):
        assert all(c.kept_by(row) for c in parse_constraints([text], columns)) is kept
    for text, says in (
        ("tok_per_stream>1", "tok_s_per_stream"),
        ("k", "expected COLUMN"),
        ("k>a", "not a number"),
        ("__import__('os')", "expected"),
    ):
        with pytest.raises(PolicyError, match=says):
            parse_constraints([text], columns)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_the_front_is_what_nobody_beats(pairs: list[tuple[int, int]]) -> None:
    front, best = Front(["tok_s_aggregate", "step_ms"]), Best("step_ms")
    for speed, step in pairs:
        front.add({"tok_s_aggregate": speed, "step_ms": step})
        best.add({"step_ms": step})
    found = {(r["tok_s_aggregate"], r["step_ms"]) for r in front.rows}
    beaten = {p for p in pairs if any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in pairs)}
    assert found == set(pairs) - beaten
    assert best.row is not None and best.row["step_ms"] == min(s for _, s in pairs)
    shuffled = pairs[:]
    random.Random(0).shuffle(shuffled)
    other = Front(["tok_s_aggregate", "step_ms"])
    for speed, step in shuffled:
        other.add({"tok_s_aggregate": speed, "step_ms": step})
    assert other.rows == front.rows
