"""What a local page must not be talked into: other sites' requests, rebinding names, large bodies, foreign scripts.

A page on the internet can send requests to 127.0.0.1, or point its own name there. So every request must name a host
that this server was told is its own, and one with an Origin must come from the page itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2 * 2**20
MAX_QUERY_BYTES = 16 * 2**10
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class TooLarge(Exception):
    """The body went over its limit while it was being read."""


class Guard:
    """ASGI middleware: refuses foreign hosts and origins, bounds sizes, adds headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = LOOPBACK) -> None:
        self.app, self.hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text, status_code=status)(scope, receive, _with_headers(send))
            return
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY_BYTES:
                raise TooLarge
            return message

        try:
            await self.app(scope, bounded, _with_headers(send))
        except TooLarge:
            await _too_large(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        host = headers.get(b"host", "")
        if _name(host) not in self.hosts:
            return 421, f"host {host[:80]!r} is not this server; open it by the address that twin board printed.\n"
        origin = headers.get(b"origin")
        if origin is not None and _address(origin) != host.lower():
            return 403, "this request comes from another page; twin board answers its own page only.\n"
        if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "this request comes from another site; twin board answers its own page only.\n"
        if len(scope.get("query_string", b"")) > MAX_QUERY_BYTES:
            return 414, f"the address is longer than {MAX_QUERY_BYTES} bytes.\n"
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > MAX_BODY_BYTES:
            return 413, f"a body has at most {MAX_BODY_BYTES} bytes.\n"
        return None


def _name(host: str) -> str:
    """The name in a Host header, without its port and the brackets of an IPv6 address."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _address(origin: str) -> str:
    """Host and port of an Origin header; empty, which no Host is, for what is no origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return wrapped


async def _too_large(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"a body has at most {MAX_BODY_BYTES} bytes.\n", status_code=413)(
        scope, receive, _with_headers(send)
    )
