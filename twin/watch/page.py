"""A metrics page as numbers, and what happened between two of them.

Everything is summed over engines. Series that a server does not have are missing from the window, not zero, and what
needs them is left out. A counter that fell, or another process start, means a restart in between: that interval says
nothing, and the next one is complete again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twin.errors import IngestError

_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
#: series of ours -> names a vLLM server may give it (without `vllm:`), the newest first
COUNTERS = {
    "itl_sum": ("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
    "itl_count": ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    "steps": ("iteration_tokens_total_count",),
    "drafts": ("spec_decode_num_drafts_total",),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "generated": ("generation_tokens_total",),
    "prompt": ("prompt_tokens_total",),
    "started": ("time_to_first_token_seconds_count",),
    "ttft_sum": ("time_to_first_token_seconds_sum",),
    "answered": ("request_generation_tokens_count",),
    "answer_tokens": ("request_generation_tokens_sum",),
    "hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
}
GAUGES = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
}
#: fewer finished answers say nothing about the spread of their lengths
LEAST_ANSWERS = 20
_ANSWERS = "vllm:request_generation_tokens_bucket"
_CLOCK, _START = "twin:clock_seconds_total", "process_start_time_seconds"


@dataclass
class Page:
    """One reading: counters and gauges by our names, accepted drafts by position (from 0), and when it was taken."""

    time_s: float
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    positions: dict[int, float] = field(default_factory=dict)
    start_s: float | None = None
    #: upper edge in tokens -> requests with answers up to that long, since the server started
    answers: dict[float, float] = field(default_factory=dict)

    def answer_lengths(self) -> tuple[float, float] | None:
        """Mean of the answers' lengths in tokens and their squared coefficient of variation, from the histogram's
        buckets; None: too few."""
        total = self.answers.get(math.inf, 0.0)
        if total < LEAST_ANSWERS:
            return None
        below = below_count = mean = square = 0.0
        for edge, count in sorted(self.answers.items()):
            middle = 0.5 * (below + edge) if edge < math.inf else below
            mean += (count - below_count) / total * middle
            square += (count - below_count) / total * middle**2
            below, below_count = edge, count
        if not mean:
            return None
        exact = self.counters.get("answer_tokens", 0.0) / (self.counters.get("answered") or 1.0)
        return exact or mean, square / mean**2 - 1.0


def parse_page(text: str, read_s: float, where: str = "the metrics page") -> Page:
    """Read a page taken at `read_s` (seconds of any steady clock). A page that carries the twin's own clock is dated
    by that. Raises IngestError when it is no such page or has none of the series."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = defaultdict(float)
    page = Page(read_s)
    positions: dict[int, float] = defaultdict(float)
    answers: dict[float, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name, value = sample.name, float(sample.value)
                if not math.isfinite(value) or value < 0:
                    continue  # a gauge before its first reading
                if name == _CLOCK:
                    page.time_s = value
                elif name == _START:
                    page.start_s = value
                elif name == f"vllm:{_POSITION}":
                    place = sample.labels.get("position", "")
                    if place.isascii() and place.isdigit() and int(place) < 256:
                        positions[int(place)] += value
                elif name == _ANSWERS:
                    answers[float(sample.labels.get("le", "inf"))] += value
                elif name.startswith("vllm:"):
                    sums[name.removeprefix("vllm:")] += value
    except (ArithmeticError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise IngestError(f"{where}: not a Prometheus page ({str(error)[:120]}).") from None
    for ours, names in COUNTERS.items():
        found = next((n for n in names if n in sums), None)
        if found is not None:
            page.counters[ours] = sums[found]
    for ours, names in GAUGES.items():
        found = next((n for n in names if n in sums), None)
        if found is not None:
            page.gauges[ours] = sums[found]
    page.positions, page.answers = dict(positions), dict(answers)
    if not page.counters:
        raise IngestError(f"{where}: none of vLLM's series are in it; is this another server's page?")
    return page


@dataclass(frozen=True)
class Window:
    """What happened between two readings. None: the server does not say, or nothing of the kind happened."""

    seconds: float
    step_s: float | None  # mean interval between a stream's outputs
    intervals: float  # how many of those
    streams: float | None  # mean decoding streams of a step
    steps: float | None
    draft_tokens: float | None  # mean length of a draft block
    drafts: float
    accepted: tuple[float, ...]  # drafts kept at least so far, by position
    tokens_per_step: float | None
    output_tok_s: float | None
    started: float  # requests that got their first token
    prompt_tokens: float | None  # computed prompt tokens of a started request, mean
    ttft_s: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    steady: bool  # as many requests were running before as after


def restarted(before: Page, after: Page) -> str:
    """Why the two pages are not of one life of the server; empty when they are."""
    if before.start_s is not None and after.start_s is not None and abs(before.start_s - after.start_s) > 1.0:
        return "the process start time changed"
    for name, value in before.counters.items():
        if after.counters.get(name, value) < value:
            return f"the counter {COUNTERS[name][0]} fell"
    for position, value in before.positions.items():
        if after.positions.get(position, value) < value:
            return f"the counter of position {position} fell"
    return "" if after.time_s >= before.time_s else "its clock went back"


def difference(before: Page, after: Page) -> Window:
    """The window between two pages of one life (`restarted` says whether they are)."""

    def moved(name: str) -> float | None:
        if name not in after.counters or name not in before.counters:
            return None
        return after.counters[name] - before.counters[name]

    def ratio(over: float | None, under: float | None) -> float | None:
        return over / under if over is not None and under else None

    seconds = after.time_s - before.time_s
    intervals, steps, drafts = moved("itl_count") or 0.0, moved("steps"), moved("drafts") or 0.0
    started = moved("started") or 0.0
    prompt = moved("prompt")
    computed = None if prompt is None else max(prompt - (moved("hits") or 0.0), 0.0)
    longest = max(after.positions, default=-1) + 1
    accepted = tuple(after.positions.get(p, 0.0) - before.positions.get(p, 0.0) for p in range(longest))
    kept = ratio(moved("accepted"), drafts)
    running = before.gauges.get("running"), after.gauges.get("running")
    near = running[0] is not None and running[1] is not None and abs(running[0] - running[1]) <= 0.1 * running[1]
    return Window(
        seconds=seconds, step_s=ratio(moved("itl_sum"), intervals), intervals=intervals,
        streams=ratio(intervals, steps) or running[1], steps=steps, draft_tokens=ratio(moved("drafted"), drafts),
        drafts=drafts, accepted=accepted, tokens_per_step=1.0 + kept if kept is not None else None,
        output_tok_s=ratio(moved("generated"), seconds), started=started, prompt_tokens=ratio(computed, started),
        ttft_s=ratio(moved("ttft_sum"), started), running=running[1], waiting=after.gauges.get("waiting"),
        kv_usage=after.gauges.get("kv_usage"), steady=near,
    )  # fmt: skip


def drafts_together(windows: Sequence[Window]) -> Window:
    """What several windows in a row drafted, as one; what else is in them is the last one's."""
    drafts = sum(w.drafts for w in windows)
    drafted = sum((w.draft_tokens or 0.0) * w.drafts for w in windows)
    longest = max((len(w.accepted) for w in windows), default=0)
    accepted = tuple(sum(w.accepted[p] for w in windows if p < len(w.accepted)) for p in range(longest))
    steps = [w.steps for w in windows if w.steps is not None]
    return replace(
        windows[-1], seconds=sum(w.seconds for w in windows), drafts=drafts, accepted=accepted,
        draft_tokens=drafted / drafts if drafts else None, started=sum(w.started for w in windows),
        steps=sum(steps) if len(steps) == len(windows) else None,
    )  # fmt: skip
