"""One meaning for the words of many tools: what is a step, what is a token, which numbers belong together.

With speculation a streamed chunk carries the tokens of one verify step, so the interval between chunks (ITL as vLLM's
client measures it) is a step, while TPOT divides by tokens:

    TPOT = ITL / tokens_per_step

Clients that spread a chunk over its tokens (SGLang's native one) report ITL = TPOT instead. `settle` finds out which of
the two a run did, fills in what follows from it, and flags runs that fit neither within 3 %.
"""

from __future__ import annotations

from twin.ingest.model import Cell

#: how far TPOT may be from ITL / tokens_per_step before a run is flagged
IDENTITY_TOLERANCE = 0.03
#: a mean interval this much above its median holds other requests' prefill or stalls
INTERFERENCE_RATIO = 1.10
#: achieved concurrency below this share of the asked one replaces it
CONCURRENCY_SHARE = 0.85
#: a prefix-cache hit share above this makes TTFT and prefill rates say nothing about prefill
PREFIX_HIT_SHARE = 0.02


def settle(cell: Cell) -> Cell:
    """Derive what the cell's numbers imply and flag what does not fit; changes and returns the cell.

    Afterwards `step_s` is one verify step if the file determines it, with its definition, and `tok_s_per_stream` is set
    whenever TPOT is known.
    """
    _acceptance(cell)
    _identity(cell)
    _step(cell)
    if cell.tok_s_per_stream is None and cell.tpot_s:
        cell.tok_s_per_stream, cell.per_stream_definition = 1.0 / cell.tpot_s, "first_to_last_token"
    _concurrency(cell)
    if cell.prefix_hit_share is not None and cell.prefix_hit_share > PREFIX_HIT_SHARE:
        cell.flag(
            "prefix-cache",
            f"{cell.prefix_hit_share:.0%} of the prompt tokens came from the prefix cache: TTFT and prefill rate are "
            "not those of a cold prompt",
        )
    return cell


def identity_error(itl_s: float, tpot_s: float, tokens_per_step: float) -> float:
    """How far ITL / tokens_per_step is from TPOT, relative to TPOT."""
    return itl_s / tokens_per_step / tpot_s - 1.0


def _acceptance(cell: Cell) -> None:
    if cell.tokens_per_step is None and cell.survival:
        # E[tokens per step] = 1 + sum over positions of the share of drafts accepted at least that far.
        cell.tokens_per_step, cell.acceptance_source = 1.0 + sum(cell.survival), "run"
    if cell.tokens_per_step is None and cell.k == 0:
        cell.tokens_per_step = 1.0
    if cell.tokens_per_step is None and cell.itl_unit == "chunk" and cell.itl_s and cell.tpot_s:
        ratio = cell.itl_s / cell.tpot_s
        if ratio > 1.0 + IDENTITY_TOLERANCE:
            cell.tokens_per_step, cell.acceptance_source = ratio, "itl_over_tpot"
            cell.flag(
                "acceptance-derived",
                f"no acceptance in the file; tokens per step {ratio:.3f} is ITL / TPOT, so the two are not independent",
            )
        elif cell.k is None:
            cell.flag(
                "plain-decoding?",
                "ITL equals TPOT, which is what decoding without speculation looks like: pass --k 0 if that is so",
            )
    if (
        cell.tokens_per_step is not None
        and cell.k is not None
        and cell.k > 0
        and cell.tokens_per_step > cell.k + 1.0005
    ):
        cell.flag(
            "impossible-acceptance", f"{cell.tokens_per_step:.3f} tokens per step is more than k + 1 = {cell.k + 1}"
        )
        cell.exclude = cell.exclude or "more tokens per step than k + 1"


def _identity(cell: Cell) -> None:
    if not (cell.itl_s and cell.tpot_s and cell.tokens_per_step) or cell.acceptance_source == "itl_over_tpot":
        return
    as_chunk = identity_error(cell.itl_s, cell.tpot_s, cell.tokens_per_step)
    as_token = identity_error(cell.itl_s, cell.tpot_s, 1.0)
    speculates = cell.tokens_per_step > 1.0 + IDENTITY_TOLERANCE
    if abs(as_chunk) <= IDENTITY_TOLERANCE:
        cell.itl_unit = "chunk"
    elif speculates and abs(as_token) <= IDENTITY_TOLERANCE:
        if cell.itl_unit == "chunk":
            cell.flag(
                "itl-per-token",
                f"ITL equals TPOT although {cell.tokens_per_step:.2f} tokens are kept per step: the client spread "
                "each chunk over its tokens",
            )
        cell.itl_unit = "token"
    else:
        cell.itl_unit = ""
        cell.doubt = f"TPOT differs from ITL / tokens per step by {as_chunk:+.1%}"
        cell.flag(
            "identity-failed",
            f"TPOT {cell.tpot_s * 1e3:.3f} ms is not ITL {cell.itl_s * 1e3:.3f} ms / {cell.tokens_per_step:.3f} "
            "tokens per step "
            f"({as_chunk:+.1%}, tolerance {IDENTITY_TOLERANCE:.0%}): chunks were merged or split on the way, "
            "or the acceptance is of another window than the latencies",
        )


def _step(cell: Cell) -> None:
    if cell.step_s is not None:
        return
    if cell.itl_s and cell.itl_unit == "chunk":
        cell.step_s, cell.step_definition = cell.itl_s, "chunk_interval"
        median = cell.itl_median_s
        if median and cell.itl_s / median > INTERFERENCE_RATIO:
            cell.step_s = median
            cell.flag(
                "prefill-interference",
                f"mean ITL {cell.itl_s * 1e3:.2f} ms is {cell.itl_s / median - 1:.0%} above its median "
                f"{median * 1e3:.2f} ms: other requests' "
                "prefill or stalls sit between the steps; the step is the median (vLLM: --save-detailed lets the "
                "prefill be cut out)",
            )


def derived_step_s(cell: Cell) -> float | None:
    """TPOT times tokens per step: a step time for display when none was measured directly."""
    return cell.tpot_s * cell.tokens_per_step if cell.tpot_s and cell.tokens_per_step else None


def _concurrency(cell: Cell) -> None:
    asked, achieved = cell.concurrency_asked, cell.concurrency_achieved
    if asked and achieved and achieved < CONCURRENCY_SHARE * asked:
        cell.flag(
            "concurrency-not-reached",
            f"asked for {asked:g} requests in flight, had {achieved:.1f} on average (too few prompts, or the server "
            f"capped them): the receipt says {round(achieved)}",
        )
    elif not asked and achieved:
        cell.flag(
            "concurrency-achieved",
            f"no limit on requests in flight; the receipt says the achieved mean, {achieved:.1f}",
        )


def live_streams(cell: Cell) -> int | None:
    """The concurrency of the receipt: what was asked when it was about reached, else the achieved mean."""
    asked, achieved = cell.concurrency_asked, cell.concurrency_achieved
    if asked and (achieved is None or achieved >= CONCURRENCY_SHARE * asked):
        return max(1, round(asked))
    return max(1, round(achieved)) if achieved else None
