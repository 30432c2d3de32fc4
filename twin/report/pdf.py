"""A page printed to PDF by a browser that is already there: Chromium, Chrome or Edge, headless, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from twin.errors import TwinError
from twin.files import write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
TIMEOUT_S = 120


def find_browser() -> str | None:
    """The path of the first known browser, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def print_pdf(page: str, path: Path, *, force: bool = False) -> None:
    """Print HTML text to a PDF file. Raises TwinError when there is no browser or it fails."""
    if path.exists() and not force:
        raise TwinError(f"{path}: exists already; give --force to replace it, or another name.")
    browser = find_browser()
    if browser is None:
        raise TwinError(
            f"--pdf needs a browser: none of {', '.join(BROWSERS)} is on PATH. Open the HTML page and print it."
        )
    with tempfile.TemporaryDirectory(prefix="twin-") as folder:
        source, printed = Path(folder, "page.html"), Path(folder, "page.pdf")
        source.write_text(page, encoding="utf-8")
        arguments = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer", "--disable-extensions",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={printed}", source.as_uri(),
        ]  # fmt: skip
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            # Chromium's sandbox does not start for root; the only page it opens is the one written above.
            arguments.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TwinError(f"--pdf: {browser} did not print the page ({error}).") from None
        if done.returncode or not printed.is_file():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise TwinError(f"--pdf: {browser} did not print the page: {last[0][:200]}")
        write_bytes(path, printed.read_bytes(), force=force)
