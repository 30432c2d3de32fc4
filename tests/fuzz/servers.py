"""The other end of a socket: a server that `twin watch` is pointed at, and clients of `twin serve` and `twin board`."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

#: how long a client of a fuzzed server reads one answer; it then leaves, as clients do
READ_S = 0.3
#: a pause longer than this is one in which the user presses Ctrl-C
LONGEST_SLEEP_S = 1.0


@dataclass(frozen=True)
class Reply:
    """What a hostile server does with one connection: sends `data` whole, byte by byte, or over and over."""

    data: bytes
    how: str = "whole"  # whole | trickle | flood


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        with contextlib.suppress(OSError):
            self.request.settimeout(2.0)
            self.request.recv(1 << 14)
            reply = server.next_reply()
            if reply.how == "whole":
                self.request.sendall(reply.data)
            elif reply.how == "trickle":
                for i in range(len(reply.data)):
                    time.sleep(0.02)
                    self.request.sendall(reply.data[i : i + 1])
            else:
                for _ in range(2 + 34 * 2**20 // max(len(reply.data), 1 << 10)):
                    self.request.sendall(reply.data)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, block_on_close = True, True, False

    def __init__(self, replies: Sequence[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._replies, self._next = replies, 0

    def next_reply(self) -> Reply:
        """Each connection takes the next one; the last is for all that follow."""
        reply = self._replies[min(self._next, len(self._replies) - 1)]
        self._next += 1
        return reply

    def handle_error(self, *_: object) -> None:
        """What a client does to this server is no finding."""


@contextlib.contextmanager
def hostile(replies: Sequence[Reply]) -> Iterator[str]:
    """A server on this machine with these replies; its address. Without replies the port is a closed one."""
    if not replies:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        yield address
        return
    server = _Server(replies)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _say(address: tuple[str, int], request: bytes) -> bytes:
    """One request on a connection of its own; what came back before the client lost patience."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=2.0) as connection:
        connection.settimeout(READ_S)
        connection.sendall(request.replace(b"{port}", str(address[1]).encode()))
        while len(heard) < 1 << 16 and (part := connection.recv(1 << 14)):
            heard += part
            if b"\r\n\r\n" in heard and b"text/event-stream" not in heard:
                break  # a whole answer, or its head: its status is what counts
    return heard


@contextlib.contextmanager
def clients(requests: Sequence[bytes], wrong: list[str]) -> Iterator[None]:
    """While this holds, a server that starts gets `requests`, one after the other, and is then stopped.

    A status of 500, or a server that no longer answers its clients, is added to `wrong`.
    """
    import uvicorn

    serve = uvicorn.Server.run

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        address = sockets[0].getsockname()[:2]

        def attack() -> None:
            try:
                while not self.started and not self.should_exit:
                    time.sleep(0.005)
                for request in requests:
                    if b" 500 " in (said := _say(address, request)).split(b"\r\n", 1)[0]:
                        wrong.append(f"{request[:400]!r} was answered {said[:200]!r}")
                # The last one is harmless: whoever asks properly is still served.
                said = _say(address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                if not said.startswith(b"HTTP/1.1 "):
                    wrong.append(f"after {len(requests)} requests the server answers {said[:200]!r}")
            except BaseException as error:
                wrong.append(f"the client failed: {error!r}")
            finally:
                self.should_exit = True

        client = threading.Thread(target=attack, daemon=True)
        client.start()
        try:
            serve(self, sockets=sockets)
        finally:
            self.should_exit = True
            client.join(10.0)

    with mock.patch.object(uvicorn.Server, "run", run):
        yield


def _sleep(seconds: float, real: Any = time.sleep) -> None:
    if seconds > threading.TIMEOUT_MAX:
        raise OverflowError("timestamp too large to convert to C PyTime_t")  # as the real one says
    if seconds > LONGEST_SLEEP_S:
        raise KeyboardInterrupt
    real(seconds)


@contextlib.contextmanager
def small_world() -> Iterator[None]:
    """No browser is opened, no name server asked, no pause is long, and failed readings are repeated at once."""
    from twin.watch.client import PageClient

    settled, look_up = PageClient.__post_init__, socket.getaddrinfo

    def impatient(self: PageClient) -> None:
        settled(self)
        self.pause_s = 0.001

    def here(host: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(host, str) and host not in ("localhost", "127.0.0.1", "::1"):
            host.encode("idna")  # raises what the real look-up raises for names that cannot be
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **more)

    with (
        mock.patch("webbrowser.open", lambda *_: True),
        mock.patch("socket.getaddrinfo", here),
        mock.patch("time.sleep", _sleep),
        mock.patch.object(PageClient, "__post_init__", impatient),
    ):
        yield
