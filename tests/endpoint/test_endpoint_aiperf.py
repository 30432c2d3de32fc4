"""AIPerf drives the endpoint, its report agrees with the simulation, and its file fits the lane it came from.

AIPerf (`pip install aiperf`, in an environment of its own: it brings a hundred packages) is run when it is on the PATH
or named by TWIN_AIPERF. It runs without a network given a tokenizer in a folder, which is made here.

Agreement is asked for within 3 % and the resolution of the client's clock. The resolution is measured: what AIPerf
reports as time to first token, one request at a time, when the model takes no time (`--speed max`): connecting, sending,
parsing, its own processes, the loopback, and the endpoint's own work. The comparison runs in slow motion
(TWIN_AIPERF_SPEED, 0.1), which makes all that small beside the simulated times; reported times are scaled back.
`python tests/endpoint/test_endpoint_aiperf.py` prints the comparison as the table of docs/serve.md.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from endpoint_support import endpoint, lane_server

from twin.cli.main import cli
from twin.endpoint.clock import Clock, EventClock, WallClock
from twin.endpoint.engine import LiveEngine
from twin.planning.predict import CellRequest, make_predictor
from twin.planning.server import serve
from twin.planning.study import Arrivals, Extent, TrafficShare
from twin.serving.request import Request
from twin.serving.simulate import Run, simulate

AIPERF = os.environ.get("TWIN_AIPERF") or shutil.which("aiperf")
needs_aiperf = pytest.mark.skipif(AIPERF is None, reason="aiperf is not installed; name it with TWIN_AIPERF")
SPEED = float(os.environ.get("TWIN_AIPERF_SPEED", "0.1"))
#: (users, requests) of the comparison
COMPARED = ((1, 6), (4, 24), (16, 64))
OUTPUT_COMPARED = 96
SHARE = 0.03
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "kappa",
    "sigma",
    "omega",
    "theta",
    "lambda",
    "zeta",
    "river",
    "stone",
    "cloud",
    "paper",
    "glass",
    "metal",
]
#: long answers: other users' prompts then sit in few of the gaps, which a summary cannot tell from slower steps
PROMPT, OUTPUT = 512, 256


def _tokenizer(folder: Path) -> None:
    """One token a word, in the files of the `tokenizers` library."""
    vocabulary = {"[UNK]": 0} | {w: i + 1 for i, w in enumerate(WORDS)}
    split = {"type": "Split", "pattern": {"Regex": r"\w{1,8}|[^\w\s]"}, "behavior": "Removed", "invert": True}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    folder.mkdir()
    body = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model} | empty
    (folder / "tokenizer.json").write_text(json.dumps(body))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 1_000_000}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def _profile(url: str, users: int, requests: int, folder: Path, output: int) -> Path:
    draw = random.Random(users)
    prompts = [" ".join(draw.choice(WORDS) for _ in range(PROMPT)) for _ in range(requests)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": p}) + "\n" for p in prompts))
    out = folder / f"c{users}"
    command = [
        str(AIPERF), "profile", "-m", "sidecar", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--concurrency", str(users), "--request-count", str(requests), "--input-file", str(folder / "prompts.jsonl"),
        "--custom-dataset-type", "single_turn", "--tokenizer", str(folder / "tokenizer"), "--use-server-token-count",
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{output}", "--ui", "none",
        "--artifact-dir", str(out), "--random-seed", "1",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return out


@dataclass(frozen=True)
class Report:
    """What AIPerf says of one run, seconds of the simulation; and the simulation of the requests it sent.

    `replay_ttft_s` is `twin simulate` given AIPerf's own times of sending; the closed loop has no pauses between
    requests, AIPerf's has `pause_s`, and in it TTFT hangs on how arrivals fall into steps.
    """

    users: int
    load: float
    resolution_s: float
    pause_s: float
    ttft_s: float
    replay_ttft_s: float
    closed_ttft_s: float
    pairs: dict[str, tuple[float, float]]  # what -> (AIPerf, closed loop)

    def row(self) -> str:
        """One line of the table."""
        cells = [
            f"{self.users}", f"{self.resolution_s * 1e3:.1f} ms", f"{self.ttft_s * 1e3:.1f} ms",
            f"{self.ttft_s / self.replay_ttft_s - 1:+.1%}", f"{self.ttft_s / self.closed_ttft_s - 1:+.1%}",
            *(f"{got / want - 1:+.1%}" for got, want in self.pairs.values()), f"{self.load:.0f}",
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |"


def _records(out: Path) -> list[dict[str, Any]]:
    """AIPerf's record of each request, in order of sending."""
    rows = [json.loads(row) for row in (out / "profile_export.jsonl").read_text().splitlines()]
    kept = [r for r in rows if r["metadata"]["benchmark_phase"] == "profiling"]
    return sorted(kept, key=lambda r: int(r["metadata"]["request_start_ns"]))


def _run(clock: Clock, users: int, requests: int, folder: Path, output: int = OUTPUT) -> Path:
    folder.mkdir()
    _tokenizer(folder / "tokenizer")
    with endpoint(LiveEngine(lane_server(), seed=3, model="sidecar"), clock) as url:
        return _profile(url, users, requests, folder, output)


def _replayed_ttft_s(sent_s: list[float], output: int) -> float:
    server, engine = lane_server(), LiveEngine(lane_server(), seed=3)
    requests = []
    for i, at_s in enumerate(sent_s):
        request = Request(i, at_s, PROMPT, output)
        request.profile = engine.submit(PROMPT, output).request.profile  # the endpoint draws them in this order
        requests.append(request)
    run = simulate(server.deployment, server.table, server.k_by_streams, server.draws(3), iter(requests), warmup_s=0.0)
    return float(run.collector.requests.measures()["ttft_s"].mean())


def report(users: int, requests: int, output: int, folder: Path, speed: float = SPEED) -> Report:
    """Run AIPerf twice, without model time and in slow motion, and simulate what it sent."""
    folder.mkdir(exist_ok=True)
    floor = _records(_run(EventClock(), 1, 16, folder / "floor", 8))
    resolution_s = statistics.fmean(r["metrics"]["time_to_first_token"]["value"] for r in floor) / 1e3 * speed
    out = _run(WallClock(speed), users, requests, folder / "slow", output)
    got, records = json.loads((out / "profile_export_aiperf.json").read_text()), _records(out)
    sent_s = [r["metadata"]["request_start_ns"] * 1e-9 * speed for r in records]
    done_s = sorted(r["metadata"]["request_end_ns"] * 1e-9 * speed for r in records)
    run = _closed(users, requests, output)
    rows = run.collector.requests.measures()

    def of(name: str) -> float:
        return float(got[name]["avg"]) * speed / 1e3

    rate = requests * output / float(rows["finish_s"].max() - rows["arrival_s"].min())
    return Report(
        users, os.getloadavg()[0], resolution_s,
        statistics.median(b - a for a, b in zip(done_s, sent_s[users:], strict=False)),
        of("time_to_first_token"), _replayed_ttft_s([t - sent_s[0] for t in sent_s], output),
        float(rows["ttft_s"].mean()),
        {
            "TPOT": (of("inter_token_latency"), float(rows["tpot_s"].mean())),
            "gap": (of("inter_chunk_latency"), run.result.itl_s.mean),
            "e2e": (of("request_latency"), float(rows["e2e_s"].mean())),
            "tok/s": (float(got["output_token_throughput"]["avg"]) / speed, rate),
        },
    )  # fmt: skip


def _closed(users: int, requests: int, output: int) -> Run:
    shares = (TrafficShare(name="mixed", prompt_tokens=PROMPT, output_tokens=output),)
    return serve(
        replace(lane_server(), shares=shares), Arrivals(kind="closed", users=users), Extent(requests=requests), seed=3
    )


def _disagreements(found: Report) -> list[str]:
    """What is further off than 3 % and the resolution."""
    e2e_s = found.pairs["e2e"][1]
    allowed = {
        "TPOT": found.resolution_s / OUTPUT_COMPARED,
        "gap": found.resolution_s / OUTPUT_COMPARED,
        "e2e": found.resolution_s,
        # A client that pauses asks for less: users over the time from one request to the next.
        "tok/s": found.pairs["tok/s"][1] * (found.resolution_s + found.pause_s) / e2e_s,
    }
    rows = [("TTFT", found.ttft_s, found.replay_ttft_s, found.resolution_s)]
    rows += [(what, *pair, allowed[what]) for what, pair in found.pairs.items()]
    if found.users == 1:
        cell = lane_server().predictors[0].cell(CellRequest(5, 1, "token", PROMPT))
        rows.append(("TTFT of twin predict", found.ttft_s, cell.ttft_ms.mean / 1e3, found.resolution_s))
        rows.append(("step of twin predict", found.pairs["gap"][0], cell.step_ms.mean / 1e3, allowed["gap"]))
    return [
        f"{what}: {got:.5g}, expected {want:.5g}" for what, got, want, r in rows if abs(got - want) > SHARE * want + r
    ]


@needs_aiperf
@pytest.mark.parametrize(("users", "requests"), COMPARED)
def test_aiperf_reports_the_simulation(users: int, requests: int, tmp_path: Path) -> None:
    """A busy machine delays what the client sees by wall time: what is not simulated shrinks with the speed."""
    missed: list[str] = []
    for speed in (SPEED, SPEED / 2):
        found = report(users, requests, OUTPUT_COMPARED, tmp_path / f"at-{speed:g}", speed)
        print(found.row())
        missed = _disagreements(found)
        if not missed:
            return
    pytest.fail("; ".join(missed))


@needs_aiperf
def test_aiperfs_file_fits_the_lane(tmp_path: Path) -> None:
    """At the lane's own speed: files are read as they are."""
    server, tables = lane_server(), []
    for users, requests, k in ((1, 8, 5), (4, 24, 5), (16, 64, 3)):
        out = _run(WallClock(1.0), users, requests, tmp_path / f"c{users}")
        export = tmp_path / f"aiperf-c{users}.json"
        shutil.copy(out / "profile_export_aiperf.json", export)
        table = tmp_path / f"aiperf-c{users}.csv"
        flags = ["--lane", "sidecar", "--traffic", "mixed", "--k", str(k), "--verification", "token", "-o", str(table)]
        assert CliRunner().invoke(cli, ["import", str(export), *flags]).exit_code == 0
        tables.append(str(table))
    out = tmp_path / "fit.json"
    assert CliRunner().invoke(cli, ["fit", *tables, "--lane", "sidecar", "-o", str(out)]).exit_code == 0
    truth = server.predictors[0]
    fitted = make_predictor(server.lane, "mixed", truth_roots(), calibration=str(out))
    for users, k in ((1, 5), (4, 5), (16, 3)):
        request = CellRequest(k, users, "token", PROMPT + OUTPUT // 2)
        back, was = fitted.cell(request).step_ms, truth.cell(request).step_ms
        assert back.p05 <= was.mean <= back.p95
        assert back.mean == pytest.approx(was.mean, rel=0.06)


def truth_roots() -> list[Path]:
    from twin.lane.catalogue import catalogue_roots

    return list(catalogue_roots(None))


if __name__ == "__main__":
    for users, requests in COMPARED:
        with tempfile.TemporaryDirectory() as folder:
            print(report(users, requests, OUTPUT_COMPARED, Path(folder) / "run").row(), flush=True)
