"""Trace readers: real slices, scaling, and files that must be refused with a message a person can act on."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.errors import TrafficError
from twin.serving.trace import Trace, TraceRow, replay
from twin.serving.trace_formats import open_trace

DATA = Path(__file__).parent / "data"
AZURE = DATA / "azure_conv_2023_first300.csv"
MOONCAKE = DATA / "mooncake_conversation_first400.jsonl.gz"


def write(tmp_path: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure() -> None:
    trace = open_trace(AZURE)
    rows = list(trace.rows())
    assert trace.format == "azure"
    assert len(rows) == 300
    assert rows[0] == TraceRow(0.0, 374, 44)
    # 18:15:46.6805900 to 18:15:50.9951690
    assert rows[1].time_s == pytest.approx(4.314579, abs=1e-5)
    assert all(a.time_s <= b.time_s for a, b in pairwise(rows))


def test_azure_2024_dates_carry_a_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
    )
    rows = list(open_trace(write(tmp_path, text)).rows())
    assert rows[1].time_s == pytest.approx(0.99007, abs=1e-6)


def test_mooncake() -> None:
    trace = open_trace(MOONCAKE)
    rows = list(trace.rows())
    assert (trace.format, trace.block_tokens, len(rows)) == ("mooncake", 512, 400)
    # 6758 tokens are 13 whole blocks; the name of the 14th, partial one is not a reusable block.
    assert rows[0].prompt_tokens == 6758
    assert rows[0].blocks == tuple(range(13))


def test_burstgpt_leaves_failed_calls_out(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,a,1.0,ChatGPT,472,18,490,Conversation log\n45,b,2.0,ChatGPT,1087,0,1087,Conversation log\n"
        "118,a,1,GPT-4,417,276,693,Conversation log\n"
    )
    trace = open_trace(write(tmp_path, text))
    assert trace.format == "burstgpt"
    assert list(trace.rows()) == [TraceRow(0.0, 472, 18, (), 0), TraceRow(113.0, 417, 276, (), 0)]
    assert trace.notices() == ["trace.csv: 1 rows left out: no prompt or no output tokens."]


def test_plain_csv_with_a_byte_order_mark_and_gzip(tmp_path: Path) -> None:
    text = "﻿arrival_s,prompt_tokens,output_tokens\n10.5,100,5\n\n11,200,6\n".encode()
    rows = [TraceRow(0.0, 100, 5), TraceRow(0.5, 200, 6)]
    assert list(open_trace(write(tmp_path, text)).rows()) == rows
    assert list(open_trace(write(tmp_path, gzip.compress(text), "t.csv.gz")).rows()) == rows


def _row(timestamp: int) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": 5, "output_length": 3}) + "\n"


HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        (HEADER, "no requests"),
        ("a,b,c\n1,2,3\n", "no known columns"),
        ("arrival_s,prompt_tokens,output_tokenz\n1,2,3\n", "did you mean 'output_tokenz'"),
        (HEADER + "5,10,10\n4,10,10\n", "line 3: 1 s earlier"),
        (HEADER + "-5,10,10\n", "line 2: the time '-5'"),
        (HEADER + "nan,10,10\n", "line 2: the time 'nan'"),
        (HEADER + "1,-10,10\n", "line 2, prompt_tokens: '-10'"),
        (HEADER + "1,10.5,10\n", "'10.5' is not a number of tokens"),
        (HEADER + "1,10,1e300\n", "output_tokens: '1e300'"),
        (HEADER + "1,10,inf\n", "'inf'"),
        (HEADER + "1,ten,10\n", "'ten'"),
        (HEADER + "1,10\n", "2 cells, the header has 3"),
        (HEADER + "1,10,10,7\n", "4 cells"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "not a date such as"),
        (b"\xff\xfe\x00bad\x00\n", "not UTF-8"),
        (b"\x1f\x8b\x08\x00garbage", "cannot be read"),
        ("x" * (2**20 + 5), "longer than"),
        ('{"timestamp": 0, "input_length": 5, "output_length"', "not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_len": 3}\n', "'output_len'"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": ["a"]}\n', "whole numbers"),
        ('{"timestamp": 0, "input_length": true, "output_length": 3}\n', "input_length: True"),
        (_row(9) + _row(8), "earlier"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "not JSON"),
    ],
)  # fmt: skip
def test_bad_traces_are_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(TrafficError) as refused:
        list(open_trace(write(tmp_path, text)).rows())
    assert says in str(refused.value)
    assert "trace.csv" in str(refused.value)
    assert len(str(refused.value)) < 700


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        open_trace(tmp_path / "nowhere.csv")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", HEADER.encode(), b'{"timestamp": 0, "input_length": ']))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, body: bytes, start: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t"
    path.write_bytes(start + body)
    try:
        for row in open_trace(path).rows():
            assert row.time_s >= 0
            assert row.prompt_tokens > 0
    except TrafficError as refused:
        assert str(path) in str(refused)


def test_reading_streams(tmp_path: Path) -> None:
    """The first rows come without reading the rest: the broken row at the end is not seen."""
    path = write(tmp_path, HEADER + "".join(f"{i},10,10\n" for i in range(50_000)) + "broken\n")
    assert len(list(islice(open_trace(path).rows(), 1000))) == 1000


def endless(n: int = 10_000) -> Trace:
    def rows(dropped: Counter[str]) -> Iterator[TraceRow]:
        return (TraceRow(i * 0.5, 10, 5, (i,)) for i in range(n))

    return Trace("made", "plain", rows)


@pytest.mark.parametrize("factor", [0.25, 1.0, 1.7, 3.0])
def test_rate_scaling_changes_the_count_and_keeps_the_clock(factor: float) -> None:
    rows = list(replay(endless(), rate_scale=factor, seed=1))
    assert len(rows) == pytest.approx(10_000 * factor, rel=0.03)
    assert all(a.time_s <= b.time_s for a, b in pairwise(rows))
    assert rows[-1].time_s == pytest.approx(5000, rel=0.01)
    assert len({r.blocks for r in rows}) == len(rows), "copies must not hit each other's prefix"


def test_time_scaling_and_repeating() -> None:
    rows = list(replay(endless(100), time_scale=0.5, repeat=3))
    assert len(rows) == 300
    assert rows[1].time_s == 0.25
    assert rows[100].time_s == pytest.approx(25.0)
    assert rows[-1].time_s == pytest.approx(3 * 25.0 - 0.25)
    assert len(list(replay(endless(100), until_s=10.0))) == 20
    assert len(list(replay(endless(100), limit=7))) == 7


@pytest.mark.parametrize("options", [{"time_scale": 0.0}, {"rate_scale": float("nan")}, {"repeat": 0}])
def test_bad_scales_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(TrafficError, match="expected"):
        list(replay(endless(), **options))  # type: ignore[arg-type]


def test_mooncake_slice_repeats_prefixes() -> None:
    """Ideal hit rate of the slice by a cache that never forgets, counted independently from the file."""
    seen: set[int] = set()
    hits = total = 0
    with gzip.open(MOONCAKE, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            total += row["input_length"]
            for block in row["hash_ids"][: row["input_length"] // 512]:
                if block not in seen:
                    break
                hits += 512
            seen.update(row["hash_ids"])
    known: set[int] = set()
    found = 0
    for traced in open_trace(MOONCAKE).rows():
        for block in traced.blocks:
            if block not in known:
                break
            found += 512
        known.update(traced.blocks)
    assert found == hits
    assert 0.0 < hits / total < 0.5
