"""`twin simulate` and `twin plan` as people call them, and the shipped what-ifs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from twin.cli.main import COMMANDS, cli
from twin.errors import TwinError
from twin.lane.catalogue import catalogue_roots, shipped_root
from twin.planning.server import make_server, serve
from twin.planning.slo import parse_slo
from twin.planning.study import Extent, read_study

AZURE = Path(__file__).parent / "data" / "azure_conv_2023_first300.csv"
WHATIF = sorted((shipped_root() / "scenarios" / "whatif").glob("*.toml"))
QUICK = ["--requests", "60", "--prompt", "100", "--output", "30"]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, (SystemExit, TwinError)):
        raise result.exception
    return result


def test_commands_are_known() -> None:
    assert {"simulate", "plan"} <= set(COMMANDS)


def test_json_of_a_trace() -> None:
    found = run(
        "simulate", "--lane", "sidecar", "--trace", str(AZURE), "--json", "--slo", "p95 TTFT 2 s", "--seed", "3"
    )
    answer = json.loads(found.stdout)
    (result,) = answer["results"]
    assert answer["command"] == "simulate"
    assert result["lane"] == "sidecar"
    assert result["result"]["requests"]["finished"] == 300
    assert result["result"]["seed"] == 3
    assert 0 < result["result"]["goodput"]["fraction"] <= 1
    assert found.stdout == run(
        "simulate", "--lane", "sidecar", "--trace", str(AZURE), "--json", "--slo", "p95 TTFT 2 s", "--seed", "3"
    ).stdout  # fmt: skip


def test_table_of_a_rate() -> None:
    text = run("simulate", "--lane", "sidecar", "--rate", "2", *QUICK).stdout
    for word in ("TTFT", "TPOT", "end to end", "tok/s", "KV", "60 requests"):
        assert word in text


def test_files_are_written_once(tmp_path: Path) -> None:
    table, trace, plot = tmp_path / "r.csv", tmp_path / "t.json", tmp_path / "p.svg"
    arguments = [
        "simulate",
        "--lane",
        "sidecar",
        "-c",
        "4",
        *QUICK,
        "--requests-out",
        str(table),
        "--trace-out",
        str(trace),
    ]
    run(*arguments, "--plot", str(plot))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 60
    assert {r["status"] for r in rows} == {"finished"}
    assert json.loads(trace.read_text())["traceEvents"]
    assert plot.stat().st_size > 1000
    again = run(*arguments)
    assert isinstance(again.exception, TwinError)
    assert "exists" in str(again.exception)
    assert run(*arguments, "--force").exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.svg", "r.csv", "t.json"], "nothing half-written is left"


def test_a_mix_with_replicas_and_an_outage() -> None:
    found = run(
        "simulate", "--lane", "sidecar", "--traffic", "mixed:3", "--traffic", "code:1", "--rate", "6", *QUICK,
        "--replicas", "2", "--router", "round-robin", "--outage", "0@2 s+3 s", "--json",
    )  # fmt: skip
    result = json.loads(found.stdout)["results"][0]
    assert result["deployment"]["replicas"] == 2
    assert result["result"]["requests"]["finished"] == 60
    assert [c["name"] for c in result["result"]["classes"]] == ["mixed", "code"]


def test_two_lanes_side_by_side() -> None:
    results = json.loads(run("simulate", "--lane", "sidecar", "--lane", "tp4", "-c", "2", *QUICK, "--json").stdout)[
        "results"
    ]
    assert [r["lane"] for r in results] == ["sidecar", "tp4"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate"], "give a study file"),
        (["simulate", "--lane", "sidecar"], "--rate"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "-c", "2"], "one of"),
        (["simulate", "--lane", "sidecat", "--rate", "1", "--requests", "5"], "sidecar"),
        (["simulate", "--lane", "sidecar", "--rate", "1"], "when the run ends"),
        (["simulate", "--lane", "sidecar", "--rate", "-1", "--requests", "5"], "rate"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--duration", "5"], "no unit"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--duration", "-5 s"], "greater than or equal to 0"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--traffic", "mixt"], "mixed"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--traffic", "mixed:x"], "not a number"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--ramp", "4"], "TO@TIME"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--outage", "1@2"], "WHO@AT"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--limit", "max_seqs"], "KEY=VALUE"),
        (["simulate", "--lane", "sidecar", "--rate", "1", "--requests", "5", "--limit", "max_seqs=9"], "max_seqs"),
        (["simulate", "--lane", "sidecar", "--trace", "/nowhere.csv"], "cannot be read"),
        (["simulate", "/nowhere.toml"], "cannot be read"),
        (["plan", "--lane", "sidecar"], "needs an SLO"),
        (["plan", "--lane", "sidecar", "--slo", "fast"], "SLO"),
        (["plan", "--lane", "sidecar", "--slo", "p95 TTFT 2 s", "--replications", "0"], "replications"),
    ],
)  # fmt: skip
def test_mistakes_are_answered(arguments: list[str], says: str) -> None:
    found = run(*arguments)
    assert found.exit_code in (1, 2) or isinstance(found.exception, TwinError)
    assert says in found.output + str(found.exception)


def test_plan_in_json_and_as_a_table() -> None:
    arguments = [
        "plan", "--lane", "sidecar", "--slo", "p95 TTFT 3 s, p95 TPOT 30 ms", "--requests", "80", "--prompt", "100",
        "--output", "40", "--replications", "2", "--workers", "1", "--target", "60",
    ]  # fmt: skip
    answer = json.loads(run(*arguments, "--no-pareto", "--json").stdout)
    (option,) = answer["options"]
    assert answer["slo"] == ["p95 TTFT 3 s", "p95 TPOT 30 ms"]
    assert option["capacity"]["unit"] == "requests/s"
    assert option["capacity"]["load"] > 1
    assert len(option["capacity"]["edges"]) == 2
    assert option["replicas_for_target"] >= 2
    assert option["cost"]["purchase_usd"] == 103_500
    text = run(*arguments).stdout
    assert "largest requests/s" in text
    assert "per user" in text


@pytest.mark.parametrize("path", WHATIF, ids=[p.stem for p in WHATIF])
def test_every_shipped_what_if_runs(path: Path) -> None:
    """Its last option that fits serves a little of its traffic."""
    study = read_study(path)
    assert study.question and study.title and parse_slo(study.slo)
    option = study.options[-1]
    shares = [s.model_copy(update={"output_tokens": 20}) for s in study.traffic]
    server = make_server(option, shares, catalogue_roots())
    result = serve(server, study.arrivals, Extent(requests=24)).result
    assert result.requests.finished == result.requests.arrived > 0


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    study = tmp_path / "s.toml"
    study.write_text(
        'schema_version = 1\n[[traffic]]\nname = "mixed"\nprompt_tokens = 50\noutput_tokens = 20\n[arrivals]\nrate = 2\n'
        '[extent]\nrequests = 30\n[[options]]\nname = "big"\nlane = "sidecar"\nset = ["placement.hot=384"]\n'
        '[[options]]\nname = "as it is"\nlane = "sidecar"\n'
    )
    found = run("simulate", str(study), "--json")
    assert [r["option"] for r in json.loads(found.stdout)["results"]] == ["as it is"]
    assert "big is left out" in found.stderr
    alone = run("simulate", str(study), "--option", "big")
    assert "does not fit" in str(alone.exception)
    assert "as it is" in str(run("simulate", str(study), "--option", "as it was").exception)
