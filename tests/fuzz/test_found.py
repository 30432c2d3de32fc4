"""What the fuzzer found once, kept as cases of their own: each must be refused with a reason that names the place."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fuzz.cases import Case
from fuzz.run import run_case
from fuzz.servers import Reply, hostile, small_world
from twin.cli.main import cli, main
from twin.errors import TwinError

ROOT = Path(__file__).resolve().parents[2]


def refusal(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(w) for w in words])
    assert isinstance(result.exception, TwinError), (result.output, result.exception)
    return str(result.exception)


def test_a_lane_without_a_primary_device(catalogue: Path) -> None:
    text = (ROOT / "hardware" / "lanes" / "v4-flash-ds4-gb10.toml").read_text()
    (catalogue / "hardware" / "lanes" / "v4-flash-ds4-gb10.toml").write_text(
        text.replace('primary = "gb10"', 'host = "gb10"')
    )
    said = refusal("predict", "--lane", "v4-flash-ds4-gb10", "--catalogue", catalogue)
    assert "devices.primary" in said and "v4-flash-ds4-gb10.toml" in said


@pytest.mark.parametrize("folder", ["lanes", "devices"])
def test_a_number_of_five_thousand_digits(catalogue: Path, folder: str) -> None:
    name = "tp4" if folder == "lanes" else "rtx-pro-6000-max-q"
    path = catalogue / "hardware" / folder / f"{name}.toml"
    path.write_text("x = " + "9" * 5000)
    assert str(path) in refusal("predict", "--lane", "tp4", "--catalogue", catalogue)


@pytest.mark.parametrize("key", ["log_factor", "log_sd", "prior_log_sd"])
def test_a_calibration_of_absurd_factors(tmp_path: Path, key: str) -> None:
    fit = json.loads((ROOT / "calibration" / "fits" / "tp4.json").read_text())
    fit["parameters"][0][key] = 1e308
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fit))
    said = refusal("predict", "--lane", "tp4", "--calibration", path)
    assert key in said and str(path) in said


def test_a_covariance_of_absurd_size(tmp_path: Path) -> None:
    fit = json.loads((ROOT / "calibration" / "fits" / "tp4.json").read_text())
    fit["covariance"][0][0] = 1e300
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fit))
    assert "covariance" in refusal("predict", "--lane", "tp4", "--calibration", path)


def test_more_routes_than_can_be_counted(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps([[1e300, 1.0, 2.0, 3.0]] * 2))
    assert str(path) in refusal("placement", path, "--top-k", "2", "--hot", "2")


def test_a_hot_map_of_a_great_many_empty_layers(tmp_path: Path) -> None:
    counts = ROOT / "tests/ingest/fixtures/constructed/routing_counts.json"
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"kind": "hot_map", "schema_version": 1, "experts": 1 << 20, "hot": [[]] * 100_000}))
    assert str(path) in refusal("placement", counts, "--top-k", "2", "--map", path)


def said(*words: str, replies: tuple[Reply, ...] = ()) -> str:
    """What the program prints, through its entry point, with `{url}` as a server of `replies`."""
    out = io.StringIO()
    with hostile(replies) as url, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), small_world():
        argv, sys.argv = sys.argv, ["twin", *(word.replace("{url}", url) for word in words)]
        try:
            main()
        except SystemExit:
            pass
        finally:
            sys.argv = argv
    return out.getvalue()


WATCH = ("watch", "{url}", "--lane", "tp4", "--once", "--timeout", "0.2 s", "--interval", "10 ms")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 4000, "trickle"), "took longer than 0.2 s"),
        (Reply(b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 4000, "trickle"), "took longer than 0.2 s"),
        (Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\nvllm:x 1"), "cut off, 82 bytes"),
        (Reply(b"HTTP/1.1 302 F\r\nLocation: ftp://127.0.0.1/x\r\n\r\n"), "sends to 'ftp:"),
        (Reply(b"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\n\r\n"), "not allowed"),
        (Reply(b"HTTP/1.1 302 F\r\nLocation: http://[\r\n\r\n"), "Invalid IPv6"),
        (Reply(b"HTTP/1.1 404 \x1b[31m\r\n\r\n"), "HTTP 404"),
        (Reply(b"HTTP/1.1 200 OK\r\n\r\n" + b"vllm:x 1\n" * 4000, "flood"), "larger than 32 MiB"),
    ],
    ids=["slow head", "slow body", "cut off", "to ftp", "to a file", "to nowhere", "escape sequence", "flood"],
)
def test_a_watched_server_that_answers_badly(reply: Reply, reason: str) -> None:
    text = said(*WATCH, replies=(reply,))
    assert reason in text and "no interval could be compared" in text
    assert "Traceback" not in text and "\x1b" not in text and "passwd:" not in text


@pytest.mark.parametrize("flag", ["--timeout", "--interval", "--for", "--false-alarm-every"])
@pytest.mark.parametrize("value", ["1e300 s", "0 s", "-1 s", "1e-300 s"])
def test_times_of_a_watch_that_no_clock_has(flag: str, value: str) -> None:
    assert f"{flag} '{value}': expected a time from 1 ms" in refusal(
        "watch", "127.0.0.1:1", "--lane", "tp4", flag, value
    )


@pytest.mark.parametrize("url", ["日本語", "http://\u202ex", "http://a b", "ftp://x", "file:///etc/passwd"])
def test_addresses_that_are_none(url: str) -> None:
    assert "is not the address of a server" in refusal("watch", url, "--lane", "tp4", "--once")


@pytest.mark.parametrize("command", [("serve", "--lane", "tp4"), ("board",)])
@pytest.mark.parametrize("host", ["..3", "a" * 80 + ".b"])
def test_hosts_that_are_none(command: tuple[str, ...], host: str) -> None:
    assert "cannot listen on" in refusal(*command, "--port", "0", "--host", host)


@pytest.mark.filterwarnings("ignore")
def test_an_origin_that_is_no_address_is_another_page() -> None:
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://[\r\n\r\n"
    assert run_case(Case("board", ["board", "--port", "0"], requests=[request])) is None


@pytest.mark.filterwarnings("ignore")
def test_a_client_that_leaves_before_its_body_is_sent() -> None:
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
    words = ["serve", "--lane", "tp4", "--port", "0", "--speed", "max"]
    assert run_case(Case("serve", words, requests=[request])) is None


def cleaned(tmp_path: Path, row: str, rule: str) -> str:
    """The log of `twin receipts clean` for one row, or its refusal."""
    (tmp_path / "runs.csv").write_text("id,lane,k,workload,concurrency,step_ms,tok_s_aggregate,notes\n" + row)
    (tmp_path / "rules.toml").write_text("[[rule]]\n" + rule)
    words = [
        "receipts",
        "clean",
        tmp_path / "runs.csv",
        "-o",
        tmp_path / "out",
        "--log",
        tmp_path / "log.csv",
        "--force",
    ]
    result = CliRunner().invoke(cli, [str(w) for w in words])
    assert result.exception is None or isinstance(result.exception, TwinError), result.exception
    return str(result.exception) if result.exception else (tmp_path / "log.csv").read_text()


def test_a_row_outside_what_a_receipt_can_be_is_logged(tmp_path: Path) -> None:
    assert "a,tp4,0,k: Input should be" in cleaned(tmp_path, "a,x,18446744073709551616,w,1,5\n", 'lane = "tp4"')
    assert 'a,tp4,0,"k is' in cleaned(tmp_path, f"a,x,{'9' * 400},w,1,5\n", 'lane = "tp4"')
    assert "a,tp4,0," in cleaned(tmp_path, "a,x,0,w,1,,0\n", 'lane = "tp4"')
    assert "a,tp4," in cleaned(tmp_path, "a,x,3,w,1,5,,drafted 0 accepted 7\n", 'lane = "tp4"')


@pytest.mark.parametrize("lane", ["../../out", "a/b", ".hidden"])
def test_a_lane_of_a_rule_that_would_leave_the_folder(tmp_path: Path, lane: str) -> None:
    assert "is no name of a lane" in cleaned(tmp_path, "a,x,3,w,1,5\n", f'lane = "{lane}"')


@pytest.mark.parametrize("pattern", ["(", "(a+)+$", "a*a*a*a*b", "x" * 501])
def test_a_pattern_of_a_rule_that_cannot_be_searched(tmp_path: Path, pattern: str) -> None:
    said = cleaned(tmp_path, "a,x,3,w,1,5\n", f'lane = "tp4"\nmatch = {{ workload = "{pattern}" }}')
    assert "match" in said and ("no regular expression" in said or "for ever" in said)


def test_a_note_cannot_drive_the_terminal(catalogue: Path) -> None:
    path = catalogue / "hardware" / "lanes" / "mine.toml"
    text = (ROOT / "hardware" / "lanes" / "tp4.toml").read_text()
    text = text.replace('name = "tp4"', 'name = "mine"')
    path.write_text(text.replace('title = "', 'title = "\\u001b[2J\\u009b1A', 1))
    printed = said("show", "lane", "mine", "--catalogue", str(catalogue)) + said(
        "predict", "--lane", "mine", "--catalogue", str(catalogue)
    )
    assert "\\x1b[2J\\x9b1A" in printed
    assert "\x1b" not in printed and "\x9b" not in printed


@pytest.mark.parametrize("output", [""])
def test_an_output_without_a_name(output: str) -> None:
    assert "is a folder" in refusal("trace", "--lane", "tp4", "-o", output, "--force")
    assert "is a folder" in refusal("trace", "--lane", "tp4", "-o", output)


@pytest.mark.filterwarnings("error")
def test_a_client_that_leaves_in_the_middle_of_a_table() -> None:
    """The board answers nobody, and raises nothing: what an uploader's broken line left is no table."""
    import asyncio

    from twin.board.app import make_app
    from twin.lane.catalogue import catalogue_roots

    parts = iter([{"type": "http.request", "body": b"id,", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return next(parts)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/api/residuals", "raw_path": b"/api/residuals", "query_string": b"lane=tp4", "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"9"), (b"content-type", b"text/csv")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(make_app(catalogue_roots(None))(scope, receive, send))
    assert sent[0]["status"] == 400


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_number_that_is_none(tmp_path: Path, number: str) -> None:
    result = CliRunner().invoke(
        cli, ["union", "--checkpoint", "deepseek-v4.1-flash", "--beta", number, "--tokens", "2"]
    )
    assert result.exit_code == 2 and "--beta" in result.output


def test_a_stream_number_of_five_thousand_digits(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{1000 * i},500,{i},k{i % 3},{'9' * 5000}" for i in range(40)]
    path.write_text("\n".join(["Start (ns),Duration (ns),CorrId,Name,Strm", *rows]) + "\n")
    result = CliRunner().invoke(cli, ["import", str(path), "--json"])
    assert result.exception is None or isinstance(result.exception, (TwinError, SystemExit))


@pytest.mark.parametrize("title", ["[/]", "[/bold] x", "a [b] c"])
def test_brackets_in_a_catalogue_are_text(catalogue: Path, title: str) -> None:
    path = catalogue / "hardware" / "lanes" / "mine.toml"
    text = (ROOT / "hardware" / "lanes" / "tp4.toml").read_text().replace('name = "tp4"', 'name = "mine"')
    path.write_text(text.replace('title = "', f'title = "{title}', 1))
    for command in (["show", "lane", "mine"], ["lanes"], ["predict", "--lane", "mine"], ["check"]):
        result = CliRunner().invoke(cli, [*command, "--catalogue", str(catalogue)])
        assert result.exception is None or isinstance(result.exception, (TwinError, SystemExit)), result.exception
        if command[0] in ("show", "lanes"):
            assert title in result.output
