"""Running the endpoint under uvicorn until it is told to stop."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING

from twin.errors import TwinError

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


def require_web() -> None:
    """Raise TwinError when the packages of the extra `web` are not there."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise TwinError(
            f"the endpoint needs the package {error.name!r}, which is not installed; install the extra: "
            'pip install "twin-lane[web]"'
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises TwinError with the reason."""
    sock = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, and said outright: asyncio turns Nagle's algorithm off only for sockets that say TCP,
        # and with it a chunk waits for the client's delayed acknowledgement of the one before, 40 ms.
        sock = socket.socket(family[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(family[4])
        sock.listen(2048)
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: a host name that none can be
        if sock is not None:
            sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TwinError(
            f"cannot listen on {host} port {port} ({reason}); try another --port, or 0 for a free one."
        ) from None
    return sock


def configured(app: Starlette) -> uvicorn.Config:
    """How the endpoint runs under uvicorn."""
    import uvicorn

    # A client that is busy takes seconds to use its connection again; closing it under its hands would look like a
    # lost request.
    return uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", ws="none", timeout_graceful_shutdown=2,
        timeout_keep_alive=120, server_header=False,
    )  # fmt: skip


def run_app(app: Starlette, sock: socket.socket) -> None:
    """Serve on a bound socket until interrupted."""
    import uvicorn

    # uvicorn finishes what it can and then raises what it caught; being told to stop is a normal end.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(configured(app)).run(sockets=[sock])
