"""Routing counts and expert traces: folded while read, receipts of routing, and what a fit and a prediction make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ingest_build as build
import numpy as np
import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.errors import IngestError, TwinError
from twin.fitting.receipts import Receipt, read_receipts
from twin.ingest.registry import read_file
from twin.ingest.unions import UnionFold
from twin.routing.counts import RoutingTrace
from twin.routing.exact import mean_unique
from twin.routing.fitting import LENGTHS, measured_unions

EXPERTS, TOP_K = 384, 6


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)


def document(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, TwinError), result.exception
    return str(result.exception)


def sticky_trace(path: Path, stay: float, tokens: int = 2000, layers: int = 4) -> Path:
    """An expert stays from one token to the next with probability `stay`: more of it, more locality."""
    rng = np.random.default_rng(1)
    ids = np.empty((tokens, layers, TOP_K), dtype=np.int16)
    for layer in range(layers):
        now = rng.choice(EXPERTS, TOP_K, replace=False)
        for token in range(tokens):
            kept = now[rng.random(TOP_K) < stay]
            fresh = rng.choice(np.setdiff1d(np.arange(EXPERTS), kept), TOP_K - len(kept), replace=False)
            now = np.concatenate([kept, fresh])
            ids[token, layer] = now
    np.savez(path, experts=ids)
    return path


def popularity(exponent: float, seed: int = 0, layers: int = 40, routes: int = 60_000) -> list[list[int]]:
    """Counts of a router whose r-th most popular expert has weight r^-exponent, in a random order a layer."""
    order, rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    weights = np.arange(1, EXPERTS + 1.0) ** -exponent
    return [rng.multinomial(routes, order.permutation(weights / weights.sum())).tolist() for _ in range(layers)]


# the fold


def test_the_fold_is_the_unions_of_the_whole_trace() -> None:
    """Two implementations, one truth: pieces folded while read, and the array at once."""
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 60, (480 + 37, 3, 4))
    stream = np.repeat([0, 1, 2], [200, 17, 300])
    fold = UnionFold(4)
    for one in np.unique(stream):
        fold.add(ids[stream == one])
    found = fold.means()
    trace = RoutingTrace(ids, stream, "test")
    for position, m in enumerate(LENGTHS):
        mean, error, windows = zip(*(measured_unions(trace, layer) for layer in range(3)), strict=True)
        assert found[m][0] == pytest.approx(np.mean([x[position] for x in mean]), rel=1e-12)
        assert found[m][1] == pytest.approx(np.mean([x[position] for x in error]), rel=1e-9, abs=1e-9)
        assert found[m][2] == windows[0][position]
    assert fold.routes.sum() == ids.size


def test_uniform_traces_follow_the_uniform_law(tmp_path: Path) -> None:
    found = read_file(build.expert_trace(tmp_path / "x.npz", tokens=4800, layers=4, top_k=4, experts=32))
    for m, (mean, error, _) in found.state.means().items():
        # Four layers' errors are taken as common, so five of them are far out.
        assert abs(mean - mean_unique(32, 4, m)) < max(5 * error, 1e-9)


def test_every_way_to_save_a_trace_is_the_same_trace(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tokens, layers, top_k = 1500, 3, 4
    ids = np.argsort(rng.random((tokens, layers, 40)), axis=2)[:, :, :top_k].astype(np.int16)
    stream = np.repeat([4, 9], [700, 800])
    np.savez(tmp_path / "plain.npz", experts=ids, stream=stream)
    np.savez_compressed(tmp_path / "fortran.npz", experts=np.asfortranarray(ids), stream=stream)
    np.savez(tmp_path / "swapped.npz", experts=np.ascontiguousarray(ids.swapaxes(0, 1)), stream=stream)
    header = "stream,token,layer," + ",".join(f"expert_{i}" for i in range(top_k))

    def table(name: str, order: list[tuple[int, int]]) -> None:
        lines = [f"{stream[t]},{t},{layer},{','.join(map(str, ids[t, layer]))}" for t, layer in order]
        (tmp_path / name).write_text("\n".join([header, *lines]))

    table("tokens.csv", [(t, layer) for t in range(tokens) for layer in range(layers)])
    table("layers.csv", [(t, layer) for layer in range(layers) for t in range(tokens)])
    states = [read_file(path).state for path in sorted(tmp_path.iterdir())]
    assert len(states) == 5
    for other in states[1:]:
        assert np.array_equal(other.routes, states[0].routes)
        one, two = (np.array(list(state.means().values())) for state in (other, states[0]))
        assert one == pytest.approx(two)


def test_a_gap_or_a_new_stream_cuts_the_windows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["token,layer,e0", *(f"{t},0,{t % 7}" for t in (0, 1, 10, 11, 20))]
    path.write_text("\n".join(rows))
    assert read_file(path).state.means()[2] == (2.0, 0.0, 2)
    path.write_text("\n".join([rows[0], "1,0,3", "0,0,3"]))
    with pytest.raises(IngestError, match="sort the rows by token"):
        read_file(path)


def test_counts_of_every_form_agree(tmp_path: Path) -> None:
    counts = popularity(0.8, layers=3, routes=500)
    by_layer = {str(i): row for i, row in enumerate(counts)}
    forms: dict[str, Any] = {
        "matrix": counts,
        "named": {"counts": counts, "model": "m"},
        "layers": by_layer,
        "phases": {"phases": {"prefill": by_layer, "decode": by_layer}},
    }
    for name, value in forms.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    long = [f"{i},{e},{n}" for i, row in enumerate(counts) for e, n in enumerate(row)]
    (tmp_path / "long.csv").write_text("\n".join(["layer,expert,count", *reversed(long)]))
    for path in tmp_path.iterdir():
        found = read_file(path)
        assert found.format == "routing-counts" and np.array_equal(found.state, counts), path


# receipts, fit, prediction


def test_a_trace_moves_the_locality_of_its_class(tmp_path: Path) -> None:
    """File in, receipts out, fit, predict: a stickier text touches fewer experts, so its step is shorter."""
    steps, factors = {}, {}
    for name, stay in (("local", 0.55), ("free", 0.05)):
        trace, table, fit = (tmp_path / f"{name}.{end}" for end in ("npz", "csv", "json"))
        sticky_trace(trace, stay)
        assert run("import", trace, "-o", table, "--lane", "tp4", "--traffic", "code").exit_code == 0
        receipts = read_receipts(table)
        assert [r.rows for r in receipts] == list(LENGTHS[1:]) and {r.quantity for r in receipts} == {"unique_experts"}
        summary = document("fit", table, "--lane", "tp4", "-o", fit)
        moved = {p["key"]: p for p in summary["lanes"]["tp4"]["parameters"] if not p["prior_dominated"]}
        assert list(moved) == ["routing.deepseek-v4.1-flash.code.beta"]
        factors[name] = moved["routing.deepseek-v4.1-flash.code.beta"]["log_factor"]
        # Routing holds no time, so nothing was timed: no range, no scatter of steps.
        assert summary["lanes"]["tp4"]["range"] is None
        cell = document("predict", "--lane", "tp4", "--k", "7", "--traffic", "code", "--calibration", fit)["cells"][0]
        steps[name] = cell["step_ms"]["mean"], cell["unique_experts_per_layer"]["mean"]
        other = document("predict", "--lane", "tp4", "--k", "7", "--traffic", "prose", "--calibration", fit)
        steps[f"{name} prose"] = other["cells"][0]["step_ms"]["mean"], 0.0
    assert factors["local"] < -0.1 < 0.0 < factors["free"]
    assert steps["local"][0] < 0.95 * steps["free"][0] and steps["local"][1] < 0.8 * steps["free"][1]
    assert steps["local prose"][0] == pytest.approx(steps["free prose"][0], rel=0.01)


def test_a_fit_of_steps_and_unions_keeps_its_range(tmp_path: Path) -> None:
    trace = sticky_trace(tmp_path / "t.npz", 0.4)
    table, bench = tmp_path / "routing.csv", tmp_path / "bench.csv"
    spec = build.FIXTURES / "constructed" / "vllm_bench_spec.json"
    assert run("import", trace, "-o", table, "--lane", "tp4", "--traffic", "code").exit_code == 0
    flags = ("--lane", "tp4", "--traffic", "code", "--verification", "block")
    assert run("import", spec, "-o", bench, *flags).exit_code == 0
    alone, both = document("fit", bench, "--lane", "tp4"), document("fit", bench, table, "--lane", "tp4")
    assert both["lanes"]["tp4"]["range"] == alone["lanes"]["tp4"]["range"]
    assert both["receipts"] == alone["receipts"] + len(LENGTHS) - 1
    keys = {p["key"] for p in both["lanes"]["tp4"]["parameters"]} - {
        p["key"] for p in alone["lanes"]["tp4"]["parameters"]
    }
    assert keys == {"routing.deepseek-v4.1-flash.code.beta"}


def _counts_fit(tmp_path: Path, traffic: str, exponent: float, *flags: str | Path) -> tuple[Receipt, Any, float]:
    counts, table, fit = (tmp_path / f"{traffic}-{exponent}.{end}" for end in ("counts.json", "csv", "json"))
    counts.write_text(json.dumps(popularity(exponent, seed=5)))
    result = run("import", counts, "-o", table, "--lane", "sidecar", "--traffic", traffic, *flags)
    assert result.exit_code == 0, result.exception
    (receipt,) = read_receipts(table)
    summary = document("fit", table, "--lane", "sidecar", "-o", fit)
    asked = ("predict", "--lane", "sidecar", "--k", "5", "--traffic", traffic, "--calibration", fit)
    return receipt, summary["lanes"]["sidecar"], document(*asked)["cells"][0]["cold_experts_per_layer"]["mean"]


def test_counts_on_the_lanes_map_move_its_mismatch(tmp_path: Path) -> None:
    """Traffic the map was not made for: the share outside the map's hot set is what `map_mismatch` scales."""
    made_of = tmp_path / "made_of.json"
    made_of.write_text(json.dumps(popularity(1.0, seed=5)))
    placed = tmp_path / "map.json"
    arguments = ("placement", made_of, "--hot", "295", "--checkpoint", "deepseek-v4.1-flash", "--out", placed)
    assert run(*arguments).exit_code == 0
    receipt, steep, cold_steep = _counts_fit(tmp_path, "code", 1.3, "--hot-map", placed)
    counted = np.array(popularity(1.3, seed=5), dtype=float)
    hot = np.array([np.isin(np.arange(EXPERTS), row) for row in json.loads(placed.read_text())["hot"]])
    assert receipt.value == pytest.approx(float(((counted * ~hot).sum(1) / counted.sum(1)).mean()))
    _, flat, cold_flat = _counts_fit(tmp_path, "code", 0.3, "--hot-map", placed)
    key = "lane.sidecar.map_mismatch"
    steep_factor, flat_factor = (
        next(p["log_factor"] for p in fit["parameters"] if p["key"] == key) for fit in (steep, flat)
    )
    assert steep_factor < 0.0 < flat_factor
    assert not any(p["key"].startswith("routing.") for p in flat["parameters"])
    assert cold_flat > 1.1 * cold_steep


def test_counts_of_the_maps_own_traffic_move_its_cold_share(tmp_path: Path) -> None:
    _, _, cold_steep = _counts_fit(tmp_path, "mixed", 1.3)
    receipt, flat, cold_flat = _counts_fit(tmp_path, "mixed", 0.3)
    # Judged on the other half of the counts, a flat popularity keeps nearly its share of experts outside.
    assert receipt.value < 89 / 384 and receipt.use == "fit"
    (key,) = {p["key"] for p in flat["parameters"] if p["key"].startswith("routing.")}
    assert key == "routing.sidecar.mixed.cold_share"
    assert cold_flat > 1.1 * cold_steep


def test_counts_of_other_traffic_without_the_map_are_not_fitted(tmp_path: Path) -> None:
    counts, table = tmp_path / "c.json", tmp_path / "r.csv"
    counts.write_text(json.dumps(popularity(1.0)))
    assert run("import", counts, "-o", table, "--lane", "sidecar", "--traffic", "code").exit_code == 0
    (receipt,) = read_receipts(table)
    assert receipt.use == "exclude" and "--hot-map" in receipt.reason


@pytest.mark.parametrize(("lane", "why"), [("tp4", "no route leaves them"), ("grace-uva-60", "without regard")])
def test_counts_that_constrain_nothing_say_why(lane: str, why: str, tmp_path: Path) -> None:
    counts = tmp_path / "c.json"
    counts.write_text(json.dumps(popularity(1.0)))
    message = refusal("import", counts, "-o", tmp_path / "r.csv", "--lane", lane, "--traffic", "code")
    assert "no receipt" in message and why in message


def test_routing_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    flags = ("-o", tmp_path / "r.csv", "--lane", "sidecar", "--traffic", "code")
    trace = build.expert_trace(tmp_path / "x.npz", top_k=4, experts=32)
    assert "another checkpoint" in refusal("import", trace, *flags)
    counts = build.FIXTURES / "constructed" / "routing_counts.json"
    assert "another checkpoint" in refusal("import", counts, *flags)
    assert "pass --lane and --traffic" in refusal("import", counts, "-o", tmp_path / "r.csv")


def test_a_short_trace_gives_no_union(tmp_path: Path) -> None:
    trace = build.expert_trace(tmp_path / "x.npz", tokens=7, top_k=TOP_K, experts=EXPERTS)
    message = refusal("import", trace, "-o", tmp_path / "r.csv", "--lane", "tp4", "--traffic", "code")
    assert "fewer than 4 windows" in message


def test_a_receipt_of_an_impossible_union_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    trace = sticky_trace(tmp_path / "x.npz", 0.2, tokens=100, layers=1)
    run("import", trace, "-o", table, "--lane", "tp4", "--traffic", "code")
    text = table.read_text()
    value = next(r.value for r in read_receipts(table) if r.rows == 2)
    table.write_text(text.replace(repr(value), "13.5"))
    assert "expected 6 to 12" in refusal("fit", table, "--lane", "tp4")


def test_a_cold_share_of_a_lane_without_cold_experts_is_refused(tmp_path: Path) -> None:
    counts, table = tmp_path / "c.json", tmp_path / "r.csv"
    counts.write_text(json.dumps(popularity(1.0)))
    assert run("import", counts, "-o", table, "--lane", "sidecar", "--traffic", "mixed").exit_code == 0
    table.write_text(table.read_text().replace(",sidecar,", ",tp4,"))
    assert "holds every expert hot" in refusal("fit", table, "--lane", "tp4")
