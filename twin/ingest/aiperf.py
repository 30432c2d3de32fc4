"""AIPerf and genai-perf summary exports (`profile_export_aiperf.json`, `profile_export_genai_perf.json`).

Every metric is `{"unit": "ms", "avg": ..., "p50": ...}`. What these tools call inter-token latency is (request latency
- TTFT) / (tokens - 1), that is TPOT; `inter_chunk_latency` is the interval between streamed chunks, that is the step.
With `spec_decode_*` metrics in it, the token-weighted acceptance length is the run's. After aiperf's export models and
metrics.
"""

from __future__ import annotations

from typing import Any

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import number, positive
from twin.ingest.reader import Head, Reader, key_score, words
from twin.ingest.results import single
from twin.ingest.source import Source

TITLE = "an AIPerf / genai-perf export"
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "milliseconds": 1e-3,
    "nanoseconds": 1e-9,
}
_USED = words("""
    time_to_first_token inter_token_latency inter_chunk_latency request_latency request_throughput
    output_token_throughput input_sequence_length output_sequence_length request_count error_request_count
    spec_decode_acceptance_length spec_decode_token_weighted_acceptance_length total_spec_decode_steps
    total_draft_tokens total_accepted_draft_tokens
""")
_ABOUT = words("""
    schema_version aiperf_version benchmark_id input_config run_info was_cancelled error_summary start_time end_time
    telemetry_data telemetry_stats time_to_second_token output_token_throughput_per_user goodput good_request_count
    output_token_count reasoning_token_count min_request_timestamp max_response_timestamp total_output_tokens
    total_reasoning_tokens benchmark_duration total_isl total_osl error_isl total_error_isl
    output_token_throughput_per_request spec_decode_draft_acceptance_rate spec_decode_overall_draft_acceptance_rate
    spec_decode_accepted_per_verified spec_decode_steps spec_decode_accepted_draft_tokens spec_decode_draft_tokens
    spec_decode_zero_step_requests prefill_throughput_per_user
""")

_PASSED = frozenset(("telemetry_data", "error_summary", "records", "results"))


def score(head: Head) -> float:
    some = (
        "request_latency",
        "request_throughput",
        "output_token_throughput",
        "time_to_first_token",
        "inter_token_latency",
        "output_sequence_length",
    )
    return key_score(head, ("unit", "avg"), some, enough=3)


def read(source: Source) -> Found:
    """One cell."""
    found = Found(FORMAT.name, source.where, source.sha256())
    raw = single(source, _PASSED)
    for key in raw:
        if key not in _USED and key not in _ABOUT:
            found.keep(key, raw[key])
    found.cells.append(_cell(raw, source.where))
    return found


def _cell(raw: dict[str, Any], where: str) -> Cell:
    cell = Cell(
        "export",
        date=str(raw.get("start_time") or "")[:40],
        engine=f"aiperf {raw.get('aiperf_version') or ''}".strip()[:40],
    )
    cell.ttft_s = _time(raw, "time_to_first_token", "p50", where) or _time(raw, "time_to_first_token", "avg", where)
    cell.tpot_s = _time(raw, "inter_token_latency", "avg", where)
    cell.itl_s, cell.itl_median_s = (
        _time(raw, "inter_chunk_latency", "avg", where),
        _time(raw, "inter_chunk_latency", "p50", where),
    )
    cell.itl_p99_s = _time(raw, "inter_chunk_latency", "p99", where)
    cell.itl_unit = "chunk" if cell.itl_s else ""
    cell.tok_s_aggregate = positive(
        _plain(raw, "output_token_throughput", "avg", where), where, "output_token_throughput"
    )
    cell.aggregate_definition = "wall_with_ttft" if cell.tok_s_aggregate else ""
    cell.context_tokens = _plain(raw, "input_sequence_length", "avg", where)
    cell.output_tokens = _plain(raw, "output_sequence_length", "avg", where) or None
    latency, rate = _time(raw, "request_latency", "avg", where), _plain(raw, "request_throughput", "avg", where)
    cell.concurrency_achieved = latency * rate if latency and rate else None
    cell.concurrency_asked = _asked(raw.get("input_config"), where)
    length = _plain(raw, "spec_decode_token_weighted_acceptance_length", "avg", where) or _plain(
        raw, "spec_decode_acceptance_length", "avg", where
    )
    if length:
        if length < 1.0:
            raise IngestError(f"{where}: acceptance length {length:g}; it counts the bonus token, so it is at least 1.")
        cell.tokens_per_step, cell.acceptance_source = length, "run"
    steps, drafted = (
        _plain(raw, "total_spec_decode_steps", "avg", where),
        _plain(raw, "total_draft_tokens", "avg", where),
    )
    if steps and drafted:
        mean = drafted / steps
        cell.drafts = int(steps)
        if abs(mean - round(mean)) <= 0.03 * mean:
            cell.k = round(mean)
        else:
            cell.rows = round(mean) + 1
            cell.flag(
                "draft-length-varies", f"{mean:.2f} tokens drafted per step: k varies; pass the k that was set with --k"
            )
    if raw.get("was_cancelled") is True:
        cell.flag("cancelled", "the run was cancelled before its end")
    errors = _plain(raw, "error_request_count", "avg", where)
    if errors:
        cell.flag("failed-requests", f"{errors:g} requests failed; the load was lighter than asked")
    if not (cell.tpot_s or cell.tok_s_aggregate or cell.itl_s):
        raise IngestError(f"{where}: no latency and no token throughput in it; was streaming on (--streaming)?")
    return cell


def _metric(raw: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    metric = raw.get(name)
    if metric is None:
        return {}
    if not isinstance(metric, dict):
        raise IngestError(f"{where}: {name} should be an object with unit and avg.")
    return metric


def _plain(raw: dict[str, Any], name: str, statistic: str, where: str) -> float | None:
    return number(_metric(raw, name, where).get(statistic), where, f"{name}.{statistic}")


def _time(raw: dict[str, Any], name: str, statistic: str, where: str) -> float | None:
    value = _plain(raw, name, statistic, where)
    if not value:
        return None
    unit = str(_metric(raw, name, where).get("unit", ""))
    if unit not in _SECONDS:
        raise IngestError(f"{where}: {name} has the unit {unit[:20]!r}; expected one of {', '.join(sorted(_SECONDS))}.")
    return value * _SECONDS[unit]


def _asked(config: Any, where: str) -> float | None:
    """The `concurrency` of the input configuration, wherever the version put it; the shallowest wins."""
    level = [config]
    for _ in range(6):
        below: list[Any] = []
        for item in level[:2000]:
            if isinstance(item, dict):
                if isinstance(item.get("concurrency"), (int, float)) and not isinstance(item["concurrency"], bool):
                    return positive(item["concurrency"], where, "input_config concurrency")
                below += item.values()
            elif isinstance(item, list):
                below += item
        level = below
    return None


FORMAT = Reader("aiperf", TITLE, score, read)
