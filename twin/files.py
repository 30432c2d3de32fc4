"""Writing results without losing what was there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twin.errors import TwinError


@contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[Path]:
    """A name beside `path` to write to; what was written takes the place of `path` when the block ends well.

    Whatever happens before that (a full disk, Ctrl-C, an exception of the block), the earlier file stays and nothing
    is left behind. The name ends as `path` does, for writers that go by the ending. Raises TwinError with the reason
    when the file exists and `force` is not given, or when the system refuses.
    """
    if path.exists() and path.name and not path.is_dir() and not force:
        raise TwinError(f"{path}: exists already; give --force to replace it, or another name.")
    if not path.name or path.is_dir():
        raise TwinError(f"{str(path)!r} is a folder; expected the name of a file to write.")
    if not path.parent.is_dir():
        raise TwinError(f"{path}: cannot be written: there is no folder {str(path.parent)!r}; make it first.")
    part = path.with_name(f".{path.stem[:100]}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        raise TwinError(
            f"{path}: cannot be written ({error.strerror or error}); the earlier file, if any, is untouched."
        ) from None
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write a UTF-8 file whole or not at all; an existing file stays unless `force`. Raises TwinError."""
    with replacing(path, force=force) as part, part.open("w", encoding="utf-8", newline="") as stream:
        stream.write(text)


def write_bytes(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file whole or not at all; an existing file stays unless `force`. Raises TwinError."""
    with replacing(path, force=force) as part, part.open("wb") as stream:
        stream.write(data)
