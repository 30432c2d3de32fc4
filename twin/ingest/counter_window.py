"""A speculation window as JSON: counters before and after a run, as people save them beside a benchmark.

    {"before": {"num_drafts_total": ..., "num_draft_tokens_total": ..., "num_accepted_tokens_total": ...,
                "accepted_per_position": [...]}, "after": {...}, "delta": {...}}

Only the difference is used; a stored `delta` that disagrees with it is an error. Names with and without `_total` and
the `vllm:spec_decode_` prefix are read.
"""

from __future__ import annotations

from typing import Any

from twin.errors import IngestError
from twin.ingest.model import Cell, Flag, Found
from twin.ingest.numbers import number, numbers
from twin.ingest.reader import Head, Reader, key_score
from twin.ingest.results import single
from twin.ingest.source import Source
from twin.ingest.vllm_bench import draft_length

TITLE = "a window of speculation counters (before / after)"
_NAMES = {"drafts": "num_drafts", "drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
_POSITIONS = (
    "accepted_per_position",
    "num_accepted_tokens_per_pos",
    "accepted_per_pos",
    "num_accepted_tokens_per_pos_total",
)
_DERIVED = frozenset(
    (
        "scope",
        "accepted_fraction",
        "mean_accepted_per_draft",
        "position_acceptance_fraction",
        "delta",
        "before",
        "after",
    )
)


def score(head: Head) -> float:
    some = (
        "num_drafts_total",
        "num_draft_tokens_total",
        "num_accepted_tokens_total",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
    )
    return key_score(head, ("before", "after"), some, enough=2)


def read(source: Source) -> Found:
    """One cell of acceptance only."""
    found = Found(FORMAT.name, source.where, source.sha256())
    raw = single(source)
    for key, value in raw.items():
        if key not in _DERIVED:
            found.keep(key, value)
    counts = {side: _counts(raw.get(side), f"{source.where}, {side}") for side in ("before", "after")}
    if any(a < b for a, b in zip(_flat(counts["after"]), _flat(counts["before"]), strict=False)):
        raise IngestError(
            f"{source.where}: a counter is smaller after than before; the server restarted in the window, or the two "
            "are swapped."
        )
    drafts, drafted, accepted = (counts["after"][n] - counts["before"][n] for n in _NAMES)
    if drafts <= 0:
        raise IngestError(f"{source.where}: no draft was made in the window.")
    positions = [a - b for a, b in zip(counts["after"]["positions"], counts["before"]["positions"], strict=False)]
    _check_delta(raw.get("delta"), {"drafts": drafts, "drafted": drafted, "accepted": accepted}, source.where)
    if accepted > drafted or any(p > drafts for p in positions):
        raise IngestError(f"{source.where}: more tokens accepted than drafted; the counters are not of one window.")
    cell = Cell("counter window", drafts=int(drafts), tokens_per_step=1.0 + accepted / drafts, acceptance_source="run")
    cell.survival = tuple(p / drafts for p in positions)
    draft_length(cell, drafts, drafted)
    if isinstance(raw.get("scope"), str):
        cell.notes.append(raw["scope"][:300])
    found.flags.append(Flag("acceptance-only", "counters of acceptance; no times in the file"))
    found.cells.append(cell)
    return found


def _counts(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise IngestError(f"{where}: expected an object of counters, got {str(raw)[:40]!r}.")
    plain = {str(k).removeprefix("vllm:").removeprefix("spec_decode_"): v for k, v in raw.items()}
    counts: dict[str, Any] = {}
    for name, key in _NAMES.items():
        value = number(plain.get(f"{key}_total", plain.get(key)), where, f"{key}_total")
        if value is None:
            raise IngestError(f"{where}: the counter {key}_total is missing.")
        counts[name] = value
    listed: Any = next((plain[key] for key in _POSITIONS if key in plain), [])
    if isinstance(listed, dict):
        # Keys are positions as texts.
        try:
            listed = [listed[key] for key in sorted(listed, key=int)]
        except ValueError:
            raise IngestError(f"{where}: the per-position counters need whole numbers as keys.") from None
    counts["positions"] = numbers(listed, where, "accepted_per_position")
    if len(counts["positions"]) > 256:
        raise IngestError(f"{where}: {len(counts['positions'])} draft positions; expected at most 256.")
    return counts


def _flat(counts: dict[str, Any]) -> list[float]:
    return [*(counts[name] for name in _NAMES), *counts["positions"]]


def _check_delta(delta: Any, computed: dict[str, float], where: str) -> None:
    if not isinstance(delta, dict):
        return
    for name, key in _NAMES.items():
        stored = number(delta.get(f"{key}_total", delta.get(key)), where, f"delta {key}_total")
        if stored is not None and stored != computed[name]:
            raise IngestError(f"{where}: delta says {stored:g} {key}, after minus before is {computed[name]:g}.")


FORMAT = Reader("counter-window", TITLE, score, read)
