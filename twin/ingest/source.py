"""One input file, opened with limits: plain or gzip, streamed, never more than `max_bytes` of it.

A reader sees text or bytes, never a path to trust: sizes are counted after decompression, lines have a longest length,
and text is UTF-8 (a byte-order mark is dropped, UTF-16 is refused with a way out).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from twin.errors import IngestError

GZIP_MAGIC = b"\x1f\x8b"
#: first bytes of files that are not what a run leaves behind; naming them helps more than "not recognised"
_FOREIGN = {
    b"PK\x03\x04": None,  # NPZ is a ZIP: its reader decides
    b"\x28\xb5\x2f\xfd": "Zstandard data; decompress it (zstd -d) first",
    b"BZh": "bzip2 data; decompress it (bunzip2) first",
    b"\xfd7zXZ": "xz data; decompress it (xz -d) first",
    b"\x7fELF": "a program, not a result file",
    b"%PDF": "a PDF; export the table as CSV or Markdown",
    b"\x89PNG": "a picture; the numbers are needed as text",
    b"NVTX": "a raw Nsight Systems report; export it with `nsys export --type sqlite`",
}
HEAD_BYTES = 64 * 2**10
CHUNK_BYTES = 2**20
MAX_LINE_CHARS = 4 * 2**20
DEFAULT_MAX_BYTES = 4 * 2**30
#: what one whole value or table may hold in memory
MAX_DOCUMENT_BYTES = 64 * 2**20


class _Bounded(io.RawIOBase):
    """A byte stream that stops with an IngestError after `limit` bytes or on broken compression."""

    def __init__(self, inner: IO[bytes], limit: int, where: str) -> None:
        self._inner, self._left, self._where, self._limit = inner, limit, where, limit

    def readable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        view = memoryview(target)  # type: ignore[arg-type]
        try:
            data = self._inner.read(len(view))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise IngestError(
                f"{self._where}: the gzip data is cut off or damaged ({error}); copy the file again."
            ) from None
        except OSError as error:
            raise IngestError(f"{self._where}: cannot be read ({error.strerror or error}).") from None
        self._left -= len(data)
        if self._left < 0:
            raise IngestError(
                f"{self._where}: more than {self._limit / 2**30:.3g} GiB of data; cut the part that holds the run, or "
                "raise --max-size."
            )
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


@dataclass(frozen=True)
class Source:
    """A file to read. `where` is the name used in messages; `max_bytes` bounds what is read after decompression."""

    path: Path
    where: str
    max_bytes: int = DEFAULT_MAX_BYTES
    _memo: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def gzipped(self) -> bool:
        """Whether the file is gzip, by its first two bytes."""
        return self._raw_head.startswith(GZIP_MAGIC)

    @cached_property
    def _raw_head(self) -> bytes:
        try:
            if self.path.is_dir():
                raise IngestError(f"{self.where}: a folder; name the files in it.")
            with self.path.open("rb") as stream:
                return stream.read(16)
        except OSError as error:
            raise IngestError(f"{self.where}: cannot be read ({error.strerror}).") from None

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB after decompression; refuses an empty file and formats that only need a conversion."""
        with self.open() as stream:
            head = stream.read(HEAD_BYTES)
        if not head.strip():
            raise IngestError(f"{self.where}: the file is empty.")
        for magic, advice in _FOREIGN.items():
            if advice and head.startswith(magic):
                raise IngestError(f"{self.where}: {advice}.")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise IngestError(f"{self.where}: UTF-16 text; save it as UTF-8 (PowerShell: Out-File -Encoding utf8).")
        return head

    def open(self) -> io.BufferedReader:
        """The bytes after decompression, bounded."""
        _ = self._raw_head
        inner = cast("IO[bytes]", gzip.open(self.path, "rb") if self.gzipped else self.path.open("rb"))  # noqa: SIM115
        return io.BufferedReader(_Bounded(inner, self.max_bytes, self.where), CHUNK_BYTES)

    def lines(self) -> Iterator[str]:
        """Lines of a log as text without their end. Logs hold what models wrote, so a bad byte becomes U+FFFD."""
        with self.open() as stream:
            first = True
            while line := stream.readline(MAX_LINE_CHARS):
                if len(line) == MAX_LINE_CHARS and not line.endswith(b"\n"):
                    raise IngestError(
                        f"{self.where}: a line longer than {MAX_LINE_CHARS // 2**20} MiB; this is not a log."
                    )
                text = line.decode("utf-8", errors="replace").rstrip("\r\n")
                yield text.removeprefix("\ufeff") if first else text
                first = False

    def strict_lines(self) -> Iterator[str]:
        """Lines of a table as strict UTF-8 text, each with its end as a line feed; carriage returns end lines too."""
        number = 0
        with io.TextIOWrapper(self.open(), encoding="utf-8-sig") as stream:
            try:
                while line := stream.readline(MAX_LINE_CHARS):
                    number += 1
                    if len(line) == MAX_LINE_CHARS:
                        raise IngestError(
                            f"{self.where}, line {number}: longer than {MAX_LINE_CHARS // 2**20} MiB; this is no table."
                        )
                    yield line
            except UnicodeDecodeError:
                raise IngestError(f"{self.where}: not UTF-8 text (after line {number}); save it as UTF-8.") from None

    def text(
        self, limit: int = MAX_DOCUMENT_BYTES, advice: str = "too large for this format; cut it into parts"
    ) -> str:
        """The whole file as strict UTF-8 text, at most `limit` bytes; a longer one is refused with the advice."""
        with self.open() as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise IngestError(f"{self.where}: more than {limit // 2**20} MiB; {advice}.")
        return decode(data, self.where).removeprefix("\ufeff")

    def sha256(self) -> str:
        """Hex digest of the file as it lies on the disk, to name it in receipts."""
        if "sha256" not in self._memo:
            digest = hashlib.sha256()
            try:
                with self.path.open("rb") as stream:
                    while chunk := stream.read(CHUNK_BYTES):
                        digest.update(chunk)
            except OSError as error:
                raise IngestError(f"{self.where}: cannot be read ({error.strerror}).") from None
            self._memo["sha256"] = digest.hexdigest()
        return str(self._memo["sha256"])


def source(path: Path | str, max_bytes: int = DEFAULT_MAX_BYTES) -> Source:
    """A Source named by its path."""
    return Source(Path(path), str(path), max_bytes)


def decode(data: bytes, where: str) -> str:
    """Strict UTF-8 with a message that says which byte is wrong."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise IngestError(f"{where}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
