"""SGLang `bench_serving` JSONL: one result a line, appended run after run.

`accept_length` is the server's running average since its start, taken after the run, not this run's acceptance.
`concurrency` is the achieved mean, `max_concurrency` the limit. The native client spreads a chunk over its tokens, so
its ITL is per token; the OpenAI-compatible clients record one interval a chunk. Which of the two a line is follows from
ITL / TPOT. Keys after python/sglang/benchmark/metrics.py and bench_serving.py.
"""

from __future__ import annotations

import re
from typing import Any

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import milli, number, positive, whole
from twin.ingest.reader import Head, Reader, key_score, words
from twin.ingest.results import members, results
from twin.ingest.source import Source

TITLE = "SGLang bench_serving results"
_LATENCY = re.compile(r"(mean|median|std|p[0-9]+|max)_(ttft|tpot|itl|e2e_latency)_ms")
_READ = words("""
    tag backend dataset_name request_rate max_concurrency sharegpt_output_len random_input_len random_output_len
    random_range_ratio duration completed total_input_tokens total_input total_input_text_tokens total_input_text
    total_output_tokens total_output total_output_tokens_retokenized total_output_retokenized request_throughput
    input_throughput output_throughput output_throughput_retokenized total_throughput total_throughput_retokenized
    concurrency accept_length max_output_tokens_per_s max_concurrent_requests total_input_vision_tokens
""")
_LISTS = frozenset(("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"))


def score(head: Head) -> float:
    return key_score(
        head,
        ("backend", "request_rate"),
        ("random_range_ratio", "sharegpt_output_len", "dataset_name", "random_input_len"),
        enough=3,
    )


def read(source: Source) -> Found:
    """One cell a line."""
    found = Found(FORMAT.name, source.where, source.sha256())
    for label, stream in results(source, TITLE):
        found.cells.append(_cell(members(stream, _LISTS), label, found))
    return found


def _cell(raw: dict[str, Any], label: str, found: Found) -> Cell:
    where = f"{found.where}, {label}"
    for key, value in raw.items():
        if key not in _READ and key not in _LISTS and not _LATENCY.fullmatch(key):
            found.keep(key, value)
    completed = whole(raw.get("completed"), where, "completed")
    if completed == 0:
        raise IngestError(f"{where}: no request completed; there is nothing to read.")
    cell = Cell(label, engine=f"sglang bench_serving, backend {str(raw.get('backend') or '?')[:40]}")
    cell.ttft_s = milli(raw.get("median_ttft_ms"), where, "median_ttft_ms") or milli(
        raw.get("mean_ttft_ms"), where, "mean_ttft_ms"
    )
    cell.tpot_s = milli(raw.get("mean_tpot_ms"), where, "mean_tpot_ms")
    cell.itl_s = milli(raw.get("mean_itl_ms"), where, "mean_itl_ms")
    cell.itl_median_s = milli(raw.get("median_itl_ms"), where, "median_itl_ms")
    cell.itl_p99_s = milli(raw.get("p99_itl_ms"), where, "p99_itl_ms")
    cell.tok_s_aggregate = positive(raw.get("output_throughput"), where, "output_throughput")
    cell.aggregate_definition = "wall_with_ttft" if cell.tok_s_aggregate else ""
    asked = whole(raw.get("max_concurrency"), where, "max_concurrency")
    cell.concurrency_asked = float(asked) if asked else None
    cell.concurrency_achieved = positive(raw.get("concurrency"), where, "concurrency")
    total_in = number(raw.get("total_input_tokens", raw.get("total_input")), where, "total_input_tokens")
    total_out = number(raw.get("total_output_tokens", raw.get("total_output")), where, "total_output_tokens")
    if completed and total_in is not None:
        cell.context_tokens = total_in / completed
    if completed and total_out:
        cell.output_tokens = total_out / completed
    length = positive(raw.get("accept_length"), where, "accept_length")
    if length is not None and length < 1.0:
        raise IngestError(f"{where}: accept_length is {length:g}; it counts the bonus token, so it is at least 1.")
    if length is not None:
        cell.tokens_per_step, cell.acceptance_source = length, "server_average"
        cell.flag(
            "server-average", f"accept length {length:.3f} is the server's average since its start, not of this run"
        )
    if not (cell.tpot_s or cell.itl_s or cell.tok_s_aggregate):
        raise IngestError(f"{where}: no TPOT, ITL or throughput in it.")
    return cell


FORMAT = Reader("sglang-bench", TITLE, score, read)
