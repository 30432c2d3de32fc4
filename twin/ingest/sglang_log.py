"""SGLang server logs: `Decode batch` lines, printed every `decode_log_interval` decode steps.

    Decode batch, #running-req: 18, #token: 16384, token usage: 0.71, accept len: 2.40, accept rate: 0.84,
        cuda graph: True, gen throughput (token/s): 2520.18, #queue-req: 3

`accept len` is tokens kept per step over the interval, bonus token included. `accept rate` was divided by different
numbers of drafts over the versions (k + 1, k, the verified prefix), so k is never inferred from it. The throughput of
an interval counts the prefills between two decode lines as time, so intervals with a `Prefill batch` line are set
aside. After python/sglang/srt/managers/scheduler_metrics_mixin.py and its successors.
"""

from __future__ import annotations

import re
from collections import defaultdict

from twin.errors import IngestError
from twin.ingest.model import Found
from twin.ingest.reader import Head, Reader, line_score, nothing_inside
from twin.ingest.source import Source
from twin.ingest.windows import MAX_WINDOWS, Tally, Window

TITLE = "an SGLang server log"
_DECODE = re.compile(r"Decode batch[^#]{0,40}#running-req: ([0-9]{1,7}),(.*)")
_FIELD = re.compile(r"([#A-Za-z][A-Za-z0-9 #()/.-]{1,40}): (-?[0-9.eE+-]+|True|False|nan|inf)(?:,|$|\s)")
_CACHED = re.compile(r"Prefill batch.*?#new-token: ([0-9]{1,12}), #cached-token: ([0-9]{1,12})")
_RANK = re.compile(r"\b((?:DP[0-9]{1,4}\s)?TP[0-9]{1,4}|DP[0-9]{1,4})\b")
_SETTINGS = re.compile(r"speculative_num_(steps|draft_tokens)=([0-9]{1,3})")
_KNOWN = {
    "#token", "token usage", "#full token", "full token usage", "#swa token", "swa token usage", "mamba num", "#mamba",
    "mamba usage", "accept len", "accept rate", "cuda graph", "cpu graph", "npu graph", "gen throughput (token/s)",
    "#queue-req", "pre-allocated usage", "#prealloc-req", "#transfer-req", "#retracted-req", "waiting-image-req",
    "#cache_miss", "largest-len", "#running-req",
}  # fmt: skip


def score(head: Head) -> float:
    return 0.0 if head.json else line_score(head, _DECODE, re.compile(r"\bsglang\b", re.IGNORECASE))


def read(source: Source) -> Found:
    """One cell for each number of running requests (and scheduler rank, when several print)."""
    found = Found(FORMAT.name, source.where, source.sha256())
    tallies: dict[str, Tally] = defaultdict(Tally)
    prefilled: dict[str, bool] = defaultdict(bool)
    new_tokens = cached_tokens = count = 0
    settings: dict[str, set[int]] = {"steps": set(), "draft_tokens": set()}
    for line in source.lines():
        if "Decode batch" in line and (match := _DECODE.search(line)):
            rank = _rank(line)
            count += 1
            if count > MAX_WINDOWS or len(tallies) > 1024:
                raise IngestError(
                    f"{source.where}: more than {MAX_WINDOWS:,} decode lines; cut the part that holds the run."
                )
            tallies[rank].add(_window(match, prefilled[rank], found))
            prefilled[rank] = False
        elif "Prefill batch" in line:
            prefilled[_rank(line)] = True
            if cached := _CACHED.search(line):
                new_tokens, cached_tokens = new_tokens + int(cached[1]), cached_tokens + int(cached[2])
        elif "speculative_num_" in line:
            for name, value in _SETTINGS.findall(line):
                settings[name].add(int(value))
    aside: dict[str, int] = defaultdict(int)
    for rank, tally in sorted(tallies.items()):
        cells, out = tally.cells("decode")
        for reason, number in out.items():
            aside[reason] += number
        for cell in cells:
            cell.label = f"{rank}, {cell.label}" if len(tallies) > 1 else cell.label
            cell.engine = "sglang"
            cell.k = _draft_tokens(settings)
            if new_tokens + cached_tokens:
                cell.prefix_hit_share = cached_tokens / (new_tokens + cached_tokens)
        found.cells += cells
    found.notes += [f"{number} windows set aside: {reason}" for reason, number in sorted(aside.items())]
    if not found.cells:
        raise nothing_inside(
            source,
            TITLE,
            f"no three clean decode intervals at one number of running requests ({count} lines; "
            f"{'; '.join(found.notes) or 'none usable'})",
        )
    return found


def _rank(line: str) -> str:
    match = _RANK.search(line[:120])
    return match[1] if match else "rank 0"


def _draft_tokens(settings: dict[str, set[int]]) -> int | None:
    """k from the printed server arguments: draft tokens verified count the last kept token, so k is one less."""
    if len(settings["draft_tokens"]) == 1:
        k = next(iter(settings["draft_tokens"])) - 1
        return k if k >= 0 else None
    return None


def _window(match: re.Match[str], prefilled: bool, found: Found) -> Window:
    running = int(match[1])
    fields: dict[str, float] = {}
    for name, value in _FIELD.findall(match[2]):
        name = name.strip()
        if name not in _KNOWN:
            found.keep(f"Decode batch: {name}", value)
            continue
        try:
            fields[name] = float(value)
        except ValueError:
            continue
    length = fields.get("accept len")
    rate = fields.get("gen throughput (token/s)", 0.0)
    window = Window(running, None, length if length and 1.0 <= length <= 65.0 else None, disturbed=prefilled)
    if running > 0 and 0 < rate < float("inf") and (length is None or window.tokens_per_step):
        window.step_s = running * (window.tokens_per_step or 1.0) / rate
    held = fields.get("#token", fields.get("#full token"))
    if held is not None and held > 0 and running > 0:
        window.context_tokens = held / running
    return window


FORMAT = Reader("sglang-log", TITLE, score, read)
