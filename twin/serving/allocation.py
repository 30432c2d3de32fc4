"""What KV a request holds: taking it on admission, sharing its prompt's blocks, giving it all back."""

from __future__ import annotations

from typing import NamedTuple

from twin.serving.kvcache import KvCache
from twin.serving.request import Request


class Grant(NamedTuple):
    """KV given to an admitted request: prompt tokens found in the cache, and how many of them came from the host
    tier."""

    cached_tokens: int
    from_host_tokens: int


def allocate(kv: KvCache, request: Request, reserve_tokens: int) -> Grant | None:
    """Give a request the KV of its whole prompt, the cached prefix first; None, and nothing changed, when it does not
    fit.

    Resident KV (swapped out, or sent by a prefill replica) is given space and looks for no prefix. `reserve_tokens`
    must stay free.
    """
    matched = 0
    if request.resident_tokens:
        needed = kv.pages(max(request.resident_tokens, request.target))
    else:
        if kv.block_tokens and request.blocks:
            # At least one token must be computed: its logits give the next token.
            matched = sum(kv.matched_blocks(request.blocks[: (request.target - 1) // kv.block_tokens]))
        needed = kv.pages(request.target - matched * kv.block_tokens)
    if not kv.fits(needed + reserve_tokens):
        return None
    from_host = kv.pin(request.blocks[:matched]) if matched else 0
    if from_host is None:
        return None
    if not kv.fits(needed + reserve_tokens):
        kv.unpin(request.blocks[:matched])
        return None
    kv.take(needed)
    request.private_tokens, request.pinned_blocks = needed, matched
    return Grant(matched * kv.block_tokens, from_host * kv.block_tokens)


def share_prompt(kv: KvCache, request: Request) -> None:
    """Put the whole blocks of a computed prompt into the prefix cache."""
    if not kv.block_tokens or not request.blocks:
        return
    whole = min(request.prompt_tokens // kv.block_tokens, len(request.blocks))
    for block in request.blocks[request.pinned_blocks : whole]:
        kv.share(block)
        request.private_tokens -= kv.block_tokens
    request.pinned_blocks = max(request.pinned_blocks, whole)


def free(kv: KvCache, request: Request) -> None:
    """Give back everything; its prompt's blocks stay in the cache as long as nobody needs the space."""
    kv.give_back(request.private_tokens)
    if request.pinned_blocks:
        kv.unpin(request.blocks[: request.pinned_blocks])
    request.private_tokens = request.pinned_blocks = 0


def held_tokens(kv: KvCache, request: Request) -> int:
    """KV tokens allocated to a request, shared blocks included."""
    return request.private_tokens + request.pinned_blocks * kv.block_tokens
