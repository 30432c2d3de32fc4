"""InferenceX (InferenceMAX) aggregates, `agg_*.json`.

Latencies are in seconds here although the benchmark behind them wrote milliseconds; `intvty` is 1 / TPOT; throughput is
per GPU. Acceptance is not in the file: for runs with `spec_decoding` other than none it follows only from ITL / TPOT.
Keys after utils/process_result.py.
"""

from __future__ import annotations

import re
from typing import Any

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import number, positive, whole
from twin.ingest.reader import Head, Reader, key_score, words
from twin.ingest.results import members, results
from twin.ingest.source import Source

TITLE = "an InferenceX aggregate (agg_*.json)"
_LATENCY = re.compile(r"(mean|median|std|p[0-9.]+)_(ttft|tpot|itl|e2el|intvty)")
_READ = words("""
    hw conc image model infmax_model_prefix framework precision spec_decoding mtp disagg isl osl is_multinode tp ep
    dp_attention tput_per_gpu output_tput_per_gpu input_tput_per_gpu num_prefill_gpu num_decode_gpu prefill_tp
    prefill_ep prefill_dp_attention prefill_num_workers decode_tp decode_ep decode_dp_attention decode_num_workers
""")


def score(head: Head) -> float:
    return key_score(
        head,
        ("hw", "conc"),
        ("tput_per_gpu", "output_tput_per_gpu", "infmax_model_prefix", "median_intvty", "mean_tpot", "framework"),
        enough=3,
    )


def read(source: Source) -> Found:
    """One cell for each aggregate; a list of them is read as well."""
    found = Found(FORMAT.name, source.where, source.sha256())
    for label, stream in results(source, TITLE):
        raw = members(stream)
        for key in raw:
            if key not in _READ and not _LATENCY.fullmatch(key):
                found.keep(key, raw[key])
        found.cells.append(_cell(raw, label, source.where))
    return found


def _cell(raw: dict[str, Any], label: str, name: str) -> Cell:
    where = f"{name}, {label}"
    cell = Cell(
        label,
        checkpoint=str(raw.get("model") or "")[:200],
        engine=f"{raw.get('framework') or ''} {raw.get('image') or ''}".strip()[:120],
    )
    asked = whole(raw.get("conc"), where, "conc", minimum=1)
    cell.concurrency_asked = float(asked) if asked else None
    cell.context_tokens, cell.output_tokens = (
        number(raw.get("isl"), where, "isl"),
        positive(raw.get("osl"), where, "osl"),
    )
    cell.ttft_s = positive(raw.get("median_ttft"), where, "median_ttft") or positive(
        raw.get("mean_ttft"), where, "mean_ttft"
    )
    cell.tpot_s = positive(raw.get("mean_tpot"), where, "mean_tpot") or positive(
        raw.get("median_tpot"), where, "median_tpot"
    )
    cell.itl_s, cell.itl_median_s = (
        positive(raw.get("mean_itl"), where, "mean_itl"),
        positive(raw.get("median_itl"), where, "median_itl"),
    )
    cell.itl_p99_s = positive(raw.get("p99_itl"), where, "p99_itl")
    cell.itl_unit = "chunk" if cell.itl_s else ""
    mode = str(raw.get("spec_decoding") or raw.get("mtp") or "").lower()
    if mode in ("none", "off", "false"):
        cell.k = 0
    elif mode:
        cell.notes.append(f"speculation: {mode[:40]}")
    multinode = raw.get("is_multinode") is True
    gpus = whole(raw.get("num_decode_gpu" if multinode else "tp"), where, "number of GPUs", minimum=1)
    per_gpu = positive(raw.get("output_tput_per_gpu"), where, "output_tput_per_gpu")
    if per_gpu and gpus:
        cell.tok_s_aggregate, cell.aggregate_definition = per_gpu * gpus, "wall_with_ttft"
    if raw.get("disagg") is True:
        cell.exclude = "prefill and decode on different GPUs; a lane here is one box"
        cell.flag("disaggregated", "prefill and decode ran on different GPUs")
    _little(cell, raw, where)
    cell.notes.append("isl is the nominal prompt length; prompts are drawn around it")
    if not (cell.tpot_s or cell.tok_s_aggregate):
        raise IngestError(f"{where}: no TPOT and no output throughput in it.")
    return cell


def _little(cell: Cell, raw: dict[str, Any], where: str) -> None:
    e2e = positive(raw.get("mean_e2el"), where, "mean_e2el")
    # Output tokens per second over tokens per request is requests per second; times the mean latency is those in
    # flight.
    if e2e and cell.tok_s_aggregate and cell.output_tokens:
        cell.concurrency_achieved = cell.tok_s_aggregate / cell.output_tokens * e2e


FORMAT = Reader("inferencex", TITLE, score, read)
