"""The trace: valid events, no two at once on a row, arrows between real ops, and the engine's own step time."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.lane.catalogue import catalogue_roots
from twin.planning.draws import Draws
from twin.planning.scenario import parse_setting, resolve
from twin.report.trace import Event, step_trace
from twin.step.builders import build_step_graph
from twin.step.fast import step_times

LANES = ["sidecar:k=5", "tp4:k=7,verification=block", "grace-nightly", "gb10x4-sglang-ep4:k=0"]
#: Half a nanosecond in the microseconds of the format: anything larger is a real overlap.
TINY = 5e-4


def trace_of(text: str, steps: int = 2) -> tuple[dict[str, object], list[Event]]:
    resolved = resolve(parse_setting(text), catalogue_roots())
    sampled = Draws(0, steps).sample(resolved)
    sampled = replace(sampled, graph=build_step_graph(resolved.lane, resolved.request.k, all_ranks=True))
    trace = json.loads(json.dumps(step_trace(sampled, steps=steps), allow_nan=False))
    return trace, trace["traceEvents"]


def ops(events: list[Event]) -> list[Event]:
    return [e for e in events if e["ph"] == "X"]


@pytest.mark.parametrize("text", LANES)
def test_every_event_has_what_its_phase_needs(text: str) -> None:
    trace, events = trace_of(text)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    needed = {
        "M": {"name", "pid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "s": {"name", "cat", "pid", "tid", "ts", "id"},
        "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
        "C": {"name", "pid", "ts", "args"},
    }
    for event in events:
        assert needed[event["ph"]] <= event.keys(), event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(v, (int, float)) and v >= 0 for v in event["args"].values())
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert named == {e["tid"] for e in ops(events)}


@pytest.mark.parametrize("text", LANES)
def test_events_of_one_row_never_overlap(text: str) -> None:
    _, events = trace_of(text, steps=3)
    rows = defaultdict(list)
    for event in ops(events):
        rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        for (_, finish), (start, _) in pairwise(spans):
            assert start >= finish - TINY


@pytest.mark.parametrize("text", LANES)
def test_arrows_leave_an_op_and_arrive_at_one_that_waited(text: str) -> None:
    _, events = trace_of(text, steps=1)
    starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    assert starts.keys() == ends.keys()
    begins = {(e["tid"], e["ts"]) for e in ops(events)}
    for flow, start in starts.items():
        end = ends[flow]
        assert end["ts"] >= start["ts"] and start["tid"] != end["tid"]
        assert (end["tid"], end["ts"]) in begins
        inside = [
            o
            for o in ops(events)
            if o["tid"] == start["tid"] and o["ts"] - TINY <= start["ts"] <= o["ts"] + o["dur"] + TINY
        ]
        assert inside


def test_a_sidecar_has_hops_and_a_barrier_has_an_arrow_from_every_rank() -> None:
    _, sidecar = trace_of("sidecar:k=5", steps=1)
    names = {e["name"] for e in ops(sidecar)}
    assert {"hidden to sidecar L0", "cold experts L39", "sidecar result L7", "draft"} <= names
    _, tp4 = trace_of("tp4:k=7", steps=1)
    rows = {e["args"]["name"] for e in tp4 if e["ph"] == "M" and e["name"] == "thread_name"}
    assert rows == {"gpu0", "gpu1", "gpu2", "gpu3", "fabric"}
    barrier = [e for e in tp4 if e["ph"] == "f" and e["name"] == "hot experts -> all-reduce"]
    # Four ranks, two chunks, forty layers.
    assert len(barrier) == 4 * 2 * 40


@pytest.mark.parametrize("text", LANES)
def test_the_trace_is_as_long_as_the_step(text: str) -> None:
    resolved = resolve(parse_setting(text), catalogue_roots())
    sampled = Draws(0, 1).sample(resolved)
    last = max(e["ts"] + e["dur"] for e in ops(step_trace(sampled)["traceEvents"]))
    assert last == pytest.approx(step_times(sampled.graph, sampled.durations)[0] * 1e6, abs=1e-3)


def test_counters_say_how_many_experts_a_layer_touches() -> None:
    _, events = trace_of("sidecar:k=5", steps=1)
    counts = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "experts"]
    assert len(counts) == 40
    # 22.45 unique experts were measured at six tokens of one stream, 18 to 30 over the layers.
    assert 15 < sum(c["hot"] + c["cold"] for c in counts) / 40 < 30
    depth = [e["args"]["ops"] for e in events if e["ph"] == "C" and e["name"] == "queue of sidecar"]
    assert max(depth) == 1 and depth[-1] == 0


def test_command_line_writes_a_file_once(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    arguments = ["trace", "--lane", "sidecar", "--k", "5", "-o", str(file)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert json.loads(file.read_text())["otherData"]["setting"].startswith("sidecar:k=5")
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code != 0 and "exists already" in str(again.exception)
    assert CliRunner().invoke(cli, [*arguments, "--force"]).exit_code == 0
