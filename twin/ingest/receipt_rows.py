"""Which receipts a cell gives, and which of them a fit may see.

One run gives several rows about the same seconds; the most direct one is for fitting, the others are kept with the
reason why they do not count twice.
"""

from __future__ import annotations

from twin.fitting.receipts import Use
from twin.ingest.meaning import PREFIX_HIT_SHARE, live_streams
from twin.ingest.model import Cell

SAME_RUN = "same run"
#: kernel class of a trace -> mechanism of the step model that it is compared with
STAGES = {
    "attention": "attention",
    "experts": "experts",
    "dense": "dense",
    "all_reduce": "all_reduce_exposed",
    "sampling": "sampling",
    "other": "other",
}
_STAGE_DOUBT = {
    "all_reduce": "a collective's kernel time includes waiting for the other ranks",
    "sampling": "kernel names do not separate sampling from other small reductions",
    "other": "kernels whose names say nothing",
}
DIRECT = ("step_time", "tok_s_per_stream", "tok_s_aggregate")
Row = tuple[str, str, float, str, str, Use, str]


def receipt_rows(cell: Cell) -> list[Row]:
    """quantity, stage, value, unit, definition, use, reason; the first direct one is the row for fitting."""
    rows: list[Row] = []
    if cell.step_s:
        rows.append(("step_time", "", cell.step_s * 1e3, "ms", cell.step_definition, "fit", ""))
    if cell.tok_s_per_stream:
        rows.append(
            ("tok_s_per_stream", "", cell.tok_s_per_stream, "tok/s", cell.per_stream_definition, "exclude", SAME_RUN)
        )
    if cell.tok_s_aggregate:
        rows.append(
            ("tok_s_aggregate", "", cell.tok_s_aggregate, "tok/s", cell.aggregate_definition, "exclude", SAME_RUN)
        )
    if cell.tokens_per_step and cell.acceptance_source:
        rows.append(("tokens_per_step", "", cell.tokens_per_step, "tokens", "", *_acceptance_use(cell)))
    cold = _prefill_use(cell)
    if cell.ttft_s:
        rows.append(("ttft", "", cell.ttft_s * 1e3, "ms", "", *cold))
    if cell.prefill_tok_s:
        rows.append(("prefill_tok_s", "", cell.prefill_tok_s, "tok/s", "", *cold))
    rows += [
        ("stage_time", STAGES[name], seconds * 1e3, "ms", "pass_time", "fit", _STAGE_DOUBT.get(name, ""))
        for name, seconds in cell.stages_s.items()
        if seconds > 0
    ]
    return rows


def _acceptance_use(cell: Cell) -> tuple[Use, str]:
    if cell.acceptance_source == "server_average":
        return "exclude", "average of the server since its start, not of this run"
    if cell.acceptance_source == "itl_over_tpot":
        return "exclude", "derived from ITL / TPOT of the same run"
    return "fit", ""


def _prefill_use(cell: Cell) -> tuple[Use, str]:
    if cell.prefix_hit_share is not None and cell.prefix_hit_share > PREFIX_HIT_SHARE:
        return "exclude", "part of the prompt came from the prefix cache"
    if (live_streams(cell) or 1) > 1:
        return "exclude", "with several requests in flight this holds queueing and the others' prefill"
    return "fit", ""
