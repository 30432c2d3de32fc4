"""The two engines are one truth: equal with ==, on any graph and on every shipped lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from step_support import LANES, batch_of, graphs, resolve, shipped

from twin.routing.batch import RoutingNoise
from twin.step.builders import build_step_graph
from twin.step.fast import step_breakdown, step_times
from twin.step.graph import MECHANISMS, Durations, Op, StepGraph
from twin.step.model import routing_shape
from twin.step.reference import simulate_step


def check(graph: StepGraph, durations: Durations) -> None:
    fast = step_times(graph, durations)
    whole = step_breakdown(graph, durations)
    assert np.array_equal(whole.step_s, fast)
    for sample in range(len(fast)):
        step_s, spans = simulate_step(graph, durations, sample)
        assert step_s == fast[sample]
        assert len(spans) == len(graph.ops)
    parts = sum(whole.mechanism_s[name] for name in MECHANISMS)
    assert np.allclose(parts, fast, rtol=1e-12, atol=0.0)
    assert all((part >= 0.0).all() for part in whole.mechanism_s.values())


@settings(max_examples=150)
@given(graphs())
def test_on_any_graph(drawn: tuple[StepGraph, dict[str, np.ndarray]]) -> None:
    check(*drawn)


@pytest.mark.parametrize("k", [0, 5, 9])
@pytest.mark.parametrize("name", LANES)
def test_on_every_shipped_lane(name: str, k: int) -> None:
    lane, values = shipped(name)
    noise = RoutingNoise.draw(3, routing_shape(lane).layers, 4)
    for streams in (1, 12):
        _, durations = resolve(lane, values, batch_of(k, streams), noise)
        check(build_step_graph(lane, k), durations)


@given(graphs())
def test_spans_keep_the_rules(drawn: tuple[StepGraph, dict[str, np.ndarray]]) -> None:
    graph, durations = drawn
    _, spans = simulate_step(graph, durations)
    free: dict[str, float] = {}
    for span in spans:
        assert span.start_s >= free.get(span.op.resource, 0.0)
        assert all(span.start_s >= spans[before].finish_s for before in span.op.after)
        free[span.op.resource] = span.finish_s


@given(graphs())
def test_many_samples_run_in_blocks_of_the_same_answer(drawn: tuple[StepGraph, dict[str, np.ndarray]]) -> None:
    graph, durations = drawn
    wide = {name: np.tile(array, 3000) for name, array in durations.items()}
    assert np.array_equal(step_times(graph, wide), np.tile(step_times(graph, durations), 3000))


def test_a_graph_refuses_what_cannot_run() -> None:
    with pytest.raises(ValueError, match="predecessor must be issued before it"):
        StepGraph((Op("a", "gpu", "c", "other", (0,)),), "gpu")
    with pytest.raises(ValueError, match="unknown mechanism"):
        StepGraph((Op("a", "gpu", "c", "magic"),), "gpu")
