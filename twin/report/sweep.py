"""A sweep as files (CSV, JSON Lines, Parquet) and tables. Rows come as JSON Lines, a chunk at a time."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from twin.errors import TwinError

FORMATS = ("jsonl", "csv", "parquet")
_TEXT = ("lane", "traffic", "verification", "refused")
_WHOLE = ("context_tokens", "k", "streams")
_FLAGS = ("fits_memory", "in_range")
SHOWN = ("step_ms", "tokens_per_step", "tok_s_per_stream", "tok_s_aggregate")


class Sink(Protocol):
    """Takes chunks of rows."""

    def write(self, body: bytes) -> None:
        """Take the rows of one chunk."""
        ...


class _JsonLines:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, body: bytes) -> None:
        self._stream.write(body)


class _Csv:
    def __init__(self, stream: Any, columns: Sequence[str]) -> None:
        self._stream, self._columns = stream, columns
        stream.write((",".join(columns) + "\n").encode())

    def write(self, body: bytes) -> None:
        text = io.StringIO()
        rows = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        rows.writerows(json.loads(line) for line in body.splitlines())
        self._stream.write(text.getvalue().encode())


class _Parquet:
    """Row groups of some thousand rows, so that memory stays flat."""

    GROUP = 8192

    def __init__(self, stream: Any, columns: Sequence[str]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise TwinError(
                "Parquet needs pyarrow; install it with: pip install 'twin-lane[parquet]', or write .csv or .jsonl."
            ) from None
        kinds = (
            {c: pa.string() for c in columns if c in _TEXT or "." in c}
            | dict.fromkeys(_WHOLE, pa.int64())
            | dict.fromkeys(_FLAGS, pa.bool_())
        )
        self._pa, self._rows = pa, []  # type: ignore[var-annotated]
        self._schema = pa.schema([(c, kinds.get(c, pa.float64())) for c in columns])
        self._writer = pq.ParquetWriter(stream, self._schema)

    def write(self, body: bytes) -> None:
        self._rows += [json.loads(line) for line in body.splitlines()]
        if len(self._rows) >= self.GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()


@contextmanager
def sink(path: Path, columns: Sequence[str], *, force: bool) -> Iterator[Sink]:
    """A file that appears whole when the block ends well, and not at all when it does not. Raises TwinError."""
    kind = format_of(path)
    if path.exists() and not force:
        raise TwinError(f"{path}: exists already; give --force to replace it, or another name.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            found: Any = (
                _JsonLines(stream)
                if kind == "jsonl"
                else _Csv(stream, columns)
                if kind == "csv"
                else _Parquet(stream, columns)
            )
            yield found
            if kind == "parquet":
                found.close()
        os.replace(part, path)
    except OSError as error:
        raise TwinError(f"{path}: cannot be written ({error.strerror}).") from None
    finally:
        part.unlink(missing_ok=True)


def stdout_sink(kind: str, stream: Any, columns: Sequence[str]) -> Sink:
    """CSV or JSON Lines to a binary stream."""
    return _Csv(stream, columns) if kind == "csv" else _JsonLines(stream)


def format_of(path: Path) -> str:
    """jsonl, csv or parquet, from the name. Raises TwinError."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise TwinError(f"{path}: the format is taken from the name; expected .csv, .jsonl or .parquet.")
    return kind


def print_rows(rows: Iterable[Mapping[str, Any]], varying: Sequence[str], *, title: str) -> None:
    """A table: what varies, then the main metrics with their 90 % intervals."""
    from rich.markup import escape

    from twin.report.terminal import print_table

    lines = []
    for row in rows:
        numbers = [f"{row[m]:.4g} ({row[f'{m}_p05']:.4g} to {row[f'{m}_p95']:.4g})" if m in row else "" for m in SHOWN]
        note = row["refused"] or ("" if row["fits_memory"] else "needs more KV memory than there is")
        lines.append([*(escape(str(row.get(name, ""))) for name in varying), *numbers, escape(note)])
    left = (*range(len(varying)), len(varying) + len(SHOWN))
    print_table(title, [*varying, *SHOWN, ""], lines, left=left)


def print_sweep(found: Mapping[str, Any], axes: Sequence[str], *, shown: bool) -> None:
    """What a sweep found, chosen cells first; `shown` adds the first rows of all."""
    import click

    from twin.report.terminal import print_table

    varying = ["lane", *axes]
    varying += [name for name in ("k", "streams") if name not in varying]
    if "best" in found:
        print_rows([found["best"]], varying, title=f"best of {found['kept']:,} cells")
    if "pareto" in found:
        print_rows(found["pareto"], varying, title=f"{len(found['pareto'])} cells on the front, of {found['kept']:,}")
    if shown and found.get("rows"):
        print_rows(found["rows"], varying, title=f"{found['cells']:,} cells")
        if found["kept"] + found["refused"] > len(found["rows"]):
            click.echo(
                f"the first {len(found['rows'])} are shown; -o FILE or --format csv gives all, --best and --pareto choose.",
                err=True,
            )
    if "sensitivity" in found:
        rows = [
            [i["parameter"], f"{i['first']:.3f} ± {i['first_half_width']:.3f}", f"{i['total']:.3f} ± {i['total_half_width']:.3f}"]
            for i in found["sensitivity"]["indices"] if i["total"] >= 0.005
        ]  # fmt: skip
        print_table(
            f"what {found['sensitivity']['output']} hangs on (Sobol indices, 90 % intervals)",
            ["parameter", "first order", "total"],
            rows,
        )
