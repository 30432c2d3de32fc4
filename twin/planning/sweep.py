"""`twin sweep`: many cells at the cost of few. Cells come in chunks; a chunk is computed alone, anywhere, to the same bytes.

What cells share is done once: a lane with its what-ifs, posterior draws and noise (common random numbers), acceptance by k,
and the engine runs the steps of many cells at once, side by side on the sample axis. At equal `samples` a cell's numbers
are those of `twin predict`; a sweep takes fewer samples, and docs/performance.md says what that costs in precision.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass
from itertools import islice

from twin import __version__
from twin.planning.grid import Design, Point
from twin.planning.store import ChunkStore, content_key
from twin.planning.sweep_inputs import Inputs, plan_inputs
from twin.planning.sweep_rows import METRICS, columns, rows_of
from twin.workers import done, worker_failures_explained

__all__ = ["METRICS", "SAMPLES", "Chunk", "Inputs", "chunks", "columns", "evaluate", "plan_inputs", "run"]

FORMAT = 1
#: Draws a cell: means are then within 0.3 % and the width of a 90 % interval within 7 % (medians, docs/performance.md).
SAMPLES = 128
CHUNK_CELLS = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive points of a design."""

    points: tuple[Point, ...]
    inputs: Inputs

    @property
    def key(self) -> str:
        """Content hash of everything the rows depend on."""
        inputs = asdict(self.inputs)
        del inputs["roots"]  # where a file lies does not matter, its hash does
        return content_key([FORMAT, __version__, inputs, [asdict(p) for p in self.points]])


def chunks(design: Design, inputs: Inputs) -> Iterator[Chunk]:
    """The design in chunks that do not depend on who computes them."""
    points = iter(design)
    while some := tuple(islice(points, CHUNK_CELLS)):
        yield Chunk(some, inputs)


def run(
    design: Design,
    inputs: Inputs,
    executor: Executor,
    *,
    store: ChunkStore | None = None,
    ahead: int = 1,
    said: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Rows as JSON Lines, one chunk at a time in the design's order; at most `ahead` chunks are in flight.

    Chunks in `store` are taken from there, new ones are put there, also those that were done when the run was interrupted.
    """
    waiting: deque[tuple[Chunk, str, Future[bytes]]] = deque()

    def finish(chunk: Chunk, key: str, future: Future[bytes]) -> bytes:
        body = future.result()
        if store is not None and key:
            store.put(key, body)
        if said is not None:
            said(len(chunk.points))
        return body

    kept = (
        "what was done is kept, run the same command again to go on."
        if store
        else "give --store DIR to keep what is done."
    )
    try:
        with worker_failures_explained(kept):
            for chunk in chunks(design, inputs):
                key = chunk.key if store is not None else ""
                known = store.get(key) if store is not None else None
                waiting.append(
                    (chunk, "", done(known)) if known is not None else (chunk, key, executor.submit(evaluate, chunk))
                )
                if len(waiting) >= ahead:
                    yield finish(*waiting.popleft())
            while waiting:
                yield finish(*waiting.popleft())
    finally:
        for _, _, future in waiting:
            future.cancel()
        for chunk, key, future in waiting:
            if future.done() and not future.cancelled() and future.exception() is None:
                finish(chunk, key, future)


def evaluate(chunk: Chunk) -> bytes:
    """The rows of one chunk as JSON Lines: what a worker does. Raises CatalogueError when its files are not the planner's."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows_of(chunk.points, chunk.inputs)).encode()
