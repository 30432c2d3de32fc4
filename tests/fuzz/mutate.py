"""Breaking a text file the way editors, networks and enemies do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

NUMBERS = (
    "0", "-1", "1", "0.0", "-0.0", "1e308", "1e309", "-1e309", "1e-320", "nan", "inf", "-inf", "NaN", "Infinity", "9" * 30,
    "9" * 5000, "18446744073709551616", "0x10", "1_000", "1,5", "٣", "true", "null", '""', "[]", "{}", "2147483648",
)  # fmt: skip
WORDS = (
    "", " ", "\t", "\n", "\x00", "..", "../../../../etc/passwd", "/dev/null", "/", "~", "-", "--", "--json", "%s", "{0}", "[bold]", "[/]",
    "[red", "$HOME", "`id`", "'; rm", '"', "'", "\\", "é", "日本語", "\u202e", "\ud7ff", "😀", "\x1b[31m", "\\u001b[2J", "\\u009b2J", "a" * 300, "a" * 5000, "tp4", "sidecar",
    "none", "null", "nan", "1e999", "8 us", "8 parsecs", "-3 GB", "GB", "1..", "..3", "3..1", "1,,2", "1-4:5", "[[1,4,5]]",
    "__class__", "name", "k", "0", "-1", "99999999999999999999",
)  # fmt: skip

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def _span(text: str, rng: random.Random, most: int = 40) -> tuple[int, int]:
    start = rng.randrange(len(text) + 1)
    return start, min(len(text), start + rng.randrange(most))


def _number(text: str, rng: random.Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    hit = rng.choice(found)
    return text[: hit.start()] + rng.choice(NUMBERS) + text[hit.end() :]


def _word(text: str, rng: random.Random) -> str:
    start, end = _span(text, rng)
    return text[:start] + rng.choice(WORDS) + text[end:]


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _delete_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if lines:
        del lines[rng.randrange(len(lines))]
    return "".join(lines)


def _repeat_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if lines:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "".join(lines)


def _swap_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) > 1:
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines)


def _value(text: str, rng: random.Random) -> str:
    # What stands after "=", ":" or "," becomes another type.
    found = list(re.finditer(r"[=:,]\s*[^\n,]*", text))
    if not found:
        return text
    hit = rng.choice(found)
    new = rng.choice(["{}", "[]", "true", '"text"', "1", "null", "[[[]]]", "{a = 1}", '"1 GB"', "1979-05-27"])
    return text[: hit.start() + 1] + " " + new + text[hit.end() :]


def _nest(text: str, rng: random.Random) -> str:
    depth = rng.choice([10, 500, 20_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ("{a=", "}")])
    start, end = _span(text, rng)
    return text[:start] + opened * depth + "1" + closed * rng.choice([0, depth]) + text[end:]


def _bits(text: str, rng: random.Random) -> str:
    data = bytearray(text.encode("utf-8", "replace"))
    for _ in range(rng.randrange(1, 8)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    # Latin-1 keeps every byte; `write` undoes it, so that the file is broken UTF-8 where a bit was hit.
    return "\x00latin" + data.decode("latin-1")


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    _number, _number, _number, _word, _value, _value, _cut, _delete_line, _repeat_line, _swap_lines, _nest, _bits,
)  # fmt: skip


def mutated(text: str, rng: random.Random) -> bytes:
    """One to three mutations of `text` as the bytes of a file; sometimes none, sometimes nothing of it is left."""
    chance = rng.random()
    if chance < 0.03:
        return rng.choice(
            [b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", rng.randbytes(200), b"PK\x03\x04", b"\x1f\x8b\x08"]
        )
    for _ in range(0 if chance < 0.06 else rng.choice([1, 1, 1, 2, 3])):
        text = rng.choice(MUTATIONS)(text, rng)
        if text.startswith("\x00latin"):
            return text.removeprefix("\x00latin").encode("latin-1", "replace")
    return text.encode("utf-8", "surrogatepass")
