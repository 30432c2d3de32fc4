"""AIPerf drives the endpoint, its report agrees with the simulation, and its file fits the lane it came from.

AIPerf (`pip install aiperf`, in an environment of its own: it brings a hundred packages) is run when it is on the PATH
or named by TWIN_AIPERF. It runs without a network given a tokenizer in a folder, which is made here.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from endpoint_support import endpoint, lane_server

from twin.cli.main import cli
from twin.endpoint.clock import WallClock
from twin.endpoint.engine import LiveEngine
from twin.planning.predict import CellRequest, make_predictor
from twin.planning.server import serve
from twin.planning.study import Arrivals, Extent, TrafficShare

AIPERF = os.environ.get("TWIN_AIPERF") or shutil.which("aiperf")
pytestmark = pytest.mark.skipif(AIPERF is None, reason="aiperf is not installed; name it with TWIN_AIPERF")
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


def _profile(url: str, users: int, requests: int, folder: Path) -> Path:
    draw = random.Random(users)
    prompts = [" ".join(draw.choice(WORDS) for _ in range(PROMPT)) for _ in range(requests)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": p}) + "\n" for p in prompts))
    out = folder / f"c{users}"
    command = [
        str(AIPERF), "profile", "-m", "sidecar", "--url", url, "--endpoint-type", "chat", "--streaming",
        "--concurrency", str(users), "--request-count", str(requests), "--input-file", str(folder / "prompts.jsonl"),
        "--custom-dataset-type", "single_turn", "--tokenizer", str(folder / "tokenizer"), "--use-server-token-count",
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{OUTPUT}", "--ui", "none",
        "--artifact-dir", str(out), "--random-seed", "1",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    found = folder / f"aiperf-c{users}.json"
    shutil.copy(out / "profile_export_aiperf.json", found)
    return found


def test_aiperf_reports_the_simulation_and_its_file_fits_the_lane(tmp_path: Path) -> None:
    _tokenizer(tmp_path / "tokenizer")
    server, tables = lane_server(), []
    shares = (TrafficShare(name="mixed", prompt_tokens=PROMPT, output_tokens=OUTPUT),)
    for users, requests, k in ((1, 8, 5), (4, 24, 5), (16, 64, 3)):
        with endpoint(LiveEngine(server, seed=3, model="sidecar"), WallClock(1.0)) as url:
            export = _profile(url, users, requests, tmp_path)
        got = json.loads(export.read_text())
        run = serve(
            replace(server, shares=shares), Arrivals(kind="closed", users=users), Extent(requests=requests), seed=3
        )
        rows = run.collector.requests.measures()
        # AIPerf's inter-token latency is TPOT, its inter-chunk latency the gap between verify steps.
        assert got["inter_token_latency"]["avg"] == pytest.approx(rows["tpot_s"].mean() * 1e3, rel=0.03)
        assert got["inter_chunk_latency"]["avg"] == pytest.approx(run.result.itl_s.mean * 1e3, rel=0.03)
        # Its own processes pass a request on in some 5 ms (up to 20 on a busy machine), on top of the 3 %.
        assert got["request_latency"]["avg"] == pytest.approx(rows["e2e_s"].mean() * 1e3, rel=0.03, abs=30.0)
        throughput = requests * OUTPUT / (rows["finish_s"].max() - rows["arrival_s"].min())
        assert got["output_token_throughput"]["avg"] == pytest.approx(throughput, rel=0.05)
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
