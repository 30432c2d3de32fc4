"""TensorRT-LLM `trtllm-bench --report_json`.

`acceptance_length_percentiles.average` is tokens per decoding iteration (bonus included), mean over requests;
`draft_acceptance_rate_percentiles` divides by max_draft_len x iterations, so k = (length - 1) / rate. `avg_tpot_ms`
excludes the first token. There is no interval between chunks in the report, so a step is TPOT x acceptance length.
Keys after tensorrt_llm/bench/dataclasses/reporting.py.
"""

from __future__ import annotations

from typing import Any

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import milli, number, positive
from twin.ingest.reader import Head, Reader, key_score
from twin.ingest.results import single
from twin.ingest.source import Source

TITLE = "a trtllm-bench report"
_READ = {
    "engine": {
        "model",
        "model_path",
        "engine_dir",
        "version",
        "backend",
        "dtype",
        "kv_cache_dtype",
        "quantization",
        "max_input_length",
        "max_sequence_length",
    },
    "world_info": {
        "tp_size",
        "pp_size",
        "ep_size",
        "world_size",
        "max_batch_size",
        "max_num_tokens",
        "scheduling_policy",
        "kv_cache_percentage",
        "issue_rate",
    },
    "request_info": {"num_requests", "avg_num_concurrent_requests", "avg_input_length", "avg_output_length"},
    "performance": {
        "total_latency_ms",
        "avg_request_latency_ms",
        "request_throughput_req_s",
        "system_output_throughput_tok_s",
        "system_total_throughput_tok_s",
        "output_throughput_per_user_tok_s",
        "output_throughput_per_gpu_tok_s",
        "request_latency_percentiles_ms",
    },
    "streaming_metrics": {
        "token_output_speed_tok_s",
        "avg_ttft_ms",
        "avg_tpot_ms",
        "tpot_percentiles",
        "ttft_percentiles",
        "gen_tps_percentiles",
    },
    "decoding_stats": {
        "mode",
        "num_draft_tokens_percentiles",
        "num_accepted_draft_tokens_percentiles",
        "draft_acceptance_rate_percentiles",
        "acceptance_length_percentiles",
    },
    "machine": {"name", "memory.total", "clocks.mem"},
    "dataset": {"isl_stats", "osl_stats", "seq_len_stats", "num_requests", "max_isl", "max_osl", "max_sequence_length"},
}


def score(head: Head) -> float:
    some = (
        "world_info",
        "decoding_stats",
        "streaming_metrics",
        "avg_num_concurrent_requests",
        "system_output_throughput_tok_s",
        "scheduling_policy",
    )
    return key_score(head, ("engine", "performance"), some, enough=2)


def read(source: Source) -> Found:
    """One cell."""
    found = Found(FORMAT.name, source.where, source.sha256())
    raw = single(source, _Others())
    for key in raw:
        if key not in _READ:
            found.keep(key, f"section of {raw[key]} values")
    sections = {}
    for name, known in _READ.items():
        section = raw.get(name) or {}
        if not isinstance(section, dict):
            raise IngestError(f"{source.where}: the section {name!r} should be an object.")
        for key, value in section.items():
            if key not in known:
                found.keep(f"{name}.{key}", value)
        sections[name] = section
    found.cells.append(_cell(sections, source.where))
    return found


class _Others:
    """Every section that has no meaning here."""

    def __contains__(self, key: object) -> bool:
        return key not in _READ


def _cell(sections: dict[str, dict[str, Any]], where: str) -> Cell:
    requests, rates, stream = sections["request_info"], sections["performance"], sections["streaming_metrics"]
    engine = sections["engine"]
    cell = Cell("report", checkpoint=str(engine.get("model") or "")[:200])
    cell.engine = f"tensorrt-llm {engine.get('version') or ''} {engine.get('backend') or ''}".strip()[:80]
    cell.concurrency_achieved = positive(
        requests.get("avg_num_concurrent_requests"), where, "avg_num_concurrent_requests"
    )
    cell.context_tokens = number(requests.get("avg_input_length"), where, "avg_input_length")
    cell.output_tokens = positive(requests.get("avg_output_length"), where, "avg_output_length")
    cell.tok_s_aggregate = positive(
        rates.get("system_output_throughput_tok_s"), where, "system_output_throughput_tok_s"
    )
    cell.aggregate_definition = "wall_with_ttft" if cell.tok_s_aggregate else ""
    cell.ttft_s = milli(stream.get("avg_ttft_ms"), where, "avg_ttft_ms")
    cell.tpot_s = milli(stream.get("avg_tpot_ms"), where, "avg_tpot_ms")
    if not stream:
        cell.flag("not-streaming", "no streaming metrics: pass --streaming to trtllm-bench for TTFT and TPOT")
    decoding = sections["decoding_stats"]
    length = positive(
        _average(decoding.get("acceptance_length_percentiles")), where, "acceptance_length_percentiles.average"
    )
    rate = positive(
        _average(decoding.get("draft_acceptance_rate_percentiles")), where, "draft_acceptance_rate_percentiles.average"
    )
    if length is not None:
        if length < 1.0:
            raise IngestError(f"{where}: acceptance length {length:g}; it counts the bonus token, so it is at least 1.")
        cell.tokens_per_step, cell.acceptance_source = length, "run"
        cell.notes.append("acceptance is the mean over requests, not over steps")
    if length is not None and rate and length > 1.0:
        k = (length - 1.0) / rate
        if abs(k - round(k)) <= 0.03 * k and round(k) >= 1:
            cell.k = round(k)
        else:
            cell.flag(
                "draft-length-unclear", f"(length - 1) / rate gives {k:.2f} draft tokens, not a whole number; pass --k"
            )
    if not (cell.tok_s_aggregate or cell.tpot_s):
        raise IngestError(f"{where}: no throughput and no TPOT in the report.")
    return cell


def _average(percentiles: Any) -> Any:
    return percentiles.get("average") if isinstance(percentiles, dict) else None


FORMAT = Reader("trtllm-bench", TITLE, score, read)
