"""Cleaning: from public tables of runs to receipts, by rules in a file, with a log line for every row.

The table has one row a measured cell as its source stated it (free text for lane, workload, k). A rule says which
lane the rows are of,
which traffic class their workload is, how their step time was defined and how noisy they are, or why they are excluded.
The first rule that matches a row decides; a row that no rule matches is excluded and says so.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from twin.errors import ReceiptError
from twin.fitting.receipts import MAX_BYTES, Receipt
from twin.lane.catalogue import NAME, build, read_toml
from twin.lane.sourced import Strict

EVIDENCE_COLUMNS = {
    "id",
    "lane",
    "engine",
    "checkpoint",
    "parallelism",
    "k",
    "workload",
    "concurrency",
    "step_ms",
    "tok_s_aggregate",
}


_REPEATED_GROUP = re.compile(r"\)[*+{?]")
_REPEAT = re.compile(r"[*+{]")
#: a pattern sees so much of a cell; with at most `MAX_REPEATS` repeats that keeps a search short
MAX_SEARCHED = 500
MAX_REPEATS = 3


class Rule(Strict):
    """What to make of the rows whose id starts with one of `ids` and whose columns match the patterns of `match`."""

    ids: list[str] = Field(default=[], max_length=400)
    match: dict[str, str] = Field(default={}, max_length=16)
    lane: str = ""
    exclude: str = ""
    traffic: str = "mixed"
    workloads: dict[str, str] = Field(default={}, max_length=64)
    verification: Literal["token", "block", "greedy"] = "token"
    k: int | None = None
    tokens_per_step: float | None = None
    rows: Literal["full", "capped", "stated"] = "full"
    step_definition: Literal["step_interval", "pass_time", "chunk_interval"] = "step_interval"
    derived_step: Literal["step_interval", "mean_tpot"] = "step_interval"
    ttft: bool = False
    aggregate_definition: Literal["fixed_window", "wall_with_ttft", "first_to_last_token"] = "fixed_window"
    context_tokens: int = 512
    output_tokens: int | None = None
    noise: float = Field(default=0.04, gt=0, le=2)
    prefill: bool = True
    prompts: Literal["", "unrelated", "similar", "same"] = ""
    use: Literal["fit", "validate"] = "fit"

    @field_validator("lane")
    @classmethod
    def _lane_is_a_name(cls, lane: str) -> str:
        # It becomes the name of a file.
        if lane and not NAME.fullmatch(lane):
            raise ValueError(f"{lane[:80]!r} is no name of a lane; expected letters, digits, dots and dashes")
        return lane

    @field_validator("match", "workloads")
    @classmethod
    def _patterns_end(cls, patterns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for pattern in patterns.values() if info.field_name == "match" else patterns:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{pattern[:80]!r} is no regular expression ({error})") from None
            if (
                len(pattern) > MAX_SEARCHED
                or _REPEATED_GROUP.search(pattern)
                or len(_REPEAT.findall(pattern)) > MAX_REPEATS
            ):
                raise ValueError(
                    f"{pattern[:80]!r} could search for ever; expected no repeated group and at most {MAX_REPEATS} of * + {{"
                )
        return patterns


class Rules(Strict):
    """The rule file, in order."""

    rule: list[Rule] = Field(max_length=1000)


@dataclass(frozen=True)
class LogLine:
    """What became of one row: the receipts made of it, or the reason why there is none."""

    id: str
    lane: str
    receipts: int
    reason: str


def is_evidence(path: Path) -> bool:
    """Whether a CSV file is a table of runs rather than of receipts."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            return set(next(csv.reader(stream), [])) >= EVIDENCE_COLUMNS
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_rules(path: Path) -> list[Rule]:
    """The rules of one TOML file."""
    return build(Rules, read_toml(path), str(path)).rule


def clean(table: Path, rules: Sequence[Rule]) -> tuple[list[Receipt], list[LogLine]]:
    """Receipts of a table of runs, and a log with one line a row. Raises ReceiptError when the table cannot be read."""
    try:
        if table.stat().st_size > MAX_BYTES:
            raise ReceiptError(f"{table}: larger than {MAX_BYTES // 2**20} MiB; split it.")
        rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReceiptError(f"{table}: cannot be read as CSV ({error}).") from None
    receipts: list[Receipt] = []
    log: list[LogLine] = []
    for number, row in enumerate(rows, start=2):
        row = {
            name: (cell or "").strip()
            for name, cell in row.items()
            if isinstance(name, str) and not isinstance(cell, list)
        }
        ident = row.get("id") or f"line-{number}"
        rule = next((r for r in rules if _matches(r, row)), None)
        if rule is None:
            log.append(LogLine(ident, "", 0, "no rule knows this lane"))
            continue
        if rule.exclude:
            log.append(LogLine(ident, rule.lane, 0, rule.exclude))
            continue
        try:
            made, reason = _receipts(ident, row, rule)
        except ValidationError as error:  # what the row states is outside what a receipt can be
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            made, reason = [], f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        receipts += made
        log.append(LogLine(ident, rule.lane, len(made), reason))
    return receipts, log


def _matches(rule: Rule, row: dict[str, str]) -> bool:
    if rule.ids and not any(row.get("id", "").startswith(prefix) for prefix in rule.ids):
        return False
    return all(re.search(pattern, row.get(column, "")[:MAX_SEARCHED]) for column, pattern in rule.match.items())


def _receipts(ident: str, row: dict[str, str], rule: Rule) -> tuple[list[Receipt], str]:
    k = rule.k if rule.k is not None else _number(row.get("k", ""))
    streams = _number(row.get("concurrency", "")) or _number(_found(r"concurrency=(\d+)", row.get("notes", "")))
    rate, per_stream = _number(row.get("tok_s_aggregate", "")), _number(row.get("tok_s_per_stream", ""))
    if row.get("prefill_tok_s") and not (rate or per_stream or row.get("step_ms")) and rule.prefill:
        return _prefill(ident, row, rule)
    if k is None or k != int(k):
        return [], f"k is {row.get('k', '')!r}, not one number"
    if streams is None or streams != int(streams):
        return [], f"concurrency is {row.get('concurrency', '')!r}, not one number"
    traffic = next(
        (
            name
            for pattern, name in rule.workloads.items()
            if re.search(pattern, row.get("workload", "")[:MAX_SEARCHED])
        ),
        rule.traffic,
    )
    kept = _number(row.get("tokens_per_step", "")) if k else None
    if k and kept is None:
        kept = rule.tokens_per_step
    if (
        k
        and kept is None
        and (counted := re.search(r"drafted 0*([1-9]\d{,14}) accepted (\d{1,15})", row.get("notes", "")))
    ):
        kept = 1.0 + int(counted[2]) / (int(counted[1]) / k)
    if kept is not None and not 1.0 <= kept <= k + 1:
        return [], f"{kept:g} tokens per step cannot come of k = {k:g}"
    context = _context_tokens(row) or rule.context_tokens
    common: dict[str, Any] = {
        "source": row.get("source", ""), "date": row.get("date", ""), "lane": rule.lane, "traffic": traffic, "workload": row.get("workload", "")[:60],
        "k": int(k), "verification": rule.verification, "context_tokens": max(1, int(context)), "concurrency": int(streams),
        "tokens_per_step": kept, "prompts": rule.prompts, "noise": rule.noise, "use": rule.use, "notes": row.get("notes", "")[:200],
    }  # fmt: skip
    rows = _rows(row, rule, int(k), int(streams), kept)
    if rows is not None:
        common["rows"] = rows
    step, inferred = _number(row.get("step_ms", "")), _number(row.get("step_ms_derived", ""))
    if (
        k == 0
        and step is None
        and inferred is None
        and per_stream is None
        and rate
        and rule.aggregate_definition != "wall_with_ttft"
    ):
        inferred = 1e3 * streams / rate
    value = step if step is not None else inferred
    if value is not None:
        definition = rule.step_definition if step is not None else rule.derived_step
        output = _output_tokens(row, rule) if definition == "mean_tpot" else None
        made = [
            Receipt(
                id=ident,
                quantity="step_time",
                definition=definition,
                value=value,
                unit="ms",
                output_tokens=output,
                **common,
            )
        ]
        first = _number(row.get("ttft_ms", "")) if rule.ttft and streams == 1 else None
        if first is None:
            return made, "step time"
        lone = common | {"tokens_per_step": None, "noise": max(rule.noise, 0.05)}
        made.append(Receipt(id=f"{ident}-ttft", quantity="ttft", value=first, unit="ms", **lone))
        return made, "step time and TTFT"
    if per_stream is not None:
        return [
            Receipt(
                id=ident,
                quantity="tok_s_per_stream",
                definition="first_to_last_token",
                value=per_stream,
                unit="tok/s",
                **common,
            )
        ], "tok/s per stream"
    if rate is not None:
        output = _output_tokens(row, rule)
        return [
            Receipt(
                id=ident,
                quantity="tok_s_aggregate",
                definition=rule.aggregate_definition,
                value=rate,
                unit="tok/s",
                output_tokens=output,
                **common,
            )
        ], "aggregate tok/s"
    if kept is not None:
        return [], "acceptance only: it belongs to a traffic class"
    return [], "no step time and no rate"


def _output_tokens(row: dict[str, str], rule: Rule) -> int | None:
    output = _number(_found(r"(\d+) (?:forced )?out", row.get("workload", ""))) or rule.output_tokens
    return int(output) if output else None


def _prefill(ident: str, row: dict[str, str], rule: Rule) -> tuple[list[Receipt], str]:
    context, rate = _context_tokens(row), _number(row.get("prefill_tok_s", ""))
    if context is None or rate is None or context < 256:
        return [], "a prefill rate without its prompt length"
    receipt = Receipt(
        id=ident, source=row.get("source", ""), date=row.get("date", ""), lane=rule.lane, traffic=rule.traffic, workload="prefill", k=0, context_tokens=int(context), concurrency=1,
        quantity="prefill_tok_s", value=rate, unit="tok/s", noise=max(rule.noise, 0.08), use=rule.use, notes=row.get("notes", "")[:200],
    )  # fmt: skip
    return [receipt], "prefill rate"


def _rows(row: dict[str, str], rule: Rule, k: int, streams: int, kept: float | None) -> int | None:
    """Verified rows a stream: all k + 1, what the row states, or about what is kept and one more when confidence caps
    them.
    """
    if rule.rows == "stated":
        stated = _number(
            _found(r"M=(\d+)", row.get("verification", ""))
            or _found(r"(\d+) batch tokens", row.get("verification", ""))
        )
        return None if stated is None else max(1, round(stated / streams))
    if rule.rows == "capped" and kept is not None:
        return int(min(k + 1, round(kept + 1)))
    return None


def _number(text: str) -> float | None:
    """One number, or the middle of "10.01-10.06"; None for anything else."""
    text = text.replace(",", "").strip().lstrip("~")
    if len(text) <= 40 and (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*-\s*(\d+(?:\.\d+)?)", text)):
        return (float(match[1]) + float(match[2])) / 2
    # Twenty digits are more than any cell means, and few enough for every conversion that follows.
    return float(text) if len(text) <= 20 and re.fullmatch(r"\d+(?:\.\d+)?", text) else None


def _context_tokens(row: dict[str, str]) -> float | None:
    """The first word of the column as tokens; "16k" is 16,384."""
    words = row.get("context_tokens", "").split()
    if words and re.fullmatch(r"\d{1,5}[kK]", words[0]):
        return 1024.0 * int(words[0][:-1])
    return _number(words[0]) if words else None


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def log_csv(log: Sequence[LogLine]) -> str:
    """The log as CSV text, one line a row of the table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "lane", "receipts", "reason"])
    writer.writerows([line.id, line.lane, line.receipts, line.reason] for line in log)
    return out.getvalue()
