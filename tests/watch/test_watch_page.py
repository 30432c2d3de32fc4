"""Pages of servers that restart, lack series, or are no servers at all; reading them over HTTP; records and exports."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from watch_support import lane_server, loaded, watch_of

from twin.cli.main import cli
from twin.errors import IngestError, ReceiptError, TwinError
from twin.fitting.receipts import read_receipts
from twin.lane.catalogue import catalogue_roots
from twin.watch.client import PageClient, metrics_url
from twin.watch.export import Exporter
from twin.watch.page import difference, parse_page, restarted
from twin.watch.record import append_receipts, propose, receipts_of
from twin.watch.show import line, to_json


@given(st.text(max_size=300))
def test_any_text_is_a_page_or_a_refusal(text: str) -> None:
    try:
        parse_page(text, 0.0)
    except IngestError as error:
        assert "page" in str(error)


@pytest.mark.parametrize(
    "missing",
    ["inter_token", "iteration_tokens", "spec_decode", "time_to_first", "generation", "num_requests", "per_pos"],
)
def test_missing_series_leave_out_what_needs_them(missing: str) -> None:
    engine = loaded(4)

    def fetch() -> str:
        return "\n".join(
            row for row in engine.page().splitlines() if f"vllm:{missing}" not in row and missing not in row
        )

    seen = list(watch_of(engine, fetch).run(30.0))
    assert len(seen) == 6
    assert not any(o.alarms for o in seen)
    for observation in seen:
        line(observation)
        json.dumps(to_json(observation), allow_nan=False)
    if missing == "inter_token":
        assert seen[-1].step is None
    if missing == "spec_decode":
        assert seen[-1].acceptance is None and seen[-1].step is not None


def test_a_restart_is_noticed_and_survived() -> None:
    engines = [loaded(4), loaded(4, seed=9)]
    watch = watch_of(engines[0], lambda: engines[0].page())
    before = list(watch.run(20.0))
    engines[0] = engines[1]
    watch.now_s, watch.sleep = (lambda: engines[1].now_s), (lambda s: engines[1].advance(engines[1].now_s + s))
    after = list(watch.run(20.0))
    assert watch.restarts == 1
    assert "restarted" in after[0].notice and after[0].window is None
    assert all(o.window is not None and o.step_ratio for o in [*before, *after[1:]])


def test_failed_readings_are_survived() -> None:
    engine, calls = loaded(4), [0]

    def fetch() -> str:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise IngestError("connection refused.")
        return engine.page()

    watch = watch_of(engine, fetch)
    seen = list(watch.run(60.0))
    assert watch.polls_failed == 4
    assert sum(o.window is not None for o in seen) == 8


def test_an_idle_server_says_nothing() -> None:
    engine = loaded(0)
    seen = list(watch_of(engine).run(10.0))
    assert all(o.notice.startswith("idle") for o in seen)


def test_counters_that_fall_are_a_restart() -> None:
    first = parse_page('vllm:generation_tokens_total{engine="0"} 10\n', 0.0)
    again = parse_page('vllm:generation_tokens_total{engine="0"} 4\n', 5.0)
    assert "generation_tokens_total fell" in restarted(first, again)
    assert restarted(first, first) == ""
    assert difference(first, first).output_tok_s is None


@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("http://h:8000", "http://h:8000/metrics"), ("http://h:8000/v1/", "http://h:8000/metrics"),
        ("h:8000", "http://h:8000/metrics"), ("https://h/a/metrics", "https://h/a/metrics"),
    ],
)  # fmt: skip
def test_urls(given_url: str, expected: str) -> None:
    assert metrics_url(given_url) == expected


@pytest.mark.parametrize("bad", ["", "file:///etc/passwd", "ftp://h/x", "http://", "http://h:port"])
def test_urls_that_are_none(bad: str) -> None:
    with pytest.raises(IngestError, match="not the address"):
        metrics_url(bad)


@contextmanager
def _answering(answer: Callable[[], tuple[int, bytes]]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_retries_back_off_and_then_give_up() -> None:
    answers, pauses = iter([(503, b""), (503, b""), (200, b"ok")]), []
    with _answering(lambda: next(answers)) as url:
        assert PageClient(url, sleep=pauses.append).fetch() == "ok"
    assert pauses == [0.5, 1.0]
    pauses.clear()
    with pytest.raises(IngestError, match="metrics"):
        PageClient("http://127.0.0.1:9", timeout_s=0.5, sleep=pauses.append).fetch()
    assert pauses == [0.5, 1.0, 2.0]
    with _answering(lambda: (404, b"")) as url, pytest.raises(IngestError, match="404"):
        PageClient(url, sleep=pauses.append).fetch()
    assert len(pauses) == 3


def test_the_command_line_against_a_server(tmp_path: Path) -> None:
    """`twin watch` in its own loop over HTTP: exit 3 on drift, receipts appended, JSON on stdout."""
    engine = loaded(4, step_factor=1.3, output=400)

    def answer() -> tuple[int, bytes]:
        engine.advance(engine.now_s + 20.0)
        return 200, engine.page().encode()

    table = tmp_path / "receipts.csv"
    with _answering(answer) as url:
        arguments = ["watch", url, "--lane", "sidecar", "--traffic", "mixed", "--interval", "50 ms", "--for", "2500 ms"]
        result = CliRunner().invoke(cli, [*arguments, "--json", "--record", str(table), "--prometheus", "0"])
    assert isinstance(result.exception, TwinError) and result.exception.exit_code == 3
    rows = [json.loads(row) for row in result.stdout.splitlines() if row.startswith("{")]
    assert any(a["factor"] == "step time" for row in rows for a in row["alarms"])
    assert len(read_receipts(table)) >= 2


def test_records_and_a_proposal(tmp_path: Path) -> None:
    engine = loaded(2, output=3000, step_factor=1.1)
    seen = list(watch_of(engine).run(60.0))
    receipts = [r for o in seen for r in receipts_of(o, lane_server(), "mixed", "http://h/metrics")]
    table = tmp_path / "watched.csv"
    append_receipts(table, receipts[:2])
    append_receipts(table, receipts[2:])
    assert [r.id for r in read_receipts(table)] == [r.id for r in receipts]
    fitted = [r for r in receipts if r.use == "fit" and r.quantity == "step_time"]
    assert fitted and all(r.definition == "chunk_interval" for r in fitted)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ReceiptError, match="--record"):
        append_receipts(tmp_path / "other.csv", receipts)
    out = tmp_path / "proposal.json"
    lines = propose(receipts, lane_server(), catalogue_roots(None), out)
    assert "unchanged" in lines[0] and out.exists()
    with pytest.raises(TwinError, match="exists already"):
        propose(receipts, lane_server(), catalogue_roots(None), out)
    with pytest.raises(ReceiptError, match="no window"):
        propose([], lane_server(), catalogue_roots(None), tmp_path / "none.json")


def test_predictions_are_exported() -> None:
    exporter = Exporter(0, "sidecar")
    try:
        engine = loaded(4, step_factor=1.2)
        watch = watch_of(engine)
        for observation in watch.run(60.0):
            exporter.show(observation, watch)
        page = PageClient(f"http://127.0.0.1:{exporter.port}").fetch()
    finally:
        exporter.close()
    assert 'twin_step_seconds{kind="predicted",lane="sidecar"}' in page
    assert 'twin_drift_alarms{factor="step time",lane="sidecar"}' in page
