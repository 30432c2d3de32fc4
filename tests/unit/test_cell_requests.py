"""From what a person asks to the cells to predict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.acceptance.policy import parse_schedule
from twin.errors import PolicyError
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.planning.predict import CellRequest
from twin.planning.requests import MAX_K, cell_requests, parse_concurrency

SIDECAR, TP4 = (load_lane(name, catalogue_roots()) for name in ("sidecar", "tp4"))


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("1", [1]), ("1,4,8,16", [1, 4, 8, 16]), ("1..4", [1, 2, 3, 4]), (" 1 .. 3 , 8 ", [1, 2, 3, 8]), ("4,1,4", [4, 1]),
        ("7..7", [7]), ("1..32", list(range(1, 33))),
    ],
)  # fmt: skip
def test_live_streams_are_lists_and_ranges(text: str, streams: list[int]) -> None:
    assert parse_concurrency(text) == streams


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "at least 1 live stream"), ("0..4", "at least 1 live stream"), ("-1", "not a whole number"), ("1.5", "not a whole number"),
        ("", "not a whole number"), ("1,,2", "not a whole number"), ("8..1", "runs backwards; write 1..8"), ("all", "not a whole number"),
        ("1..", "not a whole number"), ("99999", "at most 65536 streams"), ("1..60000", "at most"), ("1;2", "not a whole number"),
    ],
)  # fmt: skip
def test_streams_that_make_no_sense_are_refused(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match="--concurrency") as refused:
        parse_concurrency(text)
    assert says in str(refused.value)


@given(st.text(max_size=20))
def test_any_text_of_streams_is_read_or_refused(text: str) -> None:
    try:
        found = parse_concurrency(text)
    except PolicyError:
        return
    assert found and len(set(found)) == len(found) and min(found) >= 1


def ask(lane: object = SIDECAR, **asked: object) -> list[CellRequest]:
    given_: dict[str, object] = {
        "k": None,
        "schedule": None,
        "concurrency": [1],
        "verification": None,
        "context_tokens": 2048,
    }
    return cell_requests(lane, **(given_ | asked))  # type: ignore[arg-type]


def test_a_lanes_own_policy_is_the_default() -> None:
    cells = ask(concurrency=[1, 4, 5, 8, 9, 32])
    assert [(c.concurrency, c.k) for c in cells] == [(1, 5), (4, 5), (5, 3), (8, 3), (9, 3), (32, 3)]
    assert {c.verification for c in cells} == {"token"}
    assert [(c.k, c.verification) for c in ask(TP4, concurrency=[1, 64])] == [(7, "block"), (7, "block")]


def test_what_is_asked_goes_before_the_policy() -> None:
    assert [c.k for c in ask(k=0, concurrency=[1, 64])] == [0, 0]
    schedule = parse_schedule("1-2:9, 3-64:0")
    assert [c.k for c in ask(schedule=schedule, concurrency=[2, 3])] == [9, 0]
    assert ask(verification="block")[0].verification == "block"
    assert ask(cached_tokens=5)[0].cached_tokens == 5


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"k": 5, "schedule": parse_schedule("1-4:5")}, "both say how long drafts are"),
        ({"k": -1}, "k = -1: a draft has 0 (plain decoding) to 64"),
        ({"k": MAX_K + 1}, "k = 65"),
        ({"context_tokens": 0}, "expected 1 to 16000000 tokens"),
        ({"context_tokens": 10**9}, "expected 1 to 16000000 tokens"),
        ({"concurrency": [0]}, "expected 1 to 65536 live streams"),
        ({"concurrency": [33]}, "covers 1 to 32 streams, asked for 33"),
    ],
)
def test_impossible_questions_are_refused(asked: dict[str, object], says: str) -> None:
    with pytest.raises(PolicyError) as refused:
        ask(**asked)
    assert says in str(refused.value)
