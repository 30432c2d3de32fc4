"""vLLM's Prometheus page (`/metrics`): one snapshot, or the difference of two.

Counters of speculation give acceptance, the histograms give mean TTFT, ITL and TPOT. `vllm:inter_token_latency_seconds`
(earlier `vllm:time_per_output_token_seconds`) is observed once for each output of a request, so with speculation it is
the step; `vllm:request_time_per_output_token_seconds` is the mean TPOT of each request. The page has no clock, so rates
per second cannot be had from it. Samples are matched by name, because the family name has or lacks `_total` depending
on the exposition format. A counter that fell, or another process start, means the server restarted in between: then
only the second page counts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from twin.errors import IngestError
from twin.ingest.meaning import IDENTITY_TOLERANCE
from twin.ingest.model import Cell, Found
from twin.ingest.reader import Head, Reader, line_score, nothing_inside
from twin.ingest.source import Source
from twin.ingest.vllm_bench import draft_length

TITLE = "a vLLM metrics page (Prometheus text)"
#: one answer of /metrics is some hundred kilobytes; the parser keeps a family's samples at some hundred bytes each
MAX_PAGE_BYTES = 4 * 2**20
MAX_SAMPLES = 500_000
_NO_PAGE = (
    "one answer of /metrics is some hundred kilobytes, so this is a collection of pages; save the page of one moment"
)
_DRAFTS, _DRAFTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED, _POSITION = (
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
_TTFT, _TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
_ITL = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_PROMPT, _GENERATED, _DONE = "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
_OLD_HITS, _OLD_QUERIES = "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_START = "process_start_time_seconds"
_SUMS = (_TTFT, _TPOT, *_ITL)
_COUNTERS = frozenset(
    (_DRAFTS, _DRAFTED, _ACCEPTED, _PROMPT, _GENERATED, _DONE, _HITS, _QUERIES, _OLD_HITS, _OLD_QUERIES)
) | {name + end for name in _SUMS for end in ("_sum", "_count")}
_GAUGES = frozenset((_RUNNING, _WAITING, *_USAGE, _START))
_SIGNATURE = re.compile(r"^(# (HELP|TYPE) )?vllm:[a-z_]+", re.MULTILINE)
_ANY_PAGE = re.compile(r"^# (HELP|TYPE) \S+|^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^}]*\})? [0-9.eE+-]+\s*$", re.MULTILINE)


@dataclass
class Page:
    """The counters and gauges of one page, summed over engines; per-position counters by position."""

    counters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gauges: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    positions: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    models: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)


def score(head: Head) -> float:
    return 0.0 if head.json else line_score(head, _SIGNATURE, _ANY_PAGE)


def read(source: Source) -> Found:
    """One page on its own: averages since the server started; `difference` subtracts an earlier page."""
    found = Found(FORMAT.name, source.where, source.sha256())
    page = _parse(source, found)
    found.state = page
    if len(page.models) > 1:
        raise IngestError(
            f"{source.where}: counters of several models ({', '.join(sorted(page.models)[:5])}); keep the lines of one."
        )
    cell = _cell(page, "since the server started", source.where)
    cell.flag(
        "since-start",
        "one page holds everything since the server started, warm-up included; give a page from before the run and "
        "one from after",
    )
    found.cells.append(cell)
    return found


def difference(before: Found, after: Found) -> Found:
    """What happened between two pages of one server, as one Found; notices a restart in between."""
    first, second = before.state, after.state
    if not isinstance(first, Page) or not isinstance(second, Page):
        raise IngestError(f"{after.where}: only two metrics pages can be subtracted.")
    if first.models and second.models and first.models != second.models:
        raise IngestError(
            f"{before.where} and {after.where} are of different models: "
            f"{', '.join(sorted(first.models | second.models))}."
        )
    found = Found(
        FORMAT.name, after.where, after.sha256, unknown=after.unknown, notes=[*after.notes, f"minus {before.where}"]
    )
    fallen = [n for n in sorted(_COUNTERS & set(first.counters)) if second.counters.get(n, 0.0) < first.counters[n]]
    fallen += [
        f"{_POSITION} position {p}"
        for p in sorted(first.positions)
        if second.positions.get(p, 0.0) < first.positions[p]
    ]
    started = first.gauges.get(_START), second.gauges.get(_START)
    restarted = started[0] is not None and started[1] is not None and abs(started[0] - started[1]) > 1.0
    if fallen or restarted:
        cell = _cell(second, "since the restart", after.where)
        why = f"{fallen[0]} fell" if fallen else "the process start time changed"
        cell.flag(
            "counter-reset",
            f"{why} between the pages: the server restarted (or the pages are swapped); only what the second page "
            "counts is used",
        )
    else:
        delta = Page(gauges=second.gauges, models=second.models, engines=second.engines)
        delta.counters = {n: v - first.counters.get(n, 0.0) for n, v in second.counters.items()}
        delta.positions = {p: v - first.positions.get(p, 0.0) for p, v in second.positions.items()}
        if not any(delta.counters.values()):
            raise IngestError(
                f"{after.where}: no counter moved since {before.where}; no request ran in between, or it is the same "
                "page twice."
            )
        cell = _cell(delta, f"between {before.where} and this page", after.where)
        running = first.gauges.get(_RUNNING), second.gauges.get(_RUNNING)
        if running[0] and running[0] == running[1]:
            cell.notes.append(f"{running[0]:g} requests were running at both pages")
    found.cells.append(cell)
    return found


def _parse(source: Source, found: Found) -> Page:
    page, count = Page(), 0
    seen: set[object] = set()
    try:
        for family in text_string_to_metric_families(source.text(MAX_PAGE_BYTES, _NO_PAGE)):
            for sample in family.samples:
                count += 1
                if count > MAX_SAMPLES:
                    raise IngestError(f"{source.where}: more than {MAX_SAMPLES:,} samples; this is more than one page.")
                _take(page, sample.name, dict(sample.labels), float(sample.value), source.where, seen, found)
    except (ArithmeticError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        # The parser raises several kinds on text that is no exposition format.
        raise IngestError(
            f"{source.where}: not a Prometheus page ({str(error)[:120]}); save the answer of GET /metrics as it is."
        ) from None
    if not page.counters:
        raise nothing_inside(
            source, TITLE, "none of vLLM's request or speculation counters (is it another server's page?)"
        )
    return page


def _take(
    page: Page, name: str, labels: dict[str, str], value: float, where: str, seen: set[object], found: Found
) -> None:
    wanted = name in _COUNTERS or name in _GAUGES or name == _POSITION
    if not wanted:
        if name.startswith("vllm:") and not name.endswith(("_bucket", "_created", "_sum", "_count")):
            found.keep(name, value)
        return
    key = (name, tuple(sorted(labels.items())))
    if key in seen:
        raise IngestError(
            f"{where}: the sample {name}{{{', '.join(f'{k}={v}' for k, v in key[1])}}} appears twice; two pages in "
            "one file? Split them."
        )
    seen.add(key)
    if not math.isfinite(value):
        raise IngestError(f"{where}: {name} is {value}; a counter cannot be that.")
    if value < 0:
        raise IngestError(f"{where}: {name} is {value:g}; a counter cannot be negative.")
    if "model_name" in labels and name != _START:
        page.models.add(labels["model_name"])
    if "engine" in labels:
        page.engines.add(labels["engine"])
    if name == _POSITION:
        position = labels.get("position", "")
        if not position.isascii() or not position.isdigit() or int(position) > 255:
            raise IngestError(f"{where}: {name} has position {position[:20]!r}; expected a whole number.")
        page.positions[int(position)] += value
    elif name in _GAUGES:
        page.gauges[name] = value if name == _START else page.gauges[name] + value
    else:
        page.counters[name] += value


def _cell(page: Page, label: str, where: str) -> Cell:
    counters = page.counters
    cell = Cell(label, engine="vllm", checkpoint=next(iter(page.models), "")[:200])
    cell.ttft_s, cell.tpot_s = _mean(counters, _TTFT), _mean(counters, _TPOT)
    cell.itl_s = _mean(counters, _ITL[0]) or _mean(counters, _ITL[1])
    cell.itl_unit = "chunk" if cell.itl_s else ""
    _speculation(cell, page, where)
    requests = counters.get(f"{_TTFT}_count") or counters.get(_DONE) or 0.0
    prompt, generated = counters.get(_PROMPT), counters.get(_GENERATED)
    if requests and prompt:
        cell.context_tokens = prompt / requests
    if requests and generated:
        cell.output_tokens = generated / requests
    _check_steps(cell, counters, requests)
    hits, queries = counters.get(_HITS, counters.get(_OLD_HITS)), counters.get(_QUERIES, counters.get(_OLD_QUERIES))
    if queries:
        cell.prefix_hit_share = min(1.0, (hits or 0.0) / queries)
    if page.gauges.get(_WAITING):
        cell.flag(
            "requests-waiting", f"{page.gauges[_WAITING]:g} requests were waiting at the page: TTFT holds queueing"
        )
    usage = [page.gauges[name] for name in _USAGE if name in page.gauges]
    if usage and usage[0] > 0.95 * max(1, len(page.engines)):
        cell.flag("kv-cache-full", f"KV cache usage {usage[0]:.0%}: preemptions are likely")
    if len(page.engines) > 1:
        cell.flag("several-engines", f"{len(page.engines)} engines summed; --concurrency is the streams of one engine")
    if not (cell.tokens_per_step or cell.itl_s or cell.tpot_s or cell.ttft_s):
        raise IngestError(f"{where}: the counters are all zero ({label}); nothing ran.")
    return cell


def _mean(counters: dict[str, float], name: str) -> float | None:
    count, total = counters.get(f"{name}_count", 0.0), counters.get(f"{name}_sum", 0.0)
    return total / count if count > 0 and total > 0 else None


def _speculation(cell: Cell, page: Page, where: str) -> None:
    drafts, drafted, accepted = (page.counters.get(n, 0.0) for n in (_DRAFTS, _DRAFTED, _ACCEPTED))
    if drafts <= 0:
        return
    if accepted > drafted * (1 + 1e-9):
        raise IngestError(
            f"{where}: {accepted:g} accepted of {drafted:g} drafted tokens; the counters are of different servers or "
            "damaged."
        )
    places = sorted(page.positions)
    if places and places != list(range(len(places))):
        raise IngestError(
            f"{where}: per-position counters for positions {places[:8]}; expected 0, 1, 2, ... without a gap."
        )
    cell.survival = tuple(page.positions[p] / drafts for p in places)
    if any(p > 1.0005 for p in cell.survival):
        raise IngestError(
            f"{where}: more tokens accepted at a position than drafts; the counters are of different servers or "
            "damaged."
        )
    while cell.survival and cell.survival[-1] == 0.0 and len(cell.survival) > math.ceil(drafted / drafts):
        cell.survival = cell.survival[:-1]
    cell.drafts, cell.tokens_per_step, cell.acceptance_source = int(drafts), 1.0 + accepted / drafts, "run"
    draft_length(cell, drafts, drafted)
    if cell.survival and abs(sum(page.positions.values()) - accepted) > 0.001 * max(1.0, accepted):
        cell.flag(
            "positions-do-not-sum",
            f"per-position counters sum to {sum(page.positions.values()):g}, accepted tokens are {accepted:g}",
        )


def _check_steps(cell: Cell, counters: dict[str, float], requests: float) -> None:
    """Tokens per step a second way: generated tokens after the first of each request over observed intervals."""
    intervals = counters.get(f"{_ITL[0]}_count") or counters.get(f"{_ITL[1]}_count") or 0.0
    generated = counters.get(_GENERATED, 0.0)
    if cell.tokens_per_step and intervals > 100 and generated > requests:
        other = (generated - requests) / intervals
        if abs(other / cell.tokens_per_step - 1.0) > IDENTITY_TOLERANCE:
            cell.flag(
                "steps-disagree",
                f"generated tokens per observed interval {other:.3f}, accepted counters say "
                f"{cell.tokens_per_step:.3f} tokens per step",
            )


FORMAT = Reader("vllm-metrics", TITLE, score, read)
