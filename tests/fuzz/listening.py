"""Cases of the commands that listen or follow: `serve`, `board`, `watch`."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path

from .mutate import NUMBERS, WORDS, mutated
from .servers import Reply

ROOT = Path(__file__).resolve().parents[2]
HEADERS = (
    "Host: {host}", "Host: evil.example", "Host: [", "Host: 127.0.0.1:99999", "Origin: http://127.0.0.1:{port}", "Origin: http://[",
    "Origin: null", "Origin: \x80\xff", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin", "Transfer-Encoding: chunked",
    "Content-Length: 99999999999999999999", "Content-Length: -1", "Content-Length: 1e3", "Content-Type: application/json", "Expect: 100-continue",
    "Accept-Encoding: gzip", "Authorization: Bearer x", "Range: bytes=0-", "If-None-Match: *", "Upgrade: websocket", "Connection: upgrade",
)  # fmt: skip
CHAT = {
    "model": "tp4", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8, "stream": True,
    "stream_options": {"include_usage": True}, "temperature": 0.5, "stop": ["x"], "min_tokens": 1, "n": 1, "seed": 3,
}  # fmt: skip
COMPLETION = {"model": "tp4", "prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True, "logprobs": None, "echo": False}
ENDPOINT = (
    "/v1/models",
    "/v1/models/tp4",
    "/metrics",
    "/health",
    "/version",
    "/v1/chat/completions",
    "/",
    "/v1/completions",
)
BOARD = (
    "/",
    "/api/options",
    "/api/answer",
    "/api/curve",
    "/api/export",
    "/api/residuals",
    "/assets/board.js",
    "/assets/../app.py",
)
SPECS = (
    "sidecar:k=5,traffic=codegen-padded", "tp4:k=7,verification=block,streams=4", "tp4", "tp4:k=", "tp4:k=9,k=9", "tp4:placement.hot=310",
    "sidecar:placement.hot=310,engine.host_gap=1ms", "sidecar:traffic=none", "tp4:calibration=/etc/passwd", "tp4:catalogue=/", ":", ",",
)  # fmt: skip


def _request(rng: random.Random, method: str, path: str, body: bytes) -> bytes:
    """Raw HTTP; one in three has a header too many, and some are no HTTP at all."""
    if rng.random() < 0.05:
        return rng.choice(
            [b"\r\n\r\n", rng.randbytes(200), b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"]
        )
    headers = ["Host: 127.0.0.1:{port}"] if rng.random() < 0.95 else []
    if method == "POST" and rng.random() < 0.95:
        headers.append(f"Content-Length: {len(body)}")
    if rng.random() < 0.3:
        headers.append(rng.choice(HEADERS).replace("{host}", "localhost"))
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""])
    return head.encode("latin-1", "replace") + body


def _quoted(text: str) -> str:
    return "".join(
        c if c.isalnum() or c in ":=,._-" else "".join(f"%{b:02x}" for b in c.encode("utf-8", "replace")) for c in text
    )


def endpoint_requests(rng: random.Random) -> list[bytes]:
    """Requests to `twin serve`: OpenAI's, broken here and there, and what scanners send."""
    found = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.7:
            path, text = rng.choice([("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
            found.append(_request(rng, "POST", path, mutated(json.dumps(text), rng)))
        else:
            found.append(
                _request(rng, rng.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS"]), _path(rng, ENDPOINT), b"")
            )
    return found


def _path(rng: random.Random, paths: tuple[str, ...]) -> str:
    return rng.choice(paths) if rng.random() < 0.8 else "/" + _quoted(rng.choice(WORDS))[:300]


def board_requests(rng: random.Random) -> list[bytes]:
    """Requests to `twin board`: settings in the query, tables in the body."""
    receipts = (ROOT / "calibration" / "receipts" / "mission.csv").read_text().splitlines(keepends=True)[:8]
    found = []
    for _ in range(rng.randrange(1, 4)):
        fields = [
            f"{rng.choice(['a', 'b', 'of', 'axis', 'k', 'x'])}={_quoted(_spec(rng))}" for _ in range(rng.randrange(4))
        ]
        path = _path(rng, BOARD) + ("?" + "&".join(fields) if fields else "")
        method = "POST" if "residuals" in path else rng.choice(["GET", "GET", "GET", "HEAD", "POST"])
        found.append(_request(rng, method, path, mutated("".join(receipts), rng) if method == "POST" else b""))
    return found


def _spec(rng: random.Random) -> str:
    spec = rng.choice(SPECS)
    chance = rng.random()
    if chance < 0.3:
        return spec.rpartition("=")[0] + "=" + rng.choice(NUMBERS)
    return rng.choice(WORDS) if chance < 0.45 else spec


@lru_cache(maxsize=1)
def _pages() -> tuple[str, ...]:
    folder = ROOT / "tests" / "ingest" / "fixtures" / "constructed"
    return tuple(p.read_text() for p in sorted(folder.glob("vllm_metrics_*.prom")))


def replies(rng: random.Random) -> list[Reply]:
    """Two readings of a page: as servers give it, mutated, endless, slow, or something else altogether."""
    return [_reply(rng) for _ in range(2)] if rng.random() < 0.9 else []


def _reply(rng: random.Random) -> Reply:
    page = rng.choice(_pages())
    chance = rng.random()
    if chance < 0.65:
        body = page.encode() if chance < 0.15 else mutated(page, rng)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        return Reply(head + body)
    return rng.choice(
        [
            Reply(b""),
            Reply(rng.randbytes(300)),
            Reply(b"HTTP/1.1 500 No\r\n\r\n"),
            Reply(b"HTTP/1.1 404 \x80\xff\x1b[31m\r\n\r\n"),
            Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nvllm:x 1"),
            Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            Reply(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08" + rng.randbytes(50)),
            Reply(b"HTTP/1.1 302 Found\r\nLocation: " + rng.choice([b"file:///etc/passwd", b"ftp://127.0.0.1/x", b"/metrics", b"http://[", b"\x00"]) + b"\r\n\r\n"),
            Reply(b"HTTP/1.1 200 OK\r\n\r\n" + page.encode()[:400], "trickle"),
            Reply(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2000, "trickle"),
            Reply(b"HTTP/1.1 200 OK\r\n\r\n" + b"vllm:x 1\n" * 4000, "flood"),
            Reply(b"X-A: b\r\n" * 500, "flood"),
        ]
    )  # fmt: skip
