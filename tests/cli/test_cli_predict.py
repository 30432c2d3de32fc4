"""`twin predict`: the examples, the JSON contract, CSV, what-ifs."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from typing import Any

import pytest
from cli_support import Twin, program
from pytest import approx

INTERVAL = {"mean", "p05", "p50", "p95"}
CELL = {
    "k", "concurrency", "traffic", "verification", "context_tokens", "tokens_per_step", "step_ms", "tok_s_per_stream", "tok_s_aggregate",
    "unique_experts_per_layer", "cold_experts_per_layer", "ttft_ms", "prefill_tok_s", "breakdown_ms", "warnings",
}  # fmt: skip
PARTS = {
    "attention",
    "dense",
    "experts",
    "sidecar_exposed",
    "all_reduce_exposed",
    "launch",
    "draft",
    "sampling",
    "other",
}
HEAD = {"schema_version", "command", "lane", "checkpoint", "engine", "calibration", "seed", "cells"}


def check_contract(answer: Any, lane: str, cells: int) -> None:
    """Keys may be added, never renamed; numbers hold together."""
    assert set(answer) >= HEAD
    assert (answer["schema_version"], answer["command"], answer["lane"]) == (1, "predict", lane)
    assert set(answer["calibration"]) >= {"name", "sha256", "receipts", "fitted_parameters"}
    assert len(answer["cells"]) == cells
    for cell in answer["cells"]:
        assert set(cell) >= CELL and set(cell["breakdown_ms"]) >= PARTS
        for name, value in cell.items():
            if isinstance(value, dict) and name != "breakdown_ms":
                assert set(value) >= INTERVAL, name
                assert value["p05"] <= value["p50"] <= value["p95"], name
        assert sum(cell["breakdown_ms"].values()) == approx(cell["step_ms"]["mean"], rel=1e-9)
        assert 1 <= cell["tokens_per_step"]["mean"] <= cell["k"] + 1
        assert all(isinstance(text, str) for text in cell["warnings"])


# --- the examples a newcomer types ------------------------------------------------------------------------------------


def test_the_first_example(twin: Twin) -> None:
    answer = twin.good("predict", "--k", "9", "--lane", "tp4")
    for expected in (
        "tp4",
        "step ms",
        "tokens/step",
        "tok/s a stream",
        "tok/s in all",
        "Where a step goes",
        "experts",
        "all-reduce",
    ):
        assert expected in answer.out
    assert "k = 9 is longer than the block of 5" in answer.out
    assert "fitted parameters" in answer.out and "receipts" in answer.out
    assert answer.err == ""


def test_the_example_in_json(twin: Twin) -> None:
    answer = twin.good(
        "predict",
        "--k",
        "5",
        "--lane",
        "sidecar",
        "-c",
        "1,4,8,16",
        "--traffic",
        "codegen-padded",
        "--context",
        "2048",
        "--json",
    )
    check_contract(answer.json, "sidecar", 4)
    first = answer.json["cells"][0]
    assert [cell["concurrency"] for cell in answer.json["cells"]] == [1, 4, 8, 16]
    assert first["traffic"] == "codegen-padded" and first["context_tokens"] == 2048
    assert first["step_ms"]["mean"] == approx(11.0, rel=0.03) and first["tok_s_per_stream"]["mean"] == approx(
        466, rel=0.03
    )
    assert first["warnings"] == [], "this very cell was measured"


def test_the_example_with_a_schedule(twin: Twin) -> None:
    answer = twin.good(
        "predict",
        "--lane",
        "sidecar",
        "-c",
        "1..32",
        "--schedule",
        "1-4:5, 5-8:3, 9-32:3",
        "--traffic",
        "mixed",
        "--json",
    )
    check_contract(answer.json, "sidecar", 32)
    assert [cell["k"] for cell in answer.json["cells"]] == [5] * 4 + [3] * 28
    vllm = twin.good(
        "predict",
        "--lane",
        "sidecar",
        "-c",
        "1..32",
        "--schedule",
        "[[1,4,5],[5,8,3],[9,32,3]]",
        "--traffic",
        "mixed",
        "--json",
    )
    assert vllm.json["cells"] == answer.json["cells"]


def test_the_same_as_a_program_of_its_own() -> None:
    answer = program("predict", "--k", "9", "--lane", "tp4", "--json")
    assert answer.code == 0 and answer.err == ""
    check_contract(answer.json, "tp4", 1)
    assert program("predict", "--k", "9", "--lane", "tp4", "--json") == answer
    refused = program("predict", "--lane", "tp5")
    assert refused.code == 1 and refused.out == "" and "tp4" in refused.err and "Traceback" not in refused.err


def test_a_reader_that_goes_away_is_no_accident() -> None:
    pipe = f"{sys.executable} -m twin.cli.main predict --lane sidecar -c 1..32 --csv | head -1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("lane,") and "Traceback" not in done.stderr


# --- options ----------------------------------------------------------------------------------------------------------


def cell(twin: Twin, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = twin.good("predict", *arguments, "--json").json["cells"][0]
    return found


def test_plain_decoding_is_a_policy_like_any_other(twin: Twin) -> None:
    plain = cell(twin, "--lane", "tp4", "--k", "0")
    assert plain["tokens_per_step"] == {"mean": 1.0, "p05": 1.0, "p50": 1.0, "p95": 1.0}
    assert plain["breakdown_ms"]["draft"] == 0.0
    assert plain["tok_s_per_stream"]["mean"] == approx(1e3 / plain["step_ms"]["p50"], rel=0.02)
    assert plain["unique_experts_per_layer"]["mean"] == approx(6.0)


def test_the_lanes_own_policy_without_k(twin: Twin) -> None:
    assert (cell(twin, "--lane", "tp4")["k"], cell(twin, "--lane", "tp4")["verification"]) == (7, "block")
    assert cell(twin, "--lane", "sidecar", "-c", "5")["k"] == 3


def test_block_verification_keeps_more_at_the_same_step(twin: Twin) -> None:
    token, block = (
        cell(twin, "--lane", "sidecar", "--traffic", "prose", "--verification", rule) for rule in ("token", "block")
    )
    assert block["tokens_per_step"]["mean"] > token["tokens_per_step"]["mean"]
    assert block["step_ms"]["mean"] == approx(token["step_ms"]["mean"], rel=0.01)


def test_context_is_nearly_free_in_decode_and_not_in_prefill(twin: Twin) -> None:
    near, far = (cell(twin, "--lane", "sidecar", "--context", n) for n in ("2048", "65536"))
    assert 1.0 < far["step_ms"]["mean"] / near["step_ms"]["mean"] < 1.1
    assert far["ttft_ms"]["mean"] > 10 * near["ttft_ms"]["mean"]


def test_a_prefix_cache_shortens_the_wait(twin: Twin) -> None:
    cold, warm = (cell(twin, "--lane", "sidecar", "--context", "65536", "--cached", n) for n in ("0", "61440"))
    assert warm["ttft_ms"]["mean"] < 0.3 * cold["ttft_ms"]["mean"] and warm["step_ms"] == cold["step_ms"]


def test_a_what_if_changes_the_answer_and_its_hash(twin: Twin) -> None:
    plain = twin.good("predict", "--lane", "sidecar", "--traffic", "prose", "-c", "8", "--json").json
    far = twin.good(
        "predict",
        "--lane",
        "sidecar",
        "--traffic",
        "prose",
        "-c",
        "8",
        "--set",
        "links.sidecar.latency=300 us",
        "--json",
    ).json
    assert far["cells"][0]["step_ms"]["mean"] > plain["cells"][0]["step_ms"]["mean"]
    assert far["cells"][0]["breakdown_ms"]["sidecar_exposed"] > plain["cells"][0]["breakdown_ms"]["sidecar_exposed"]
    assert far["lane_sha256"] != plain["lane_sha256"] and far["calibration"] == plain["calibration"]


def test_priors_are_wider_than_a_calibration(twin: Twin) -> None:
    fitted = cell(twin, "--lane", "tp4", "--k", "7", "--traffic", "codegen-padded")
    priors = cell(twin, "--lane", "tp4", "--k", "7", "--traffic", "codegen-padded", "--calibration", "priors")

    def width(one: dict[str, Any]) -> float:
        return float((one["step_ms"]["p95"] - one["step_ms"]["p05"]) / one["step_ms"]["mean"])

    assert width(priors) > 1.3 * width(fitted)
    assert any("no receipts of this lane" in text for text in priors["warnings"])


def test_what_lies_outside_the_receipts_is_warned_of(twin: Twin) -> None:
    warnings = " ".join(
        cell(twin, "--lane", "tp4", "--k", "12", "-c", "300", "--traffic", "news", "--context", "1000000")["warnings"]
    )
    for expected in (
        "k = 12",
        "concurrency",
        "context_tokens",
        "'news' traffic",
        "KV memory",
        "trained on",
    ):
        assert expected in warnings


def test_csv_is_the_json_in_rows(twin: Twin) -> None:
    asked = ("predict", "--lane", "sidecar", "-c", "1,8")
    rows = list(csv.DictReader(io.StringIO(twin.good(*asked, "--csv").out)))
    cells = twin.good(*asked, "--json").json["cells"]
    assert len(rows) == len(cells) == 2
    for row, one in zip(rows, cells, strict=True):
        assert row["lane"] == "sidecar" and int(row["k"]) == one["k"]
        for quantity in ("step_ms", "tok_s_per_stream", "ttft_ms", "cold_experts_per_layer"):
            for part in INTERVAL:
                assert float(row[f"{quantity}_{part}"]) == approx(one[quantity][part], rel=1e-5)
        assert sum(float(row[f"breakdown_ms_{part}"]) for part in PARTS) == approx(float(row["step_ms_mean"]), rel=1e-4)


@pytest.mark.parametrize("lane", ["sidecar", "tp4"])
def test_seeds_repeat(twin: Twin, lane: str) -> None:
    one, same, other = (twin.good("predict", "--lane", lane, "--json", "--seed", seed).out for seed in ("4", "4", "5"))
    assert one == same != other
