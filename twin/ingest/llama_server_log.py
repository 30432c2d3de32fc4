"""llama.cpp server logs: the timing block of each finished request.

    slot print_timing: id  3 | task 0 |
    prompt eval time =     648.99 ms /   133 tokens (...)
           eval time =   30387.12 ms /  2048 tokens (...)
    draft acceptance rate = 0.98260 ( 1186 accepted /  1207 generated)

Every verify step keeps its accepted drafts and one more token, so steps = tokens - accepted, exactly. The drafter stops
early when it is unsure, so the drafted tokens per step are at most k, and k itself is not in the log. Requests are
assumed to run alone unless another slot's block falls between: the log has no start times, so concurrency comes from
--concurrency.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.reader import Head, Reader, line_score, nothing_inside
from twin.ingest.source import Source

TITLE = "a llama.cpp server log"
_N = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"
_PROMPT = re.compile(rf"prompt eval time\s*=\s*{_N} ms\s*/\s*([0-9]{{1,12}}) tokens")
_EVAL = re.compile(rf"(?<!prompt )\beval time\s*=\s*{_N} ms\s*/\s*([0-9]{{1,12}}) (?:tokens|runs)")
_DRAFT = re.compile(r"draft acceptance rate\s*=\s*\S+\s*\(\s*([0-9]{1,12}) accepted\s*/\s*([0-9]{1,12}) generated\)")
_SLOT = re.compile(r"print_timing: id\s+([0-9]{1,6})")
_CACHED = re.compile(r"n_past = ([0-9]{1,12}), n_tokens|kv cache rm.*?p0 = ([0-9]{1,12})")
MAX_REQUESTS = 1_000_000
#: requests with fewer tokens say little about a step
MIN_TOKENS = 16


@dataclass
class _Request:
    slot: str
    prompt_ms: float
    prompt_tokens: int
    eval_ms: float = 0.0
    tokens: int = 0
    accepted: int = 0
    drafted: int = 0


def score(head: Head) -> float:
    if head.json:
        return 0.0
    return line_score(head, _PROMPT, re.compile(r"llama_server|llama_model_loader|\bllama\b|ggml_"))


def read(source: Source) -> Found:
    """One cell pooled over the requests with speculation and one over those without."""
    found = Found(FORMAT.name, source.where, source.sha256())
    requests: list[_Request] = []
    current: _Request | None = None
    slot = "?"
    for line in source.lines():
        if "eval time" in line:
            if match := _PROMPT.search(line):
                current = _Request(slot, float(match[1]), int(match[2]))
            elif current is not None and (match := _EVAL.search(line)):
                current.eval_ms, current.tokens = float(match[1]), int(match[2])
                requests.append(current)
                if len(requests) > MAX_REQUESTS:
                    raise IngestError(
                        f"{source.where}: more than {MAX_REQUESTS:,} requests; cut the part that holds the run."
                    )
        elif "draft acceptance rate" in line and current is not None and (match := _DRAFT.search(line)):
            current.accepted, current.drafted = int(match[1]), int(match[2])
        elif "print_timing" in line and (match := _SLOT.search(line)):
            slot = match[1]
    usable = [
        r
        for r in requests
        if r.tokens >= MIN_TOKENS and r.eval_ms > 0 and r.accepted < r.tokens and r.accepted <= r.drafted
    ]
    if len(requests) > len(usable):
        found.notes.append(
            f"{len(requests) - len(usable)} requests left out: fewer than {MIN_TOKENS} tokens or impossible counts"
        )
    for name, group in (
        ("with speculation", [r for r in usable if r.drafted]),
        ("without speculation", [r for r in usable if not r.drafted]),
    ):
        if group:
            found.cells.append(_cell(name, group))
    if not found.cells:
        raise nothing_inside(source, TITLE, f"no usable timing block ({len(requests)} seen)")
    return found


def _cell(name: str, group: list[_Request]) -> Cell:
    tokens, eval_s = sum(r.tokens for r in group), sum(r.eval_ms for r in group) / 1e3
    steps = sum(r.tokens - r.accepted for r in group)
    cell = Cell(name, engine="llama.cpp server", output_tokens=tokens / len(group))
    cell.step_s, cell.step_definition = eval_s / steps, "step_interval"
    cell.tok_s_per_stream, cell.per_stream_definition = tokens / eval_s, "first_to_last_token"
    per_request = np.array([r.eval_ms / (r.tokens - r.accepted) for r in group])
    if len(group) > 2:
        cell.noise = max(0.005, float(per_request.std() / per_request.mean()))
    prompt_s, prompt = sum(r.prompt_ms for r in group) / 1e3, sum(r.prompt_tokens for r in group)
    cell.notes.append(f"{len(group)} requests, {steps} steps; prompts are counted without what the slot's cache held")
    if prompt > 256 * len(group) and prompt_s > 0:
        cell.prefill_tok_s = prompt / prompt_s
    if any(r.drafted for r in group):
        drafted = sum(r.drafted for r in group)
        cell.tokens_per_step, cell.acceptance_source = tokens / steps, "run"
        cell.rows = max(1, round(drafted / steps) + 1)
        cell.notes.append(f"{drafted / steps:.2f} tokens drafted per step")
    else:
        cell.notes.append("no draft line: plain decoding, if the server was started without a drafter")
    if len({r.slot for r in group}) > 1:
        cell.flag(
            "several-slots",
            "requests of several slots: they may have run together, so --concurrency must be what was in flight",
        )
    return cell


FORMAT = Reader("llama-server-log", TITLE, score, read)
