"""llama.cpp `llama-batched-bench`: JSON lines (`--output-format jsonl`) or the table it prints.

    |    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |

`pl` (B) streams decode `tg` tokens each in lock step, so a step is T_TG / TG; there is no speculation. Every stream is
fed the same token id in the versions read for this, so on a Mixture-of-Experts model all streams touch the same
experts: a lower bound of the step under real traffic.
"""

from __future__ import annotations

import re
from typing import Any

from twin.errors import IngestError
from twin.ingest.jsonstream import JsonStream, documents
from twin.ingest.model import Cell, Found
from twin.ingest.numbers import number, positive, whole
from twin.ingest.reader import Head, Reader, key_score, nothing_inside, words
from twin.ingest.source import Source

TITLE = "llama-batched-bench results"
_KEYS = ("pp", "tg", "pl", "n_kv", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")
_ABOUT = words("""
    n_kv_max n_batch n_ubatch flash_attn is_pp_shared is_tg_separate n_gpu_layers n_threads n_threads_batch
""")
_HEADER = re.compile(r"^\|\s*PP\s*\|\s*TG\s*\|\s*B\s*\|\s*N_KV\s*\|\s*T_PP s\s*\|", re.MULTILINE)
_ROW = re.compile(r"^\|((?:\s*[0-9.]+\s*\|){10})\s*$")

#: rows of one file; each becomes a cell
MAX_ROWS = 20_000


def score(head: Head) -> float:
    if head.json:
        return key_score(head, ("pp", "tg", "pl"), ("speed_pp", "speed_tg", "t_pp", "t_tg"), enough=3)
    return 0.95 if _HEADER.search(head.text) else 0.0


def read(source: Source) -> Found:
    """One cell a row."""
    found = Found(FORMAT.name, source.where, source.sha256())
    if source.head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"["):
        with JsonStream(source) as stream:
            for index in documents(stream):
                raw = stream.value()
                if index >= MAX_ROWS:
                    raise _too_many(source)
                if not isinstance(raw, dict):
                    raise IngestError(f"{source.where}, line {index + 1}: expected an object, got {str(raw)[:40]!r}.")
                for key, value in raw.items():
                    if key not in _KEYS and key not in _ABOUT:
                        found.keep(key, value)
                found.cells.append(_cell(raw, f"row {index + 1}", source.where))
    else:
        for line in source.lines():
            if match := _ROW.match(line.strip()):
                if len(found.cells) >= MAX_ROWS:
                    raise _too_many(source)
                values = [v.strip() for v in match[1].split("|")[:-1]]
                found.cells.append(
                    _cell(dict(zip(_KEYS, values, strict=True)), f"row {len(found.cells) + 1}", source.where)
                )
    if not found.cells:
        raise nothing_inside(source, TITLE, "no row of results")
    return found


def _too_many(source: Source) -> IngestError:
    return IngestError(f"{source.where}: more than {MAX_ROWS:,} rows; split the file by run.")


def _cell(raw: dict[str, Any], label: str, name: str) -> Cell:
    where = f"{name}, {label}"
    prompt, generated = whole(raw.get("pp"), where, "pp"), whole(raw.get("tg"), where, "tg", minimum=1)
    streams, seconds = whole(raw.get("pl"), where, "pl", minimum=1), positive(raw.get("t_tg"), where, "t_tg")
    if not (generated and streams and seconds) or prompt is None:
        raise IngestError(f"{where}: expected pp, tg, pl (B) and t_tg (T_TG s) above zero.")
    cell = Cell(
        label,
        k=0,
        concurrency_asked=float(streams),
        context_tokens=float(prompt),
        output_tokens=float(generated),
        engine="llama.cpp",
    )
    cell.step_s, cell.step_definition = seconds / generated, "pass_time"
    cell.tok_s_aggregate, cell.aggregate_definition = streams * generated / seconds, "first_to_last_token"
    cell.tok_s_per_stream, cell.per_stream_definition = generated / seconds, "first_to_last_token"
    stated = number(raw.get("speed_tg"), where, "speed_tg")
    if stated and abs(stated / cell.tok_s_aggregate - 1.0) > 0.02:
        cell.flag("rate-disagrees", f"S_TG {stated:g} tok/s is not B x TG / T_TG = {cell.tok_s_aggregate:.1f}")
    cell.prefill_tok_s = positive(raw.get("speed_pp"), where, "speed_pp")
    if streams > 1:
        cell.flag(
            "same-tokens",
            "the tool feeds every stream the same tokens, so experts overlap fully between streams; real traffic is "
            "slower",
        )
    if raw.get("is_pp_shared") in (1, True, "1"):
        cell.flag("shared-prompt", "one prompt shared by all streams (-pps)")
    return cell


FORMAT = Reader("llama-batched-bench", TITLE, score, read)
