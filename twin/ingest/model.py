"""What a reader finds in a file, in internal units, before a lane and a traffic class are known.

A `Cell` is one measured point of a run; `Found` is everything a file said, including the keys nobody asked for. Cells
become receipts in `twin.ingest.receipts`, after `twin.ingest.meaning` has settled the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from twin.fitting.receipts import Definition

#: whether a client's inter-token latency is one sample a streamed chunk (a verify step) or spread over its tokens
ItlUnit = Literal["", "chunk", "token"]
#: how the acceptance of a cell was measured
AcceptanceSource = Literal["", "run", "server_average", "itl_over_tpot"]


@dataclass(frozen=True)
class Flag:
    """A thing to know about a run: `code` for programs, `text` for people."""

    code: str
    text: str


@dataclass(slots=True)
class Cell:
    """One measured point. Times in seconds, rates in tokens per second, None where the file does not say.

    `step_s` is a verify step measured directly (chunk intervals, log intervals, traces), `itl_s` and `tpot_s` what a
    client reports under those names. `concurrency_asked` is the load generator's limit, `concurrency_achieved` the mean
    number of requests in flight. `tokens_per_step` includes the bonus token; `survival` is accepted at position p over
    drafts. `batch_tokens` is set when the file gives only the tokens of a batch (k and concurrency then come from
    flags). `accept_rate` is a share of the drafts, which gives tokens per step once k is known; `unclear_tok_s` and
    `unclear_accept` are numbers whose meaning the file leaves open until a flag decides, or `tg_hint`, what the other
    rows of the table imply. `exclude` is a reason to keep every row of the cell out of a fit, `doubt` one for its step
    and token rates only.
    """

    label: str
    k: int | None = None
    rows: int | None = None
    verification: str = ""
    concurrency_asked: float | None = None
    concurrency_achieved: float | None = None
    context_tokens: float | None = None
    output_tokens: float | None = None
    tokens_per_step: float | None = None
    acceptance_source: AcceptanceSource = ""
    survival: tuple[float, ...] = ()
    drafts: int | None = None
    step_s: float | None = None
    step_definition: Definition = ""
    itl_s: float | None = None
    itl_median_s: float | None = None
    itl_p99_s: float | None = None
    itl_unit: ItlUnit = ""
    tpot_s: float | None = None
    tok_s_per_stream: float | None = None
    per_stream_definition: Definition = ""
    tok_s_aggregate: float | None = None
    aggregate_definition: Definition = ""
    ttft_s: float | None = None
    prefill_tok_s: float | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    batch_tokens: int | None = None
    noise: float | None = None
    prefix_hit_share: float | None = None
    accept_rate: float | None = None
    unclear_tok_s: float | None = None
    unclear_accept: float | None = None
    tg_hint: str = ""
    exclude: str = ""
    doubt: str = ""
    checkpoint: str = ""
    engine: str = ""
    date: str = ""
    notes: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)

    def flag(self, code: str, text: str) -> None:
        """Add a flag once."""
        if all(f.code != code for f in self.flags):
            self.flags.append(Flag(code, text))


@dataclass
class Found:
    """What one file holds. `unknown` keeps every key the reader has no meaning for, with its value or a summary of it.

    `extras` is for findings that are not receipts (a trace's kernel table, routing counts), ready for JSON. `state` is
    for the reader itself, for instance the counters of a metrics page that a second page is subtracted from.
    """

    format: str
    where: str
    sha256: str = ""
    cells: list[Cell] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    state: Any = None

    def keep(self, key: str, value: Any) -> None:
        """Keep a key without a known meaning; large values are kept as a summary, and at most 200 keys."""
        if len(self.unknown) < 200:
            self.unknown[key[:120]] = shorten(value)


def shorten(value: Any) -> Any:
    """`value` small enough to show: long lists and texts as a description of themselves."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, str):
        return value if len(value) <= 200 else f"{value[:200]}... ({len(value)} characters)"
    if isinstance(value, list):
        return (
            f"list of {len(value)}"
            if len(value) > 8
            else [shorten(v) if not isinstance(v, (list, dict)) else kind(v) for v in value]
        )
    if isinstance(value, dict):
        return {
            str(k)[:80]: shorten(v) if not isinstance(v, (list, dict)) else kind(v) for k, v in list(value.items())[:8]
        }
    return kind(value)


def clean(text: str) -> str:
    """`text` for a table or a terminal: lone surrogates and control characters, which files may hold, become "?"."""
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "?" for c in text)


def kind(value: Any) -> str:
    """A short description of a container."""
    if isinstance(value, dict):
        return f"object of {len(value)} keys"
    if isinstance(value, list):
        return f"list of {len(value)}"
    return type(value).__name__
