"""A progress bar on stderr, when somebody is looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cells_done(cells: int) -> Iterator[Callable[[int], None] | None]:
    """A bar over `cells`: what it yields is told how many more are done, or is None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from twin.cli.printable import cursor_stream

    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(file=cursor_stream()), transient=True
    ) as bar:
        task = bar.add_task("cells", total=cells)
        yield lambda n: bar.advance(task, n)
