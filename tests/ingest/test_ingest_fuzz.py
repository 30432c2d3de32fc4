"""No file, however broken, gives a traceback: a reader returns a finding or raises IngestError with a message.

Each reader is fed mutations of a good file of its format (cut off, bytes changed, numbers replaced by NaN, negative and
huge ones, nesting, doubled lines, other encodings), under its own name so that recognition does not shield it.
"""

from __future__ import annotations

import gzip
import json
import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import ingest_build as build
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from twin.errors import IngestError, TwinError
from twin.fitting.receipts import parse_receipts, receipts_csv
from twin.ingest.describe import document, lines
from twin.ingest.fill import Fill
from twin.ingest.jsonstream import JsonStream
from twin.ingest.reader import words
from twin.ingest.receipts import receipts_of
from twin.ingest.registry import READERS, read_file, read_files
from twin.ingest.source import source
from twin.lane.catalogue import catalogue_roots, load_lane

CONSTRUCTED, REAL = build.FIXTURES / "constructed", build.FIXTURES / "real"
SEEDS: dict[str, Path | None] = {
    "vllm-bench": CONSTRUCTED / "vllm_bench_spec.json",
    "vllm-metrics": CONSTRUCTED / "vllm_metrics_after.prom",
    "vllm-log": CONSTRUCTED / "vllm_server.log",
    "counter-window": REAL / "counter_window_c8.json",
    "sglang-bench": CONSTRUCTED / "sglang_bench.jsonl",
    "sglang-log": CONSTRUCTED / "sglang_server.log",
    "trtllm-bench": CONSTRUCTED / "trtllm_bench_report.json",
    "aiperf": CONSTRUCTED / "aiperf_export.json",
    "inferencex": REAL / "inferencex_agg_kimik2.5_conc4.json",
    "llama-bench": REAL / "llama_bench_readme.json",
    "llama-batched-bench": CONSTRUCTED / "llama_batched_bench.jsonl",
    "llama-server-log": CONSTRUCTED / "llama_server.log",
    "peer-table": CONSTRUCTED / "peer_table.md",
    "step-cost": CONSTRUCTED / "step_cost.csv",
    "nsys-csv": CONSTRUCTED / "nsys_gpu_trace.csv",
    "routing-counts": CONSTRUCTED / "routing_counts.json",
    "acceptance-lengths": REAL / "acceptance_lengths_dsv4_mtp.yaml",
    "torch-trace": None,
    "nsys-sqlite": None,
    "expert-trace": None,
}
BOX = load_lane("sidecar", catalogue_roots())
FILL = Fill("l", "t", 5, "token", 4, 2048, tg_is="per-stream", accept_is="rate", box=BOX)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
HOSTILE = (
    b"NaN", b"-1", b"1e999", b"-Infinity", b"0", b"9" * 400, b"9" * 5000, b"1e-320", b'"x"', b"null", b"true", b"[]",
    b"{}",
    b"[" * 80 + b"]" * 80, b"-0.0", b"1e308", b"99999999999999999999",
)  # fmt: skip


def test_every_reader_is_fuzzed() -> None:
    assert set(SEEDS) == {reader.name for reader in READERS}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    built = {
        "torch-trace": build.torch_trace(folder / "t", steps=5),
        "nsys-sqlite": build.nsys_sqlite(folder / "s", steps=5),
        "expert-trace": build.expert_trace(folder / "e.npz", tokens=20),
    }
    return {name: (path or built[name]).read_bytes() for name, path in SEEDS.items()}


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    kinds = ("cut", "flip", "insert", "number", "double", "drop", "encode", "swap")
    one = st.tuples(
        st.sampled_from(kinds), st.floats(0, 1, exclude_max=True), st.sampled_from(HOSTILE) | st.binary(max_size=8)
    )
    return draw(st.lists(one, min_size=1, max_size=3))


def mutate(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, payload in changes:
        at = int(place * len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ ((payload or b"\x01")[0] or 1)]) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + payload + data[at:]
        elif kind == "number":
            found = list(NUMBER.finditer(data))
            if found:
                chosen = found[int(place * len(found))]
                data = data[: chosen.start()] + payload + data[chosen.end() :]
        elif kind in ("double", "drop", "swap"):
            rows = data.splitlines(keepends=True)
            if rows:
                row = int(place * len(rows))
                if kind == "double":
                    rows.insert(row, rows[row])
                elif kind == "drop":
                    del rows[row]
                else:
                    rows[0], rows[row] = rows[row], rows[0]
            data = b"".join(rows)
        elif kind == "encode":
            text = data.decode("latin-1")
            data = text.encode("utf-16") if place < 0.5 else text.replace("e", "\xe9").encode("latin-1")
    return data


def survives(path: Path, name: str | None) -> None:
    """Read, describe and turn into receipts; anything but a TwinError with a text is a defect."""
    try:
        found = read_file(path, format_name=name)
        lines(found)
        document([found], [])
        table = receipts_csv(receipts_of([found], FILL))
        parse_receipts(table)
        table.encode()
    except TwinError as refusal:
        assert len(str(refusal)) > 10
        assert str(path) in str(refusal) or str(refusal).startswith(("--", "receipts"))


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_mutations(name: str, seeds: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"

    @QUICK
    @given(mutations())
    def check(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(mutate(seeds[name], changes))
        survives(path, name)

    check()


def routing_tables() -> dict[str, bytes]:
    """Counts and a trace of the sidecar lane's checkpoint as text, small enough to fuzz and large enough for receipts."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(9000, rng.dirichlet(np.ones(384)), size=2)
    ids = np.argsort(rng.random((40, 2, 384)), axis=2)[:, :, :6]
    trace = [f"{t},{layer},{','.join(map(str, ids[t, layer]))}" for t in range(40) for layer in range(2)]
    long = [f"{layer},{e},{n}" for layer, row in enumerate(counts) for e, n in enumerate(row)]
    return {
        "counts.json": json.dumps(counts.tolist()).encode(),
        "counts.csv": "\n".join(["layer,expert,count", *long]).encode(),
        "trace.csv": "\n".join(["token,layer," + ",".join(f"e{i}" for i in range(6)), *trace]).encode(),
    }


@pytest.mark.parametrize("name", ["counts.json", "counts.csv", "trace.csv"])
def test_mutated_routing(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "file", routing_tables()[name]
    path.write_bytes(whole)
    found = read_file(path)
    assert receipts_of([found], FILL)

    @QUICK
    @given(mutations())
    def check(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(mutate(whole, changes))
        survives(path, found.format)

    check()


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_any_bytes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"

    @settings(QUICK, max_examples=25)
    @given(st.binary(max_size=300))
    @example(b"")
    @example(b"[" * 100_000)
    @example(b'{"a":' * 50_000)
    @example(b"\x00" * 64)
    @example(b"\xff\xfe{\x00")
    def check(data: bytes) -> None:
        path.write_bytes(data)
        survives(path, name)

    check()


@QUICK
@given(st.text(max_size=400))
def test_any_text_is_recognised_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    survives(path, None)


KEYS = st.sampled_from(
    sorted(
        words("""
    mean_tpot_ms mean_itl_ms spec_decode_num_drafts spec_decode_draft_tokens completed max_concurrency duration
    spec_decode_per_position_acceptance_rates itls ttfts start_times request_rate conc tp isl hw engine performance
    decoding_stats request_info before after unit avg inter_token_latency n_gen avg_ts pp tg pl t_tg counts
    sample_batch_tokens traceEvents ph cat ts dur name args accept_length
""")
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=6),
    max_leaves=25,
)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_any_json_of_known_keys(name: str, tmp_path: Path) -> None:
    import json

    path = tmp_path / "file"

    @QUICK
    @given(JSON)
    def check(value: object) -> None:
        path.write_text(json.dumps(value))
        survives(path, name)

    check()


# Large and adversarial files: bounded memory


def _memory_mib(path: Path, name: str | None = None) -> float:
    tracemalloc.start()
    try:
        survives(path, name)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_a_large_log_is_streamed(tmp_path: Path) -> None:
    """24 MB of log lines; the windows are kept, the lines are not."""
    path = tmp_path / "server.log.gz"
    text = (CONSTRUCTED / "vllm_server.log").read_bytes()
    path.write_bytes(gzip.compress(text + (b"INFO 09-15 10:00:00 [x.py:1] " + b"y" * 90 + b"\n") * 200_000, 1))
    assert _memory_mib(path) < 40


def test_large_values_are_passed_over(tmp_path: Path) -> None:
    """20 MB of generated text before the numbers."""
    path = tmp_path / "bench.json"
    text = (CONSTRUCTED / "vllm_bench_spec.json").read_text()
    texts = ",".join(['"' + 'abc \\" ] } ' * 900 + '"'] * 2000)
    path.write_text('{"generated_texts": [' + texts + "], " + text[1:])
    assert path.stat().st_size > 18 * 2**20
    assert read_file(path, format_name="vllm-bench").cells[0].k == 7
    assert _memory_mib(path, "vllm-bench") < 20


@pytest.mark.parametrize("number", ["-12.5e-3", "7", "0.25", "1E+5", "120"])
def test_a_number_may_lie_across_two_chunks(number: str, tmp_path: Path) -> None:
    """The text is read 256 KiB at a time; the boundary falls before, into and after the number."""
    path = tmp_path / "x.json"
    for before in range(len(number) + 3):
        path.write_text("[" + " " * (2**18 - 1 - before) + number + ", 3]")
        with JsonStream(source(path)) as stream:
            assert [stream.value() for _ in stream.elements()] == [float(number), 3], before


def test_detailed_records_are_folded(tmp_path: Path) -> None:
    """150,000 chunk intervals are 1.2 MB as numbers and 5 MB as Python floats; a quarter of them costs the same."""
    peaks = []
    for chunks in (250, 1000):
        raw = build.vllm_detailed(150, level=10)
        raw["itls"] = [[0.012 + i * 1e-9 for i in range(chunks)]] * 150
        path = tmp_path / f"{chunks}.json"
        path.write_text(json.dumps(raw))
        peaks.append(_memory_mib(path))
    assert max(peaks) < 5 and peaks[1] < 1.5 * peaks[0]


def test_tables_are_folded(tmp_path: Path) -> None:
    """A row a step, and a count a row: what is kept is a mean for each batch, and one matrix."""
    steps = tmp_path / "steps.csv"
    steps.write_text("tokens,ms\n" + "".join(f"{8 * (1 + i % 16)},{10 + i % 16}.5\n" for i in range(20_000)))
    assert _memory_mib(steps) < 2.5
    (first, *others) = read_file(steps).cells
    assert len(others) == 15 and first.step_s == pytest.approx(0.0105) and "1,250 rows" in first.notes[0]
    counts = tmp_path / "counts.csv"
    counts.write_text("layer,expert,count\n" + "".join(f"{i // 384},{i % 384},{'0' * 40}7\n" for i in range(40 * 384)))
    assert _memory_mib(counts) < 2.5


def test_a_metrics_page_of_many_pages_is_refused(tmp_path: Path) -> None:
    page = (CONSTRUCTED / "vllm_metrics_after.prom").read_bytes()
    path = tmp_path / "pages"
    path.write_bytes(page * (5 * 2**20 // len(page)))
    with pytest.raises(IngestError, match="collection of pages"):
        read_file(path)


def test_a_large_trace_is_streamed(tmp_path: Path) -> None:
    """100,000 CPU events around the kernels."""
    path = build.torch_trace(tmp_path / "t.json", steps=6)
    head, tail = path.read_text().split('"traceEvents": [', 1)
    noise = '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 9, "ts": 1.5, "dur": 2.0},' * 100_000
    path.write_text(head + '"traceEvents": [' + noise + tail)
    assert _memory_mib(path) < 20


@pytest.mark.parametrize("size", [10_000, 10_000_000])
def test_deep_nesting_costs_nothing(size: int, tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_bytes(b'{"request_rate": ' + b"[" * size)
    began = time.process_time()
    with pytest.raises(IngestError, match=r"nested|more than|cut off|broken JSON"):
        read_file(path, format_name="vllm-bench")
    # Not a benchmark: a quadratic scan of ten million brackets would take hours.
    assert time.process_time() - began < 20


def test_many_duplicated_labels(tmp_path: Path) -> None:
    path = tmp_path / "page"
    line = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 5.0\n'
    path.write_text(line * 1000)
    with pytest.raises(IngestError, match="appears twice"):
        read_file(path)


def test_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"SpecDecoding metrics: Mean acceptance length: 2.0" + b" " * 6_000_000)
    with pytest.raises(IngestError, match="a line longer than"):
        read_file(path, format_name="vllm-log")


def test_a_gzip_bomb_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"Decode batch, #running-req: 1, \n" * 400_000))
    with pytest.raises(IngestError, match="more than"):
        read_file(path, max_bytes=2**20)


def test_sqlite_with_a_view_that_never_ends(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "x.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
    database.execute(
        "CREATE VIEW StringIds AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
        "SELECT id, id AS value FROM n"
    )
    database.commit()
    database.close()
    with pytest.raises(IngestError, match="no kernel"):
        read_file(path)


def test_zip_that_unpacks_to_much(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("expert_ids.npy", "w") as out:
        for _ in range(40):
            out.write(b"\x00" * 2**20)
    # The limit is on what is declared, before anything is unpacked.
    with pytest.raises(IngestError, match="unpacks to more than"):
        read_file(path, max_bytes=2**22)


def _pages(folder: Path, text: bytes) -> Iterator[Path]:
    for name in ("a", "b"):
        path = folder / name
        path.write_bytes(text)
        yield path


def test_two_mutated_pages(seeds: dict[str, bytes], tmp_path: Path) -> None:
    first, second = _pages(tmp_path, seeds["vllm-metrics"])

    @QUICK
    @given(mutations())
    def check(changes: list[tuple[str, float, bytes]]) -> None:
        second.write_bytes(mutate(seeds["vllm-metrics"], changes))
        try:
            found = read_files([first, second], format_name="vllm-metrics")
            receipts_of(found, FILL)
        except TwinError as refusal:
            assert len(str(refusal)) > 10

    check()
