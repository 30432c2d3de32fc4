"""Reading a metrics page over HTTP: read only, bounded in time and size, patient with a server that restarts."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from twin.errors import IngestError

MAX_PAGE_BYTES = 32 * 2**20


def metrics_url(url: str) -> str:
    """The URL of the page: `http://host:8000`, `.../v1` and `.../metrics` all mean the same. Raises IngestError."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # a port that is no number raises here
    except ValueError:
        usable = False
    if not usable:
        raise IngestError(f"{url!r} is not the address of a server; expected for example http://127.0.0.1:8000.")
    path = parts.path.rstrip("/").removesuffix("/v1")
    if not path.endswith("/metrics"):
        path += "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


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
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
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
            except (OSError, HTTPException) as error:
                reason = str(error) or type(error).__name__
        raise IngestError(f"{self.url}: {reason}.")

    def _once(self) -> str:
        request = urllib.request.Request(self.url, headers={"Accept": "text/plain"})
        with self._opener.open(request, timeout=self.timeout_s) as answer:
            deadline_s = time.monotonic() + self.timeout_s
            parts: list[bytes] = []
            size = 0
            # A server that trickles must not hold the watch: the whole page has one deadline.
            while part := answer.read1(1 << 16):
                size += len(part)
                parts.append(part)
                if size > MAX_PAGE_BYTES:
                    raise OSError(f"the page is larger than {MAX_PAGE_BYTES // 2**20} MiB")
                if time.monotonic() > deadline_s:
                    raise OSError(f"the page took longer than {self.timeout_s:g} s")
        return b"".join(parts).decode("utf-8", "replace")
