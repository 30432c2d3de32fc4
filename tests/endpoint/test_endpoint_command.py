"""`twin serve` as people start it: what it says, what it refuses, what it imports, and that it stops."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from click.testing import CliRunner

from twin.cli.main import cli
from twin.endpoint.run import bind
from twin.errors import TwinError


def test_serve_and_stop() -> None:
    command = [sys.executable, "-m", "twin.cli.main", "serve", "--lane", "sidecar", "--traffic", "mixed", "--port", "0"]
    with subprocess.Popen([*command, "--speed", "max"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "metrics at" not in said:
            said += process.stderr.readline()
            assert process.poll() is None, said
        found = re.search(r"(http://127\.0\.0\.1:\d+)/v1", said)
        assert found is not None
        body = {"prompt": "a b c", "max_tokens": 5, "ignore_eos": True}
        answer = httpx.post(f"{found[1]}/v1/completions", json=body, trust_env=False, timeout=20)
        assert answer.json()["usage"]["completion_tokens"] == 5
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--speed", "warp"], "--speed"),
        (["--speed", "0"], "--speed"),
        (["--traffic", "nothing"], "nothing"),
        (["--traffic", "mixed:x"], "weight"),
        (["--acceptance-shift", "x"], "POSITION:CHANGE"),
        (["--limit", "max_seqz=3"], "max_seq"),
        (["--max-body", "8"], "no unit"),
        (["--host", "no.such.host.invalid"], "cannot listen"),
    ],
)
def test_refusals_say_why(flags: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["serve", "--lane", "sidecar", "--port", "0", *flags])
    assert isinstance(result.exception, TwinError), result.output
    assert says in str(result.exception)


def test_chunks_leave_at_once() -> None:
    """Connections are without Nagle's algorithm, and say TCP, without which asyncio would not see to it."""
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ["--port", str(taken.getsockname()[1])]
        result = CliRunner().invoke(cli, ["serve", "--lane", "sidecar", *flags])
    assert "cannot listen on 127.0.0.1" in str(result.exception)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(cli, ["serve", "--lane", "sidecar"])
    assert isinstance(result.exception, TwinError)
    assert "twin-lane[web]" in str(result.exception)


def test_help_imports_no_server() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from twin.cli.main import cli;"
        "r = [CliRunner().invoke(cli, [c, '--help']) for c in ('serve', 'watch')];"
        "assert all(x.exit_code == 0 for x in r);"
        "print([m for m in ('starlette', 'uvicorn', 'numpy', 'simpy', 'httpx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
