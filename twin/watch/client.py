"""Reading a metrics page over HTTP: read only, bounded in time and size, patient with a server that restarts."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from twin.errors import IngestError

#: what an address may not hold: spaces, control characters, and all that is not ASCII
_ODD = re.compile(r"[^!-~]")
MAX_PAGE_BYTES = 32 * 2**20


def metrics_url(url: str) -> str:
    """The URL of the page: `http://host:8000`, `.../v1` and `.../metrics` all mean the same. Raises IngestError."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not _ODD.search(url)
        _ = parts.port  # a port that is no number raises here
    except ValueError:
        usable = False
    if not usable:
        raise IngestError(f"{url!r} is not the address of a server; expected for example http://127.0.0.1:8000.")
    path = parts.path.rstrip("/").removesuffix("/v1")
    if not path.endswith("/metrics"):
        path += "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class _Deadline:
    """Ends whatever connections one reading has open when its time is over, and those it opens later."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._handles: list[socket.socket] = []

    def add(self, connection: socket.socket) -> None:
        """Know a connection from now on; a handle of its own outlives what TLS does to the first."""
        self._handles.append(connection.dup())
        if self.over.is_set():
            self._end()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """For one reading. Raises OSError at its end when the time was over, whatever else went wrong."""
        self.over.clear()
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, HTTPException):
            if not self.over.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
            for handle in self._handles:
                handle.close()
            self._handles.clear()
        if self.over.is_set():
            raise OSError(f"the page took longer than {seconds:g} s")

    def _end(self) -> None:
        self.over.set()
        for handle in self._handles:
            with contextlib.suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)


class _Plain(HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.add(self.sock)


class _Secure(HTTPSConnection, _Plain):  # HTTPSConnection.connect goes through _Plain.connect before its handshake
    pass


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self.deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_under(self.deadline, _Plain), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self.deadline, self.verified = deadline, context

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_under(self.deadline, _Secure), req, context=self.verified)


def _under(deadline: _Deadline, kind: type[_Plain]) -> Any:
    def make(host: str, **more: Any) -> _Plain:
        connection = kind(host, **more)
        connection.deadline = deadline
        return connection

    return make


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(req.full_url, code, f"sends to {newurl[:200]!r}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _one_line(said: str) -> str:
    """What a server said of itself, without line ends and control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in said)[:300].strip().rstrip(".")


@dataclass
class PageClient:
    """Fetches one URL. An attempt takes at most `timeout_s`; `attempts` are made, with doubling pauses in between."""

    url: str
    timeout_s: float = 5.0
    attempts: int = 4
    pause_s: float = 0.5
    ca_file: Path | None = None
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self.url = metrics_url(self.url)
        try:
            # Certificates and host names are verified; a private authority is named, never waved through.
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        except (OSError, ssl.SSLError) as error:
            raise IngestError(f"{self.ca_file}: no certificates could be read from it ({error}).") from None
        self._deadline = _Deadline()
        self._opener = urllib.request.build_opener(
            _Http(self._deadline), _Https(self._deadline, context), _Redirects(), urllib.request.ProxyHandler({})
        )

    def fetch(self) -> str:
        """The page's text. Raises IngestError when the last attempt failed too, with its reason."""
        reason = ""
        for attempt in range(self.attempts):
            if attempt:
                self.sleep(self.pause_s * 2 ** (attempt - 1))
            try:
                return self._once()
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code} {error.reason}"
                error.close()
                if error.code in (400, 401, 403, 404, 405):
                    break  # asking again will not help
            except urllib.error.URLError as error:
                reason = str(error.reason)
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    reason += "; for a private authority pass --ca-file"
                    break
            except (OSError, HTTPException, ValueError) as error:  # ValueError: a redirect to what is no address
                reason = str(error) or type(error).__name__
        raise IngestError(f"{self.url}: {_one_line(reason)}.")

    def _once(self) -> str:
        request = urllib.request.Request(self.url, headers={"Accept": "text/plain"})
        parts: list[bytes] = []
        size = 0
        # A server that trickles its head, its body or a chain of redirects must not hold the watch: one deadline.
        with self._deadline.within(self.timeout_s), self._opener.open(request, timeout=self.timeout_s) as answer:
            while part := answer.read1(1 << 16):
                size += len(part)
                parts.append(part)
                if size > MAX_PAGE_BYTES:
                    raise OSError(f"the page is larger than {MAX_PAGE_BYTES // 2**20} MiB")
            if answer.length:
                raise OSError(f"the page was cut off, {answer.length} bytes before its end")
        return b"".join(parts).decode("utf-8", "replace")
