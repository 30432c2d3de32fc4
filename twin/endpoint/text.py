"""Filler text with exact token counts, and how prompts are counted.

A token is a run of up to eight letters or digits, or one other visible sign: close to one token a word, which is what
a sub-word vocabulary gives for common English. Every filler word is exactly one such token, so the text that leaves the
server counts, by the same rule, as many tokens as `usage` says. Prompts given as token ids are counted exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

_TOKEN = re.compile(r"\w{1,8}|[^\w\s]")
_SENTENCE = """
the box serves a model and each step keeps some of what was drafted then more words come as filler for tests of clients
that count time not sense so read no meaning into this text it only has the right length one word is one token
"""
_WORDS = tuple(_TOKEN.findall(_SENTENCE))


def tokens_of(text: str) -> list[str]:
    """The tokens of a text by the rule above."""
    return _TOKEN.findall(text)


def filler(offset: int, start: int, count: int) -> str:
    """Tokens `start` to `start + count` of the filler that begins at word `offset`; each has its space in front but the
    very first."""
    words = " ".join(_WORDS[(offset + i) % len(_WORDS)] for i in range(start, start + count))
    return words if start == 0 or not count else " " + words


def cut_at_stop(offset: int, tokens: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """(tokens generated, text shown) when one of `stops` appears in the first `tokens` tokens of a filler, else None.

    The text is known beforehand, so nothing has to be held back while it streams. The stop text itself is not shown.
    """
    # The filler repeats: a text that is not in two rounds (and its own length) of it never comes.
    longest = max((len(s) for s in stops), default=0)
    horizon = min(tokens, 2 * len(_WORDS) + longest)
    text = filler(offset, 0, horizon)
    found = [(at + len(s), at) for s in stops if s and (at := text.find(s)) >= 0]
    if not found:
        return None
    end, at = min(found)
    return max(len(tokens_of(text[:end])), 1), text[:at]


def block_names(tokens: Sequence[object], block_tokens: int) -> tuple[int, ...]:
    """Names of the successive full blocks of a prompt; each name stands for everything up to the block's end."""
    if not block_tokens:
        return ()
    names, chain = [], b""
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        content = "\x1f".join(map(str, tokens[end - block_tokens : end]))
        chain = blake2b(chain + content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        names.append(int.from_bytes(chain, "big"))
    return tuple(names)
