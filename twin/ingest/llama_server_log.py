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
from array import array
from dataclasses import dataclass, field

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
    timed: bool = False

    @property
    def usable(self) -> bool:
        """Whether its counts can be those of one run of decoding."""
        return (
            self.tokens >= MIN_TOKENS
            and self.eval_ms > 0
            and self.accepted < self.tokens
            and (self.accepted <= self.drafted)
        )


@dataclass
class _Group:
    """Sums over requests with, or without, speculation; a step's milliseconds of each for the scatter."""

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    prompt_tokens: int = 0
    eval_ms: float = 0.0
    prompt_ms: float = 0.0
    step_ms: array[float] = field(default_factory=lambda: array("d"))
    slots: set[str] = field(default_factory=set)

    def add(self, request: _Request) -> None:
        """Fold a request in."""
        steps = request.tokens - request.accepted
        self.requests, self.tokens, self.steps = self.requests + 1, self.tokens + request.tokens, self.steps + steps
        self.drafted += request.drafted
        self.prompt_tokens += request.prompt_tokens
        self.eval_ms += request.eval_ms
        self.prompt_ms += request.prompt_ms
        self.step_ms.append(request.eval_ms / steps)
        if len(self.slots) < 2:
            self.slots.add(request.slot)


def score(head: Head) -> float:
    if head.json:
        return 0.0
    return line_score(head, _PROMPT, re.compile(r"llama_server|llama_model_loader|\bllama\b|ggml_"))


def read(source: Source) -> Found:
    """One cell pooled over the requests with speculation and one over those without."""
    found = Found(FORMAT.name, source.where, source.sha256())
    groups = {True: _Group(), False: _Group()}
    seen = used = 0
    current: _Request | None = None
    slot = "?"

    def settle() -> None:
        """A request is whole when the next one begins: its draft line comes after its timing."""
        nonlocal seen, used
        if current is None or not current.timed:
            return
        seen += 1
        if seen > MAX_REQUESTS:
            raise IngestError(f"{source.where}: more than {MAX_REQUESTS:,} requests; cut the part that holds the run.")
        if current.usable:
            used += 1
            groups[current.drafted > 0].add(current)

    for line in source.lines():
        if "eval time" in line:
            if match := _PROMPT.search(line):
                settle()
                current = _Request(slot, float(match[1]), int(match[2]))
            elif current is not None and (match := _EVAL.search(line)):
                current.eval_ms, current.tokens, current.timed = float(match[1]), int(match[2]), True
        elif "draft acceptance rate" in line and current is not None and (match := _DRAFT.search(line)):
            current.accepted, current.drafted = int(match[1]), int(match[2])
        elif "print_timing" in line and (match := _SLOT.search(line)):
            slot = match[1]
    settle()
    if seen > used:
        found.notes.append(f"{seen - used} requests left out: fewer than {MIN_TOKENS} tokens or impossible counts")
    for name, drafted in (("with speculation", True), ("without speculation", False)):
        if groups[drafted].requests:
            found.cells.append(_cell(name, groups[drafted]))
    if not found.cells:
        raise nothing_inside(source, TITLE, f"no usable timing block ({seen} seen)")
    return found


def _cell(name: str, group: _Group) -> Cell:
    eval_s = group.eval_ms / 1e3
    cell = Cell(name, engine="llama.cpp server", output_tokens=group.tokens / group.requests)
    cell.step_s, cell.step_definition = eval_s / group.steps, "step_interval"
    cell.tok_s_per_stream, cell.per_stream_definition = group.tokens / eval_s, "first_to_last_token"
    per_request = np.array(group.step_ms)
    if group.requests > 2:
        cell.noise = max(0.005, float(per_request.std() / per_request.mean()))
    cell.notes.append(
        f"{group.requests} requests, {group.steps} steps; prompts are counted without what the slot's cache held"
    )
    if group.prompt_tokens > 256 * group.requests and group.prompt_ms > 0:
        cell.prefill_tok_s = group.prompt_tokens / (group.prompt_ms / 1e3)
    if group.drafted:
        cell.tokens_per_step, cell.acceptance_source = group.tokens / group.steps, "run"
        cell.rows = max(1, round(group.drafted / group.steps) + 1)
        cell.notes.append(f"{group.drafted / group.steps:.2f} tokens drafted per step")
    else:
        cell.notes.append("no draft line: plain decoding, if the server was started without a drafter")
    if len(group.slots) > 1:
        cell.flag(
            "several-slots",
            "requests of several slots: they may have run together, so --concurrency must be what was in flight",
        )
    return cell


FORMAT = Reader("llama-server-log", TITLE, score, read)
