"""The fast engine on graphs small enough to do by hand: times, who is blamed for a wait, and how few clocks it needs."""

from __future__ import annotations

import numpy as np
import pytest

from twin.step.fast import BLOCK, _schedule, step_breakdown, step_times
from twin.step.graph import MECHANISMS, Op, StepGraph

A, B, C = list(MECHANISMS)[:3]


def graph(*ops: tuple[str, str, tuple[int, ...]]) -> StepGraph:
    """Ops as (resource, mechanism, predecessors); the cost of op i is "i"."""
    return StepGraph(tuple(Op(str(i), r, str(i), m, after) for i, (r, m, after) in enumerate(ops)), "gpu")


def times(*durations: float) -> dict[str, np.ndarray]:
    return {str(i): np.array([d, 2 * d]) for i, d in enumerate(durations)}


def parts(found: dict[str, np.ndarray]) -> dict[str, float]:
    """The first sample's parts that are not zero; the second is twice the first."""
    assert all((part[1] == 2 * part[0]).all() for part in found.values())
    return {name: float(part[0]) for name, part in found.items() if part[0]}


def test_a_wait_belongs_to_what_was_waited_for() -> None:
    # gpu: a 0-2, c 2-3, d 7-8; link: b 2-7. The gpu waits 3 to 7 for the link.
    found = graph(("gpu", A, ()), ("link", B, (0,)), ("gpu", A, (0,)), ("gpu", A, (1, 2)))
    whole = step_breakdown(found, times(2, 5, 1, 1))
    assert whole.step_s.tolist() == [8, 16] == step_times(found, times(2, 5, 1, 1)).tolist()
    assert parts(whole.mechanism_s) == {A: 4, B: 4}


def test_two_that_were_waited_for_share_in_the_order_of_their_ends() -> None:
    # link ends at 3, disk at 7; the gpu was free at 1: 2 of the wait are the link's, the next 4 the disk's.
    for first, second in ((3, 7), (7, 3)):
        found = graph(("link", B, ()), ("disk", C, ()), ("gpu", A, ()), ("gpu", A, (0, 1)))
        whole = step_breakdown(found, times(first, second, 1, 1))
        early, late = (B, C) if first < second else (C, B)
        assert whole.step_s[0] == 8
        assert parts(whole.mechanism_s) == {A: 2, early: 2, late: 4}


def test_work_that_ends_after_the_primary_resource_is_waited_for() -> None:
    found = graph(("gpu", A, ()), ("link", B, (0,)))
    whole = step_breakdown(found, times(2, 5))
    assert whole.step_s[0] == 7
    assert parts(whole.mechanism_s) == {A: 2, B: 5}


def test_what_was_over_in_time_is_not_blamed() -> None:
    found = graph(("link", B, ()), ("gpu", A, ()), ("gpu", A, (0,)))
    assert parts(step_breakdown(found, times(1, 4, 1)).mechanism_s) == {A: 5}


def test_a_resource_serves_in_the_order_of_issue() -> None:
    # b could start at 0 but the link serves a first, which waits for the gpu.
    found = graph(("gpu", A, ()), ("link", B, (0,)), ("link", C, ()))
    assert step_times(found, times(2, 3, 4)).tolist() == [9, 18]
    assert parts(step_breakdown(found, times(2, 3, 4)).mechanism_s) == {A: 2, B: 3, C: 4}


@pytest.mark.parametrize(
    ("ops", "clocks"),
    [
        ([("gpu", A, ())], 1),
        ([("gpu", A, ())] * 5, 1),
        ([("gpu", A, ()), ("link", B, ())], 2),
        # a fork needs a second clock, what joins it writes into one that is free
        ([("gpu", A, ()), ("link", B, (0,)), ("gpu", A, (0,)), ("gpu", A, (1, 2))], 2),
        # after the join both of its clocks are free but one: two more in flight need no third
        ([("gpu", A, ()), ("link", B, ()), ("gpu", A, (1,)), ("link", B, (2,)), ("gpu", A, ())], 2),
        ([("gpu", A, ()), ("link", B, ()), ("disk", C, ()), ("gpu", A, (1, 2)), ("link", B, (3,)), ("disk", C, (3,))], 3),
    ],
)  # fmt: skip
def test_the_fewest_clocks(ops: list, clocks: int) -> None:
    schedule = _schedule(graph(*ops))
    assert schedule.clocks == clocks
    assert {move.out for move in schedule.moves} == set(range(clocks))
    assert len(schedule.rows) == len(ops)


def test_what_something_else_has_waited_for_is_not_waited_for_again() -> None:
    found = _schedule(graph(("gpu", A, ()), ("gpu", A, (0,)), ("link", B, (0, 1)), ("gpu", A, (0, 1, 2))))
    assert found.waits == ((), (0,), (1,), (2,))
    assert found.last == (3,) and len(found.ends) == 1


def test_the_step_ends_with_every_resource() -> None:
    found = _schedule(graph(("gpu", A, ()), ("link", B, ()), ("disk", C, ())))
    assert found.last == (0, 1, 2) and found.ends == (0, 1, 2)


def test_equal_costs_of_a_layer_are_one_row() -> None:
    ops = tuple(Op(f"{layer}{i}", "gpu", "x", A, (), layer) for layer in (0, 1) for i in range(2))
    found = StepGraph(ops, "gpu")
    assert [move.row for move in _schedule(found).moves] == [0, 0, 1, 1]
    assert step_times(found, {"x": np.array([[1.0, 2.0], [10.0, 20.0]])}).tolist() == [22, 44]


@pytest.mark.parametrize("samples", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 7])
def test_blocks_of_samples_cover_all_of_them_once(samples: int) -> None:
    found = graph(("gpu", A, ()), ("link", B, (0,)), ("gpu", A, (0,)), ("gpu", A, (1, 2)))
    durations = {str(i): np.arange(samples) * (i + 1.0) for i in range(4)}
    assert np.array_equal(step_times(found, durations), np.arange(samples) * (1.0 + 3.0 + 4.0))
    assert np.array_equal(step_times(found, durations), step_breakdown(found, durations).step_s)


def test_durations_are_not_written_to() -> None:
    found = graph(("gpu", A, ()), ("link", B, (0,)), ("gpu", A, (0, 1)))
    given = times(2, 5, 1)
    kept = {name: array.copy() for name, array in given.items()}
    step_times(found, given), step_breakdown(found, given)
    assert all(np.array_equal(given[name], kept[name]) for name in kept)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_join_of_three_reads_every_clock_before_it_writes_into_one(free: int) -> None:
    # Two of the three are asked again later, the third has the latest end and its clock is the one that is free.
    names = ("gpu", "link", "disk")
    later = [(names[i], A, (i,)) for i in range(3) if i != free]
    found = graph(*((name, A, ()) for name in names), ("net", A, (0, 1, 2)), *later)
    durations = times(*(50 if i == free else 1 + i for i in range(3)), 1, 1, 1)
    assert step_times(found, durations).tolist() == [51, 102]
    assert step_breakdown(found, durations).step_s.tolist() == [51, 102]


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_the_step_ends_when_the_last_resource_does(longest: int) -> None:
    found = graph(("gpu", A, ()), ("link", B, ()), ("disk", C, ()))
    durations = times(*(9 if i == longest else 1 for i in range(3)))
    assert step_times(found, durations).tolist() == [9, 18] == step_breakdown(found, durations).step_s.tolist()


def test_waits_of_microseconds_are_waits() -> None:
    found = graph(("gpu", A, ()), ("link", B, (0,)), ("gpu", A, (1,)))
    whole = step_breakdown(found, times(2e-6, 5e-6, 1e-6))
    assert whole.mechanism_s[B][0] == pytest.approx(5e-6) and whole.mechanism_s[A][0] == pytest.approx(3e-6)


def test_samples_are_the_last_axis_of_a_table_by_layers() -> None:
    table = np.arange(10.0).reshape(2, 5)
    ops = (Op("a", "gpu", "x", A, (), 1), Op("b", "gpu", "y", B, (0,), 1))
    found = StepGraph(ops, "gpu")
    # "y" has one row for all layers: an op of layer 1 takes it as it is.
    durations = {"x": table, "y": np.arange(5.0)}
    assert step_times(found, durations).tolist() == [5, 7, 9, 11, 13]
    assert step_breakdown(found, durations).step_s.tolist() == [5, 7, 9, 11, 13]
    alone = StepGraph(ops[:1], "gpu")
    assert step_times(alone, durations).tolist() == step_breakdown(alone, durations).step_s.tolist() == [5, 6, 7, 8, 9]
