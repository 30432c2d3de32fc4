"""A run's records to files: requests as CSV or Parquet, the timeline as a trace or a plot.

A file is written whole or not at all.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from twin.errors import TwinError
from twin.files import replacing
from twin.serving.collector import REQUEST_COLUMNS, RequestTable
from twin.serving.simulate import Run
from twin.serving.timeline import plot_timeline, trace_text

PLOTS = (".svg", ".png", ".pdf")


def write_requests(run: Run, path: Path, class_names: Sequence[str], *, force: bool = False) -> None:
    """One row a request, by the suffix of `path`: .parquet (needs pyarrow), else CSV. Raises TwinError."""
    table = run.collector.requests
    if path.suffix == ".parquet":
        _write(path, lambda target: _parquet(table, target, class_names), force)
    else:
        _write(path, lambda target: _csv(table, target, class_names), force)


def write_trace(run: Run, path: Path, name: str, *, force: bool = False) -> None:
    """The timeline as Chrome trace events, which Perfetto opens. Raises TwinError."""
    text = trace_text(run.collector.timeline, run.collector.requests.spans(), name=name)
    _write(path, lambda target: target.write_text(text, encoding="utf-8"), force)


def write_plot(run: Run, path: Path, title: str, *, force: bool = False) -> None:
    """The timeline as a picture. Raises TwinError."""
    replicas = [*run.cluster.replicas, *run.cluster.prefillers]
    capacity = sum(r.scheduler.kv.capacity_tokens for r in replicas)
    timeline = run.collector.timeline
    draw = partial(plot_timeline, timeline, title=title, kv_capacity_tokens=capacity)
    write_picture(path, draw, force=force)


def write_picture(path: Path, draw: Callable[[Path], Any], *, force: bool = False) -> None:
    """Anything that draws itself into a file, as .svg, .png or .pdf. Raises TwinError."""
    if path.suffix not in PLOTS:
        raise TwinError(f"{path}: a plot is written as {', '.join(PLOTS)}; got {path.suffix or 'no suffix'!r}.")
    _write(path, draw, force)


def _csv(table: RequestTable, target: Path, class_names: Sequence[str]) -> None:
    with target.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(REQUEST_COLUMNS)
        for row in table.rows(list(class_names)):
            writer.writerow(["" if v is None else f"{v:.9g}" if isinstance(v, float) else v for v in row])


def _parquet(table: RequestTable, target: Path, class_names: Sequence[str]) -> None:
    try:
        pa: Any = importlib.import_module("pyarrow")
        pq: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise TwinError('Parquet needs pyarrow: pip install "twin-lane[parquet]", or write .csv.') from None
    columns = zip(*table.rows(list(class_names)), strict=True)
    pq.write_table(pa.table(dict(zip(REQUEST_COLUMNS, map(list, columns), strict=True))), target)


def _write(path: Path, write: Callable[[Path], Any], force: bool) -> None:
    try:
        with replacing(path, force=force) as part:
            write(part)
    except ImportError as error:
        raise TwinError(f'{path}: a plot needs matplotlib ({error.name}): pip install "twin-lane[plots]".') from None
