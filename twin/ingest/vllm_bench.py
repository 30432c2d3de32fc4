"""`vllm bench serve --save-result` (and --save-detailed, --append-result) and the benchmark_serving scripts it came
from.

Keys after vllm/benchmarks/serve.py. Newer files give milliseconds under `mean_tpot_ms`, some older ones seconds under
`median_tpot`. `spec_decode_acceptance_rate` is a percentage of drafted tokens, `spec_decode_acceptance_length` includes
the bonus token, and `spec_decode_per_position_acceptance_rates` are fractions of drafts (survival). ITL is one sample a
streamed chunk. `output_throughput` divides by the wall time of the whole run, prefill included.
"""

from __future__ import annotations

import math
import re
from typing import Any

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import number, numbers, positive, whole
from twin.ingest.reader import Head, Reader, key_score, words
from twin.ingest.results import results, twice
from twin.ingest.source import Source
from twin.ingest.steady import Steady
from twin.ingest.vllm_detail import KEYS, Requests, SecondWalk

TITLE = "a vLLM `bench serve` result"
_SIGNATURE = (
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_prompts",
    "tokenizer_id",
    "model_id",
    "endpoint_type",
    "backend",
    "date",
)
_LATENCY = re.compile(
    r"(mean|median|std|p[0-9.]+)_(ttft|tpot|itl|e2el|client_queue_time|e2el_including_client_queue)(_ms)?"
)
_READ = words("""
    date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
    duration completed failed total_input_tokens total_output_tokens total_input total_output request_throughput
    request_goodput request_goodput: good_completed input_throughput output_throughput total_token_throughput
    max_output_tokens_per_s max_concurrent_requests rtfx best_of ramp_up_strategy ramp_up_start_rps ramp_up_end_rps
    benchmark_start_time_unix benchmark_end_time_unix spec_decode_acceptance_rate spec_decode_acceptance_length
    spec_decode_num_drafts spec_decode_draft_tokens spec_decode_accepted_tokens
    spec_decode_per_position_acceptance_rates
""")
_PASSED = frozenset(
    ("input_lens", "output_lens", "latencies", "queue_times", "generated_texts", "errors", "rps_change_events")
)


def score(head: Head) -> float:
    return key_score(
        head,
        ("request_rate",),
        _SIGNATURE,
        enough=5,
        never=("infmax_model_prefix", "random_range_ratio", "sharegpt_output_len"),
    )


def read(source: Source) -> Found:
    """One cell for each result in the file (--append-result writes several)."""
    found = Found(FORMAT.name, source.where, source.sha256())
    second = SecondWalk(source)
    try:
        for index, (label, stream) in enumerate(results(source, TITLE)):
            raw, requests = _load(stream)
            cell = _cell(raw, label, found)
            if requests.complete(f"{source.where}, {label}"):
                _detail(cell, second.steady(index, requests, cell.concurrency_asked))
            found.cells.append(cell)
    finally:
        second.close()
    return found


def _load(stream: JsonStream) -> tuple[dict[str, Any], Requests]:
    """The members of one result; records of requests are folded, texts are passed over."""
    raw: dict[str, Any] = {}
    requests = Requests()
    for key in stream.members():
        if key in raw:
            raise twice(stream, key)
        if key in KEYS:
            raw[key] = None
            requests.read(key, stream)
        else:
            raw[key] = stream.skip() if key in _PASSED else stream.value()
    return raw, requests


def _cell(raw: dict[str, Any], label: str, found: Found) -> Cell:
    where = f"{found.where}, {label}"
    for key, value in raw.items():
        if key not in _READ and key not in _PASSED and key not in KEYS and not _LATENCY.fullmatch(key):
            found.keep(key, value)
    completed = whole(raw.get("completed"), where, "completed")
    if completed == 0:
        raise IngestError(f"{where}: no request completed; there is nothing to read.")
    cell = Cell(label, checkpoint=str(raw.get("model_id") or "")[:200], date=str(raw.get("date") or "")[:40])
    cell.engine = str(raw.get("label") or raw.get("backend") or raw.get("endpoint_type") or "")[:80]
    cell.ttft_s = _latency(raw, "ttft", "median", where) or _latency(raw, "ttft", "mean", where)
    cell.tpot_s = _latency(raw, "tpot", "mean", where) or _latency(raw, "tpot", "median", where)
    cell.itl_s, cell.itl_median_s = _latency(raw, "itl", "mean", where), _latency(raw, "itl", "median", where)
    cell.itl_p99_s = _latency(raw, "itl", "p99", where)
    cell.itl_unit = "chunk" if cell.itl_s else ""
    if _latency(raw, "tpot", "mean", where) is None and cell.tpot_s:
        cell.notes.append("TPOT is the median over requests; the file has no mean")
    cell.tok_s_aggregate = positive(raw.get("output_throughput"), where, "output_throughput")
    cell.aggregate_definition = "wall_with_ttft" if cell.tok_s_aggregate else ""
    _lengths(cell, raw, completed, where)
    _load_level(cell, raw, completed, where)
    _speculation(cell, raw, where)
    if not (cell.tpot_s or cell.itl_s or cell.tok_s_aggregate or cell.ttft_s):
        raise IngestError(f"{where}: no TTFT, TPOT, ITL or throughput in it; was it an embedding benchmark?")
    failed = whole(raw.get("failed"), where, "failed")
    if failed:
        cell.flag("failed-requests", f"{failed} requests failed; the load was lighter than asked")
    return cell


def _latency(raw: dict[str, Any], name: str, statistic: str, where: str) -> float | None:
    """`mean_tpot_ms` in milliseconds or, in older files, `mean_tpot` in seconds; returns seconds."""
    modern, old = f"{statistic}_{name}_ms", f"{statistic}_{name}"
    if raw.get(modern) is not None:
        found = positive(raw[modern], where, modern)
        return found / 1000.0 if found else None
    return positive(raw.get(old), where, old)


def _lengths(cell: Cell, raw: dict[str, Any], completed: int | None, where: str) -> None:
    total_in = number(raw.get("total_input_tokens", raw.get("total_input")), where, "total_input_tokens")
    total_out = number(raw.get("total_output_tokens", raw.get("total_output")), where, "total_output_tokens")
    if completed:
        cell.context_tokens = total_in / completed if total_in is not None else None
        cell.output_tokens = total_out / completed if total_out else None


def _load_level(cell: Cell, raw: dict[str, Any], completed: int | None, where: str) -> None:
    asked = whole(raw.get("max_concurrency"), where, "max_concurrency")
    cell.concurrency_asked = float(asked) if asked else None
    e2e = _latency(raw, "e2el", "mean", where)
    rate = positive(raw.get("request_throughput"), where, "request_throughput")
    if e2e is None and cell.tpot_s and cell.output_tokens and _latency(raw, "ttft", "mean", where):
        e2e = (_latency(raw, "ttft", "mean", where) or 0.0) + cell.tpot_s * (cell.output_tokens - 1)
    # Little's law: mean in flight = arrival rate x mean time in the system.
    cell.concurrency_achieved = rate * e2e if rate and e2e else None
    request_rate = raw.get("request_rate")
    # Python writes an infinite rate as Infinity, newer versions as the text "inf".
    open_loop = request_rate not in (None, "inf") and not (isinstance(request_rate, float) and math.isinf(request_rate))
    if open_loop:
        cell.flag(
            "open-loop", f"requests arrived at {str(request_rate)[:20]} per second, so the number in flight varied"
        )
    if raw.get("ramp_up_strategy"):
        cell.flag("ramp-up", "the request rate was ramped up during the run; its means mix several loads")
        cell.doubt = cell.doubt or "the load was ramped during the run"


def _speculation(cell: Cell, raw: dict[str, Any], where: str) -> None:
    drafts = number(raw.get("spec_decode_num_drafts"), where, "spec_decode_num_drafts")
    drafted = number(raw.get("spec_decode_draft_tokens"), where, "spec_decode_draft_tokens")
    accepted = number(raw.get("spec_decode_accepted_tokens"), where, "spec_decode_accepted_tokens")
    length = positive(raw.get("spec_decode_acceptance_length"), where, "spec_decode_acceptance_length")
    percent = number(raw.get("spec_decode_acceptance_rate"), where, "spec_decode_acceptance_rate")
    positions = raw.get("spec_decode_per_position_acceptance_rates")
    if drafts and accepted is not None:
        length = length or 1.0 + accepted / drafts
        cell.drafts = int(drafts)
    if length is None and percent is None and not positions:
        return
    if positions:
        cell.survival = tuple(numbers(positions, where, "spec_decode_per_position_acceptance_rates"))
        if any(p > 1.0005 for p in cell.survival):
            raise IngestError(f"{where}: per-position acceptance above 1; it should be a fraction of drafts.")
        if any(b > a + 0.0005 for a, b in zip(cell.survival, cell.survival[1:], strict=False)):
            cell.flag(
                "not-survival",
                "per-position acceptance rises with position, so it is not survival; a counter window may be cut",
            )
    draft_length(cell, drafts, drafted)
    cell.tokens_per_step, cell.acceptance_source = length, "run" if length else ""
    if length and percent is not None and cell.k:
        mean_drafted = drafted / drafts if drafts and drafted else float(cell.k)
        if abs(1.0 + percent / 100.0 * mean_drafted - length) > 0.03 * length:
            cell.flag(
                "acceptance-disagrees",
                f"acceptance rate {percent:.1f} % of {mean_drafted:.2f} drafts does not give {length:.3f} tokens per "
                "step",
            )


def draft_length(cell: Cell, drafts: float | None, drafted: float | None) -> None:
    """k from the counters: drafted tokens per draft, or the positions when fewer were drafted on average (adaptive)."""
    mean = drafted / drafts if drafts and drafted else None
    longest = len(cell.survival)
    if mean is None:
        cell.k = longest or None
        return
    nearest = round(mean)
    if longest and mean < 0.97 * longest:
        cell.k, cell.rows = longest, max(1, nearest + 1)
        cell.flag(
            "draft-length-varies",
            f"{mean:.2f} tokens drafted per step of at most {longest}: k varies (adaptive or a k-schedule)",
        )
    elif longest or abs(mean - nearest) <= 0.03 * mean:
        cell.k = longest or nearest
    else:
        cell.flag(
            "draft-length-varies", f"{mean:.2f} tokens drafted per step: k varies; pass the k that was set with --k"
        )
        cell.rows = max(1, nearest + 1)


def _detail(cell: Cell, result: Steady | None) -> None:
    """The step from the records of requests, where the chunks are steps."""
    if result is None:
        cell.flag(
            "no-steady-part",
            "too few undisturbed steps at full load to cut warm-up, drain and prefill out; run more prompts per stream",
        )
        return
    if (
        cell.itl_s
        and cell.tpot_s
        and cell.tokens_per_step
        and abs(cell.itl_s / cell.tokens_per_step / cell.tpot_s - 1) > 0.03
    ):
        return  # the chunks are no steps in this run; `settle` will say so
    cell.step_s, cell.step_definition, cell.concurrency_achieved = result.step_s, "chunk_interval", result.concurrency
    cell.notes.append(
        f"step from {result.intervals} undisturbed intervals at full load; {result.trimmed_share:.0%} trimmed as "
        "warm-up and drain, "
        f"{result.disturbed_share:.0%} of the rest set aside as sharing the GPU with a prefill"
    )


FORMAT = Reader("vllm-bench", TITLE, score, read)
