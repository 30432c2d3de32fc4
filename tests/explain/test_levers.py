"""Levers: monotone where physics is, limits above steps, pairs that share a wait, and the ceiling."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from explain_support import MISSION_A, MISSION_B, setting
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.cli.main import cli
from twin.lane.lane import Lane
from twin.planning.lever_list import Change, _scaled, levers_of, most_hot
from twin.planning.levers import Bench, levers
from twin.planning.roofline import roofline

SAMPLES = 12
SIDECAR, TP4 = (Bench(setting(text), 0, SAMPLES) for text in (MISSION_A, MISSION_B))
BENCHES = {"sidecar": SIDECAR, "tp4": TP4}
TIMES = [
    ("sidecar", "links.sidecar.latency"),
    ("sidecar", "engine.launch_time"),
    ("sidecar", "engine.launches_per_step"),
    ("sidecar", "engine.moe_floor"),
    ("sidecar", "engine.host_gap"),
    ("sidecar", "engine.attention_layer_time"),
    ("sidecar", "engine.row_time"),
    ("sidecar", "engine.sidecar_call_time"),
    ("sidecar", "engine.draft_overhead"),
    ("sidecar", "checkpoint.dense_bytes"),
    ("tp4", "engine.collectives.0.latency"),
    ("tp4", "engine.collectives.0.inverse_bandwidth"),
    ("tp4", "engine.sampling_time"),
]
BANDWIDTHS = [
    ("sidecar", "devices.primary.read_bandwidth"),
    ("sidecar", "devices.sidecar.read_bandwidth"),
    ("sidecar", "links.sidecar.bandwidth"),
    ("tp4", "devices.primary.read_bandwidth"),
]


def scaled(bench: Bench, key: str, by: float) -> np.ndarray:
    return bench.run(Change("", (_scaled(bench.resolved.lane, key, by),))).times.step_s


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TIMES), st.floats(0.0, 1.0))
def test_a_part_that_takes_less_time_never_makes_a_step_longer(part: tuple[str, str], by: float) -> None:
    bench = BENCHES[part[0]]
    assert np.all(scaled(bench, part[1], by) <= bench.now.times.step_s + 1e-15)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(BANDWIDTHS), st.floats(1.0, 10.0))
def test_more_bandwidth_never_makes_a_step_longer(part: tuple[str, str], by: float) -> None:
    bench = BENCHES[part[0]]
    assert np.all(scaled(bench, part[1], by) <= bench.now.times.step_s + 1e-15)


@pytest.mark.parametrize("text", [MISSION_A, MISSION_B, "grace-nightly", "gb10x4-sglang-ep4"])
def test_levers_are_ranked_and_a_limit_of_the_same_part_gains_at_least_its_step(text: str) -> None:
    found = levers(setting(text), samples=SAMPLES)
    logs = [r.step.factor.log for r in found.levers if r.step is not None]
    assert logs == sorted(logs, reverse=True)
    for lever in found.levers:
        # A perfect map brings every read to the primary device, which a good map does not: no limit of its kind.
        if lever.step is not None and lever.limit is not None and lever.name != "map quality":
            assert lever.limit.factor.log >= lever.step.factor.log - 1e-9, lever.name
    # A chosen k is the best of those there are, the present one among them.
    assert next(r for r in found.levers if r.name == "k").step.factor.log >= 0.0  # type: ignore[union-attr]
    assert 0.0 < found.roofline.fraction.p05 <= found.roofline.fraction.p95 <= 1.0
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_hides_behind_the_same_wait_substitutes_and_what_uncovers_it_complements() -> None:
    found = levers(setting(MISSION_A), samples=60)
    kinds = {frozenset((p.first, p.second)): p.kind for p in found.pairs if p.at == "limit"}
    assert kinds[frozenset(("more memory", "second sidecar"))] == "substitutes"
    assert kinds[frozenset(("sidecar call", "second sidecar"))] == "substitutes"
    assert kinds[frozenset(("memory bandwidth", "more memory"))] == "complements"


def test_every_setting_of_a_lever_can_be_typed() -> None:
    lane = setting(MISSION_A).lane
    for lever in levers_of(lane, "codegen-padded", 5, "token"):
        for change in (lever.step, lever.limit):
            assert change is None or all("=" in text and "." in text for text in change.settings)


def test_two_turns_of_one_knob_do_not_combine() -> None:
    one, other = (Change("", (f"placement.hot={n}",)) for n in (300, 310))
    assert one.join(other) is None
    assert one.join(Change("", (), ("launch",))) == Change("; ", ("placement.hot=300",), ("launch",))


def test_filling_the_memory_fits_and_one_more_does_not() -> None:
    from twin.errors import CapacityError
    from twin.lane.capacity import require_fit
    from twin.lane.override import override

    lane: Lane = setting(MISSION_A).lane
    most = most_hot(lane)
    require_fit(override(lane, [f"placement.hot={most}"]))
    with pytest.raises(CapacityError):
        require_fit(override(lane, [f"placement.hot={most + 1}"]))


def test_the_roofline_is_bytes_over_bandwidth() -> None:
    found = roofline(setting(MISSION_B), samples=400)
    lane = setting(MISSION_B).lane
    dense = next(read for read in found.reads if read.what == "dense weights")
    assert dense.gigabytes == pytest.approx(lane.checkpoint.dense_bytes.value / 1e9, rel=1e-12)
    # Four cards of 1,630.6 GB/s measured; the calibration moves that by a few per cent at most.
    assert dense.ms == pytest.approx(dense.gigabytes / (4 * 1630.6) * 1e3, rel=0.05)
    assert found.step_ms.mean == pytest.approx(sum(read.ms for read in found.reads), rel=1e-9)


def test_command_line_prints_and_gives_json() -> None:
    arguments = ["levers", "--lane", "sidecar", "--traffic", "codegen-padded"]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    for word in ("small kernels", "second sidecar", "substitutes", "Ceiling", "Roofline"):
        assert word in shown.output
    answer = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)
    assert {r["name"] for r in answer["levers"]} >= {
        "k",
        "verification",
        "hot experts",
        "more memory",
        "map quality",
        "draft cost",
    }
