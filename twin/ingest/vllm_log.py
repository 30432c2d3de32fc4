"""vLLM server logs: the periodic throughput line and, with speculation, the `SpecDecoding metrics` line.

    Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 47.4 tokens/s, Running: 1 reqs,
        Waiting: 0 reqs, GPU KV cache usage: 1.9%, Prefix cache hit rate: 37.2%
    SpecDecoding metrics: Mean acceptance length: 2.01, Accepted throughput: ..., Drafted throughput: ...,
        Accepted: 206 tokens, Drafted: 609 tokens, Per-position acceptance rate: 0.601, 0.286, 0.128, ...

The per-position rates are survival (accepted at least that far over drafts) and the acceptance length includes the
bonus token. Both lines cover the same interval: vLLM prints the throughput line and its speculation line right after,
with one time stamp; a speculation line that a shipper put first is matched to it by the stamp. After
vllm/v1/metrics/loggers.py (`log`) and vllm/v1/spec_decode/metrics.py.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict

import numpy as np

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.reader import Head, Reader, line_score, nothing_inside
from twin.ingest.source import Source
from twin.ingest.windows import MAX_WINDOWS, Acceptance, Tally, Window

TITLE = "a vLLM server log"
_N = r"([0-9]+(?:\.[0-9]+)?)"
_SPEC = re.compile(rf"SpecDecoding metrics: Mean acceptance length: {_N}")
_ACCEPTED = re.compile(r"Accepted: ([0-9]{1,15}) tokens, Drafted: ([0-9]{1,15}) tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: ([0-9., ]{1,2000}?),? (?:Avg|$)")
_RATE = re.compile(
    rf"Avg prompt throughput: {_N} tokens/s, Avg generation throughput: {_N} tokens/s, Running: ([0-9]{{1,7}}) reqs, "
    r"(.*)"
)
_ENGINE = re.compile(r"Engine ([0-9]{1,4}):")
_WAITING = re.compile(r"Waiting: ([0-9]{1,7}) reqs")
_HITS = re.compile(rf"Prefix cache hit rate: {_N}%")
_STAMP = re.compile(r"\b[0-9]{2}-[0-9]{2} ([0-9]{2}):([0-9]{2}):([0-9]{2})\b")
#: lines of one interval are printed within a blink; intervals are seconds apart
_SAME_S = 1
_NEAR = re.compile(r"\bvllm\b", re.IGNORECASE)
_SETTINGS = re.compile(r"""num_speculative_tokens['"]?\s*[:=]\s*([0-9]{1,3})""")


def score(head: Head) -> float:
    return 0.0 if head.json else line_score(head, re.compile(f"{_SPEC.pattern}|{_RATE.pattern}"), _NEAR)


def read(source: Source) -> Found:
    """One cell for each number of running requests; a log with only speculation lines gives an acceptance cell."""
    found = Found(FORMAT.name, source.where, source.sha256())
    tallies: dict[str, Tally] = defaultdict(Tally)
    alone = Acceptance()
    hits = array("d")
    k_set: set[int] = set()
    pairs = _Pairs()
    for line in source.lines():
        if "SpecDecoding metrics" in line:
            spec = _speculation(line)
            if spec is None:
                found.keep("unread SpecDecoding line", line[:200])
                continue
            alone.add(spec)
            pairs.speculation(spec, _seconds(line))
        elif "Avg generation throughput" in line and (match := _RATE.search(line)):
            engine = _ENGINE.search(line)
            tally = tallies[engine[1] if engine else "0"]
            if sum(t.count for t in tallies.values()) >= MAX_WINDOWS or len(tallies) > 1024:
                raise _too_long(source)
            tally.add(pairs.throughput(match, _seconds(line)))
            if hit := _HITS.search(line):
                hits.append(float(hit[1]) / 100.0)
        elif "num_speculative_tokens" in line and (setting := _SETTINGS.search(line)):
            k_set.add(int(setting[1]))
    _finish(found, tallies, alone, hits, k_set)
    if not found.cells:
        raise nothing_inside(source, TITLE, _why_nothing(found, tallies))
    return found


def _too_long(source: Source) -> IngestError:
    return IngestError(f"{source.where}: more than {MAX_WINDOWS:,} log intervals; cut the part that holds the run.")


def _seconds(line: str) -> int | None:
    """Seconds of the day of a line's stamp; None without one."""
    stamp = _STAMP.search(line)
    return 3600 * int(stamp[1]) + 60 * int(stamp[2]) + int(stamp[3]) if stamp else None


class _Pairs:
    """Puts the two lines of an interval together, whichever comes first; without stamps the throughput line does."""

    def __init__(self) -> None:
        self._open: tuple[Window, int | None] | None = None
        self._early: tuple[Window, int | None] | None = None

    def throughput(self, match: re.Match[str], at: int | None) -> Window:
        """The window of a throughput line; its speculation line may have come before it or may come next."""
        prompt, generated, running = float(match[1]), float(match[2]), int(match[3])
        waiting = _WAITING.search(match[4])
        window = Window(running, None, None, disturbed=prompt > 0, waiting=int(waiting[1]) if waiting else 0)
        if generated > 0 and running > 0:
            window.step_s = running / generated
        early, self._early, self._open = self._early, None, (window, at)
        if early is not None and at is not None and _same(early[1], at):
            self.speculation(early[0], at)
        return window

    def speculation(self, spec: Window, at: int | None) -> None:
        """Give the acceptance of a speculation line to the throughput line of its interval."""
        if self._open is None or (at is not None and self._open[1] is not None and not _same(self._open[1], at)):
            self._early = spec, at
            return
        window, _ = self._open
        window.tokens_per_step, window.drafts = spec.tokens_per_step, spec.drafts
        window.accepted_per_position = spec.accepted_per_position
        if window.step_s is not None and spec.tokens_per_step:
            window.step_s *= spec.tokens_per_step
        self._open = None


def _same(one: int | None, other: int) -> bool:
    return one is not None and min((one - other) % 86400, (other - one) % 86400) <= _SAME_S


def _speculation(line: str) -> Window | None:
    length, counts = _SPEC.search(line), _ACCEPTED.search(line)
    if length is None or not 1.0 <= float(length[1]) <= 65.0:
        return None
    window = Window(running=0, step_s=None, tokens_per_step=float(length[1]))
    if (positions := _POSITIONS.search(line)) and counts:
        try:
            rates = [float(p) for p in positions[1].split(",") if p.strip()]
        except ValueError:
            return None
        accepted, total = int(counts[1]), sum(rates)
        # The line prints rates, not counts; drafts follow from accepted = drafts x sum of rates.
        drafts = accepted / total if total > 0 else 0.0
        if rates and drafts:
            window.drafts, window.accepted_per_position = drafts, tuple(r * drafts for r in rates)
    return window


def _finish(found: Found, tallies: dict[str, Tally], alone: Acceptance, hits: array[float], k_set: set[int]) -> None:
    aside: dict[str, int] = defaultdict(int)
    for engine, tally in sorted(tallies.items()):
        cells, out = tally.cells("log")
        for reason, count in out.items():
            aside[reason] += count
        for cell in cells:
            cell.label = f"engine {engine}, {cell.label}" if len(tallies) > 1 else cell.label
            cell.k = len(cell.survival) or (next(iter(k_set)) if len(k_set) == 1 else None)
            if not cell.tokens_per_step and not k_set:
                cell.notes.append(
                    "no SpecDecoding line, so the step is that of decoding without speculation, if that is what ran"
                )
            cell.prefix_hit_share = float(np.median(hits)) if hits else None
            cell.engine = "vllm"
        found.cells += cells
    if not found.cells and alone.count:
        found.cells.append(_acceptance_only(alone))
    if len(k_set) > 1:
        found.notes.append(
            f"several num_speculative_tokens in the log: {sorted(k_set)}; the k is taken from the per-position rates"
        )
    for reason, count in sorted(aside.items()):
        found.notes.append(f"{count} windows set aside: {reason}")


def _acceptance_only(pooled: Acceptance) -> Cell:
    cell = Cell("acceptance over the whole log", engine="vllm", acceptance_source="run")
    if pooled.survival:
        cell.survival = pooled.survival
        cell.k, cell.drafts = len(pooled.survival), round(pooled.drafts)
        cell.tokens_per_step = 1.0 + sum(pooled.survival)
    else:
        cell.tokens_per_step = pooled.tokens_per_step
    cell.flag(
        "no-throughput",
        "no usable throughput windows beside the speculation lines: acceptance only, all concurrencies pooled",
    )
    return cell


def _why_nothing(found: Found, tallies: dict[str, Tally]) -> str:
    windows = sum(t.count for t in tallies.values())
    if not windows:
        return "no throughput line and no readable SpecDecoding line"
    why = "; ".join(found.notes) or "none usable"
    return f"no three clean intervals at one number of running requests ({windows} intervals; {why})"


FORMAT = Reader("vllm-log", TITLE, score, read)
