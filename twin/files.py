"""Writing results without losing what was there."""

from __future__ import annotations

import os
from pathlib import Path

from twin.errors import TwinError


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write a file whole or not at all; an existing file stays unless `force`. Raises TwinError with the reason."""
    if path.exists() and not force:
        raise TwinError(f"{path}: exists already; give --force to replace it, or another name.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TwinError(
            f"{path}: cannot be written ({error.strerror}); the earlier file, if any, is untouched."
        ) from None
