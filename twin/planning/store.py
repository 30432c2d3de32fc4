"""Where a sweep keeps what it has done: one file a chunk, named by the hash of everything the chunk was computed from.

A chunk's file is its rows as JSON Lines, then one line that says how many there are and their SHA-256. It is written
whole or not at all; a file that does not agree with its last line is corrupt, said so, and computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from twin.errors import TwinError


@dataclass
class ChunkStore:
    """Chunks in `folder`; `corrupt` collects the names of files that were there but broken."""

    folder: Path
    corrupt: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TwinError(
                f"{self.folder}: cannot hold partial results ({error.strerror}); give --store another folder."
            ) from None

    def get(self, key: str) -> bytes | None:
        """The rows of a chunk, None when it is not there or broken."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TwinError(f"{path}: cannot be read ({error.strerror}).") from None
        body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
        body = body + b"\n" if body else b""
        if last + b"\n" == _seal(body):
            return body
        self.corrupt.append(path.name)
        return None

    def put(self, key: str, body: bytes) -> None:
        """Keep the rows of a chunk. Raises TwinError when the disk refuses."""
        path = self._path(key)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(body + _seal(body))
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise TwinError(f"{path}: cannot be written ({error.strerror}); what was done before is kept.") from None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"


def content_key(content: object) -> str:
    """SHA-256 of plain data, however it is nested."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _seal(body: bytes) -> bytes:
    rows = body.count(b"\n")
    return json.dumps({"rows": rows, "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
