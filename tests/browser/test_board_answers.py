"""The board without a browser: the answers equal the command line's, and what must be refused is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("jinja2")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from twin.board.app import make_app
from twin.board.security import MAX_BODY_BYTES, Guard
from twin.cli.main import cli
from twin.lane.catalogue import catalogue_roots
from twin.planning.scenario import read_scenario

ROOTS = catalogue_roots()
BASE = "http://127.0.0.1:8765"
RECEIPTS = (ROOTS[-1] / "calibration" / "receipts" / "mission.csv").read_text()


@pytest.fixture(scope="module")
def board() -> TestClient:
    return TestClient(make_app(ROOTS), base_url=BASE)


def asked(board: TestClient, path: str, **query: str) -> dict:
    response = board.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


CELLS = [
    ("sidecar:k=5,traffic=codegen-padded", "--lane sidecar --k 5 --traffic codegen-padded"),
    (
        "tp4:k=7,verification=block,streams=4,context=16384",
        "--lane tp4 --k 7 --verification block -c 4 --context 16384",
    ),
    (
        "sidecar:placement.hot=310,engine.host_gap=1ms",
        "--lane sidecar --set placement.hot=310 --set engine.host_gap=1ms",
    ),
]


@pytest.mark.parametrize(("spec", "arguments"), CELLS)
def test_a_prediction_is_that_of_twin_predict(board: TestClient, spec: str, arguments: str) -> None:
    found = asked(board, "/api/answer", a=spec)["a"]["prediction"]
    printed = json.loads(CliRunner().invoke(cli, ["predict", *arguments.split(), "--json"]).output)
    # The command adds how it was called; the prediction is the same.
    assert found == {key: printed[key] for key in found} and set(printed) >= {"command_line", "settings"}


def test_the_command_and_the_file_reproduce_the_page(board: TestClient, tmp_path: Path) -> None:
    a, b = "sidecar:k=5,traffic=codegen-padded,engine.launches_per_step=600", "tp4:k=7,traffic=codegen-padded"
    found = asked(board, "/api/answer", a=a, b=b)
    import shlex

    words = shlex.split(asked(board, "/api/export", a=a, b=b)["command"])
    printed = json.loads(CliRunner().invoke(cli, [*words[1:], "--json"]).output)
    for key in ("tok_s", "tokens_per_step", "steps_per_s", "a", "b"):
        assert found["explanation"][key] == printed[key]
    file = tmp_path / "s.toml"
    file.write_text(asked(board, "/api/export", a=a, b=b)["toml"])
    assert [s.spec() for s in read_scenario(file).settings] == [found["a"]["spec"], found["b"]["spec"]]


def test_the_options_name_every_lane_with_its_controls(board: TestClient) -> None:
    options = asked(board, "/api/options")
    lanes = {lane["name"]: lane for lane in options["lanes"]}
    keys = {control["key"] for control in lanes["sidecar"]["controls"]}
    assert {"placement.hot", "links.sidecar.latency", "engine.launches_per_step"} <= keys
    for lane in options["lanes"]:
        for control in lane["controls"]:
            assert control["low"] <= control["value"] <= control["high"], (lane["name"], control)
    assert "codegen-padded" in options["traffic"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("sidecar:k=99", "0 (plain decoding) to 64"),
        ("sidecr", "did you mean 'sidecar"),
        ("sidecar:placement.hot=384", "does not fit"),
        ("sidecar:traffic=/etc/passwd", "plain name"),
        ("sidecar:links.sidecar.latency=8", "has no unit"),
        ("x" * 5000, "5000 characters"),
        ("", "a is missing"),
    ],
)
def test_bad_input_is_an_answer_with_the_reason(board: TestClient, spec: str, said: str) -> None:
    assert said in asked(board, "/api/answer", a=spec)["error"]


@pytest.mark.parametrize("key", ["lane.calibration=/tmp/x.json", "lane.name=x", "x.y=1"])
def test_a_page_cannot_name_files_or_change_what_a_lane_is(board: TestClient, key: str) -> None:
    assert "sets parts of a lane only" in asked(board, "/api/answer", a=f"sidecar:{key}")["error"]


def test_receipts_are_compared_and_a_broken_table_is_explained(board: TestClient) -> None:
    found = board.post("/api/residuals", params={"a": "sidecar"}, content=RECEIPTS).json()
    assert len(found["rows"]) + found["left_out"] == RECEIPTS.strip().count("\n")
    assert found["left_out"] == 3  # ratios between lanes
    assert all(row["in_fit"] for row in found["rows"])
    broken = board.post("/api/residuals", params={"a": "sidecar"}, content="id,lan\n1,2\n").json()
    assert "unknown column 'lan'; did you mean 'lane'" in broken["error"]
    assert "not UTF-8" in board.post("/api/residuals", params={"a": "sidecar"}, content=b"\xff\xfe").json()["error"]


def test_the_page_loads_only_its_own_files(board: TestClient) -> None:
    import re

    page = board.get("/")
    for ref in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert ref.startswith(("#", "data:,", "/assets/")), ref
        if ref.startswith("/assets/"):
            assert board.get(ref).status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1"])
def test_another_name_for_this_address_is_refused(board: TestClient, host: str) -> None:
    for path in ("/", "/api/options", "/assets/board.js"):
        assert board.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:1", "[::1]:8765", "LOCALHOST"])
def test_loopback_names_are_answered(board: TestClient, host: str) -> None:
    assert board.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "file://"])
def test_another_page_is_refused(board: TestClient, origin: str) -> None:
    for method in ("get", "post"):
        response = getattr(board, method)("/api/residuals", params={"a": "sidecar"}, headers={"origin": origin})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
    assert board.get("/api/options", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert board.get("/api/options", headers={"origin": BASE, "sec-fetch-site": "same-origin"}).status_code == 200


def test_sizes_are_bounded(board: TestClient) -> None:
    assert board.post("/api/residuals", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    chunks = (b"x" * 2**16 for _ in range(MAX_BODY_BYTES // 2**16 + 2))  # no content-length
    assert board.post("/api/residuals", content=chunks).status_code == 413
    assert board.get("/api/answer", params={"a": "x" * 20_000}).status_code == 414
    head, first = RECEIPTS.splitlines()[:2]
    many = "\n".join([head, *(first.replace("seed-01", f"r{i}") for i in range(301))])
    answer = board.post("/api/residuals", params={"a": "sidecar"}, content=many).json()
    assert "has 301 receipts; the page takes 300" in answer["error"]


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets//etc/passwd"]
)
def test_assets_stay_in_their_folder(board: TestClient, path: str) -> None:
    assert board.get(path).status_code == 404


def test_the_board_listens_on_loopback_unless_told() -> None:
    from twin.cli.board import command

    assert next(p for p in command.params if p.name == "host").default == "127.0.0.1"
    assert Guard.__init__.__defaults__ == (("127.0.0.1", "localhost", "::1"),)
