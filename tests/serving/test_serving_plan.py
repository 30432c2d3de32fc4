"""The plan: against an analytic edge, and its parts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from twin.errors import CatalogueError, PolicyError, QuantityError, TwinError
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.planning.capacity import largest_load, replicas_for
from twin.planning.cost import Prices, lane_cost
from twin.planning.pareto import Point, curve, mark_front
from twin.planning.plan import make_plan
from twin.planning.server import Server, make_server, serve
from twin.planning.slo import parse_slo
from twin.planning.study import Arrivals, Extent, Option, TrafficShare, make_study
from twin.serving.request import FINISHED, Request
from twin.serving.steptime import ConstantStepTime

ROOTS = catalogue_roots()


@lru_cache
def textbook() -> Server:
    """A lane turned into M/D/1: one sequence, one-token requests, steps of 20 ms."""
    share = TrafficShare(name="mixed", prompt_tokens=1, output_tokens=1)
    server = make_server(Option(name="q", lane="sidecar", max_seqs=1), [share], ROOTS)
    deployment = server.deployment.model_copy(
        update={"frontend_s": 0.0, "frontend_s_per_token": 0.0, "frontend_s_per_stream": 0.0}
    )
    return replace(server, table=ConstantStepTime(0.02), deployment=deployment, relative_sd=0.0)  # type: ignore[arg-type]


def test_the_edge_of_a_textbook_queue() -> None:
    """Mean time of M/D/1 is s + rho s / (2 (1 - rho)): 50 ms at s = 20 ms is rho = 0.75, 37.5 a second. Within 5 %."""
    found = largest_load(
        textbook(), Arrivals(rate=1.0), Extent(requests=5000), parse_slo("mean E2E 50 ms"), replications=2
    )
    assert found.load == pytest.approx(37.5, rel=0.05)
    assert found.half_width is not None
    assert found.half_width < 0.15 * found.load
    assert found.limited_by == ("mean E2E 50 ms",)
    assert found.at_load is not None


def test_unstable_is_not_kept_whatever_the_slo_allows() -> None:
    """An SLO of an hour does not lift the limit of one request in 20 ms."""
    found = largest_load(
        textbook(), Arrivals(rate=1.0), Extent(requests=4000), parse_slo("p95 E2E 3600 s"), replications=1
    )
    assert 40 < found.load < 56
    assert found.limited_by == ("the queue grows without end",)


def test_what_cannot_be_kept_at_all_is_none() -> None:
    found = largest_load(
        textbook(), Arrivals(rate=1.0), Extent(requests=150), parse_slo("p50 TTFT 5 ms"), replications=1
    )
    assert found.load == 0.0
    assert found.at_load is None


def test_users_of_a_closed_loop() -> None:
    """Users with no pause on one M/D/1 server: n of them wait n steps each, so 100 ms is 5 users."""
    found = largest_load(
        textbook(), Arrivals(kind="closed", users=1), Extent(requests=500), parse_slo("p50 E2E 101 ms"), replications=2
    )
    assert found.load == 5
    assert found.unit == "users"


def test_replicas_for_a_target() -> None:
    """Four servers of 50 a second each cannot take 200; five can, and the search does not stop at more."""
    slo = parse_slo("mean E2E 60 ms")
    needed = replicas_for(
        textbook(), Arrivals(rate=1.0), Extent(requests=2000), slo, 200.0, single=40.0, replications=1
    )
    assert needed == 5
    assert replicas_for(textbook(), Arrivals(rate=1.0), Extent(requests=100), slo, 10.0, single=0.0) is None


def test_a_watch_stops_early_and_agrees() -> None:
    from twin.planning.slo import Watch

    watch = Watch(parse_slo("p90 TTFT 1 s"), 100)
    request = Request(0, 0.0, 1, 1)
    request.status, request.first_token_s = FINISHED, 2.0
    stops = [watch(request) for _ in range(25)]
    assert stops.index(True) == 18, "one and a half times the ten allowed, and three"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("p95 TTFT", "not STATISTIC LATENCY TIME"),
        ("p94 TTFT 2 s", "did you mean"),
        ("p95 TTFX 2 s", "'TTFT'"),
        ("p95 TTFT 2", "no unit"),
        ("p95 TTFT -2 s", "not above 0"),
    ],
)
def test_bad_slos_are_refused(text: str, says: str) -> None:
    with pytest.raises((PolicyError, QuantityError), match=says):
        parse_slo(text)


def test_slo_text_comes_back() -> None:
    assert [c.text() for c in parse_slo("p95 ttft < 2 s, p99 TPOT 25 ms")] == ["p95 TTFT 2 s", "p99 TPOT 25 ms"]


def test_cost_by_hand() -> None:
    """Sidecar: (95,000 + 8,500) USD over 3 years and 1.625 kW at 0.20 USD, at 1,000 tok/s."""
    cost = lane_cost(load_lane("sidecar", ROOTS), Prices(3.0, 0.20), 1000.0)
    hourly = 103_500 / (3 * 8766) + 1.625 * 0.20
    assert cost.purchase_usd == 103_500
    assert cost.power_w == 1625
    assert cost.usd_per_million_tokens == pytest.approx(hourly / 3.6)
    assert any("assumed" in note for note in cost.notes)
    assert lane_cost(load_lane("sidecar", ROOTS), Prices(), 1000.0, boxes=2).power_w == 3250
    assert lane_cost(load_lane("tp4", ROOTS), Prices(), None).usd_per_million_tokens is None


def test_the_front_is_what_nobody_beats() -> None:
    points = [Point("a", 1, 10.0, 10.0, 1.0), Point("a", 2, 8.0, 16.0, 1.0), Point("b", 1, 9.0, 9.0, 1.0)]
    assert [p.front for p in mark_front(points)] == [True, True, False]


def test_more_users_less_for_each() -> None:
    share = TrafficShare(name="codegen-padded", prompt_tokens=256, output_tokens=200)
    server = make_server(Option(name="s", lane="sidecar"), [share], ROOTS)
    points = curve(server, users=(1, 8, 32))
    assert [p.tok_s_per_user for p in points] == sorted((p.tok_s_per_user for p in points), reverse=True)
    assert [p.tok_s_per_box for p in points] == sorted(p.tok_s_per_box for p in points)


def study(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "traffic": [{"name": "mixed", "prompt_tokens": 200, "output_tokens": 60}],
        "arrivals": {"kind": "poisson", "rate": 1.0},
        "extent": {"requests": 150},
        "options": [{"name": "k5", "lane": "sidecar", "k": 5}, {"name": "k0", "lane": "sidecar", "k": 0}],
    }
    return raw | changes


def test_a_plan_ranks_its_options() -> None:
    slo = parse_slo("p95 TTFT 2 s, p95 TPOT 30 ms")
    plan = make_plan(make_study(study(), "here"), slo, ROOTS, seed=0, replications=1, pareto=False)
    again = make_plan(make_study(study(), "here"), slo, ROOTS, seed=0, replications=1, pareto=False)
    assert plan == again
    loads = [o.capacity.load for o in plan.options]
    assert loads == sorted(loads, reverse=True)
    assert {o.name for o in plan.options} == {"k5", "k0"}
    assert plan.to_dict()["ranking"] == [o.name for o in plan.options]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"traffic": []}, "traffic"),
        ({"options": []}, "options"),
        ({"arrivals": {"kind": "poisson"}}, "needs rate"),
        ({"arrivals": {"kind": "closed"}}, "needs users"),
        ({"arrivals": {"kind": "poisson", "rate": -1}}, "rate"),
        ({"arrivals": {"kind": "poisson", "rate": 1, "ramp_to": 3}}, "ramp_over"),
        ({"extent": {"duration": "10 parsecs"}}, "parsecs"),
        ({"extent": {"durations": "10 s"}}, "unknown key"),
        ({"options": [{"name": "a", "lane": "sidecar"}] * 2}, "two options"),
        ({"options": [{"name": "a", "lane": "sidecar", "k": 3, "schedule": "1-4:5"}]}, "one of them"),
    ],
)
def test_bad_studies_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CatalogueError, match=says):
        make_study(study(**changes), "here")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"lane": "sidecart"}, "sidecar"),
        ({"lane": "sidecar", "limits": {"max_batchd_tokens": 5}}, "did you mean 'max_batched_tokens'"),
        ({"lane": "sidecar", "limits": {"max_batched_tokens": 0}}, "max_batched_tokens"),
        ({"lane": "sidecar", "deployment": {"prefill_replicas": 1}}, "needs a link"),
        ({"lane": "sidecar", "deployment": {"outages": [{"replica": 7, "at_s": 1, "for_s": 1}]}}, "replica 7"),
        ({"lane": "sidecar", "set": ["placement.hut=3"]}, "placement.hot"),
        ({"lane": "sidecar", "schedule": "1-4:5, 6-8:3"}, "no k for 5"),
    ],
)
def test_bad_options_are_refused(option: dict[str, Any], says: str) -> None:
    with pytest.raises(TwinError, match=says):
        make_server(Option(name="x", **option), [TrafficShare(name="mixed")], ROOTS)


def test_nothing_says_when_to_end() -> None:
    with pytest.raises(TwinError, match="when the run ends"):
        serve(textbook(), Arrivals(rate=1.0), Extent())
    with pytest.raises(PolicyError, match="ramp"):
        largest_load(textbook(), Arrivals(rate=1.0, ramp_to=2.0, ramp_over="5 s"), Extent(), parse_slo("p50 TTFT 1 s"))
