"""One seam for everything heavy: run in this process, or on a pool of processes. Results come in order either way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """None for one worker (no pool, no pickling), else a process pool that is shut down on the way out."""
    if workers <= 1:
        yield None
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        yield pool
