"""What a step gave: tokens to the streams that decoded, prompt tokens to those in their prefill, and who is done."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twin.serving.allocation import share_prompt
from twin.serving.live import LiveRequests
from twin.serving.plan import StepOutcome
from twin.serving.request import FINISHED, TRANSFER, Request


def complete_decode(
    live: LiveRequests, decode: Sequence[Request], outcome: StepOutcome, now_s: float, *, record_kept: bool
) -> None:
    """Every decoding stream keeps what its acceptance draw says, never more than it still owes."""
    # The hot loop of the whole simulation: one turn for every stream of every step.
    finished, gaps, growers = outcome.finished, outcome.gaps, live.growers
    kept = outcome.kept if record_kept else None
    lookahead = live.lookahead
    tokens, group, members = 0, math.nan, 0
    for request in decode:
        got: int = next(request.draw)  # type: ignore[arg-type]
        previous = request.last_token_s
        if previous == group:
            members += 1
        else:
            if members:
                gaps.append((now_s - group, members))
            group, members = previous, 1
        request.last_token_s = now_s
        left = request.left
        if got < left:
            request.left = left - got
            room = request.room - got
            request.room = room
            if room < lookahead:
                growers.append(request)
        else:
            got = left
            request.left = 0
            finished.append(request)
        tokens += got
        if kept is not None:
            kept.append(got)
    gaps.append((now_s - group, members))
    outcome.tokens += tokens
    live.context_tokens += tokens
    if finished:
        for request in finished:
            live.context_tokens -= request.context_tokens
            live.end(request, FINISHED, now_s)
        live.decoding = [r for r in live.decoding if r.left]


def complete_prefill(
    live: LiveRequests, chunks: Sequence[tuple[Request, int]], outcome: StepOutcome, now_s: float
) -> None:
    """Chunks are computed; a prompt whose last one it was gives its first token."""
    done = False
    for request, tokens in chunks:
        request.computed += tokens
        request.prefilled_tokens += tokens
        if request.computed == request.target:
            done = True
            _start(live, request, outcome, now_s)
    if done:
        live.prefilling = [r for r in live.prefilling if r.computed < r.target]


def _start(live: LiveRequests, request: Request, outcome: StepOutcome, now_s: float) -> None:
    """The prompt is complete: its last position gives a token, and the stream goes on to decode."""
    request.left -= 1
    outcome.tokens += 1
    outcome.started.append(request)
    if math.isnan(request.first_token_s):
        request.first_token_s = now_s
    else:
        outcome.gaps.append((now_s - request.last_token_s, 1))
    request.last_token_s = now_s
    share_prompt(live.kv, request)
    if request.left == 0:
        outcome.finished.append(request)
        live.end(request, FINISHED, now_s)
    elif live.limits.role == "prefill":
        request.status = TRANSFER
        request.resident_tokens = request.computed
        live.outgoing[request.index] = request
        outcome.handed_off.append(request)
    else:
        live.join(request)
