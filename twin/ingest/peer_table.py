"""A benchmark table of somebody's own harness, CSV or Markdown: TG, PP and acceptance by prompt size and concurrency.

Columns are found by their usual names. Two layouts: one row a cell with columns for prompt size and concurrency, and
the `test` column of llama-bench and llama-benchy ("pp2048 @ d4096 (c4)", "tg128 @ d4096"). A TG column with several
streams must say whether it is of one stream or of all, by its name or by --tg-is; an acceptance column whether it is
tokens per step or a share of the drafts, by its name, its values or --accept-is.
"""

from __future__ import annotations

import re

from twin.errors import IngestError
from twin.ingest.model import Cell, Found
from twin.ingest.peer_columns import meaning
from twin.ingest.reader import Head, Reader, nothing_inside
from twin.ingest.source import Source
from twin.ingest.table import Row, header, quantity, rows

TITLE = "a benchmark table (CSV or Markdown) with TG, PP or acceptance by prompt size and concurrency"
#: results of one table; each becomes a cell
MAX_CELLS = 50_000
_TEST = re.compile(r"^(ctx_)?(pp|tg)\s*([0-9]{1,9})?\s*(?:@\s*d([0-9]{1,9}))?\s*(?:\(c([0-9]{1,6})\))?$")


def score(head: Head) -> float:
    if head.json or head.binary:
        return 0.0
    meanings = {meaning(c) for c in header(head.text)} - {None}
    rates = meanings & {"tg", "tg_stream", "tg_total", "pp", "step", "tpot", "test"}
    places = meanings & {
        "context",
        "concurrency",
        "accept",
        "accept_length",
        "accept_rate",
        "accept_percent",
        "k",
        "ttft",
        "test",
    }
    if rates and places:
        return 0.8
    # A document may open with another table; look at every header in the head.
    for line in head.lines:
        if line.count("|") >= 3:
            found = {meaning(c.strip().lower().strip("*`")) for c in line.strip("| ").split("|")} - {None}
            if found & {"tg", "tg_stream", "tg_total", "pp"} and len(found) >= 2:
                return 0.78
    return 0.3 if meanings else 0.0


def read(source: Source) -> Found:
    """One cell a row that has a rate; rows of other tables in a Markdown file are passed over and counted."""
    found = Found(FORMAT.name, source.where, source.sha256())
    passed = 0
    maps: dict[int, dict[str, str]] = {}
    joined: dict[tuple[object, ...], Cell] = {}
    for row in rows(source):
        if row.table not in maps:
            maps[row.table] = _map(row, source.where, found)
        columns = maps[row.table]
        cell = _tests(row, columns, source.where, joined) if "test" in columns else _cell(row, columns, source.where)
        if cell is None:
            passed += 1
        else:
            found.cells.append(cell)
            if len(found.cells) > MAX_CELLS:
                raise IngestError(f"{source.where}: more than {MAX_CELLS:,} results; split the table by run.")
    _hint(found.cells)
    if passed:
        found.notes.append(f"{passed} rows without a rate passed over")
    if not found.cells:
        raise nothing_inside(source, TITLE, "no row with a rate of decoding or prefill")
    return found


def _hint(cells: list[Cell]) -> None:
    """Say of unclear token rates whether they are of one stream or of all, where rows of one stream show it.

    A stream is not faster in company than alone, and a batch is not slower than one stream: at the same context, a rate
    above the one of a lone stream is of all, one below it of each.
    """
    alone = {c.context_tokens: c.unclear_tok_s for c in cells if c.unclear_tok_s and c.concurrency_asked == 1}
    votes = {"per-stream": 0, "aggregate": 0}
    for cell in cells:
        lone = alone.get(cell.context_tokens)
        if cell.unclear_tok_s and lone and (cell.concurrency_asked or 1) > 1:
            votes["aggregate"] += cell.unclear_tok_s > 1.03 * lone
            votes["per-stream"] += cell.unclear_tok_s < 0.97 * lone
    if (votes["per-stream"] > 0) == (votes["aggregate"] > 0):
        return
    hint = max(votes, key=lambda name: votes[name])
    for cell in cells:
        if cell.unclear_tok_s and (cell.concurrency_asked or 1) > 1:
            cell.tg_hint = hint
            reason = "below" if hint == "per-stream" else "above"
            cell.flag(
                "rate-read-as", f"token rate read as {hint}: it is {reason} that of one stream; --tg-is says otherwise"
            )


def _map(row: Row, where: str, found: Found) -> dict[str, str]:
    columns: dict[str, str] = {}
    for column in row.cells:
        name = meaning(column)
        if name is None or name in columns:
            found.keep(
                f"column {column!r}" + (f" (line {row.line}: a second {name})" if name else ""), row.cells[column]
            )
        else:
            columns[name] = column
    return columns


def _get(
    row: Row, columns: dict[str, str], name: str, where: str, kilo: float = 1000.0
) -> tuple[float, float | None, str] | None:
    if name not in columns:
        return None
    text = row.cells[columns[name]]
    found = quantity(text, kilo)
    if found is not None and found[0] < 0:
        raise IngestError(f"{where}, line {row.line}: {columns[name]} is {text[:30]!r}; a negative number cannot be.")
    return found


def _cell(row: Row, columns: dict[str, str], where: str) -> Cell | None:
    def get(name: str, kilo: float = 1000.0) -> tuple[float, float | None, str] | None:
        return _get(row, columns, name, where, kilo)

    cell = Cell(f"line {row.line}")
    context, streams, k = get("context", 1024.0), get("concurrency"), get("k")
    cell.context_tokens = context[0] if context else None
    if streams:
        cell.concurrency_asked = _whole(streams[0], where, row.line, columns["concurrency"], 1)
    if k is not None:
        cell.k = int(_whole(k[0], where, row.line, columns["k"], 0))
    for name, value in (("tg_stream", get("tg_stream")), ("tg_total", get("tg_total")), ("tg", get("tg"))):
        if value and value[0] > 0:
            cell.noise = cell.noise or (value[1] / value[0] if value[1] else None)
            if name == "tg_stream":
                cell.tok_s_per_stream = value[0]
            elif name == "tg_total":
                cell.tok_s_aggregate = value[0]
            elif cell.tok_s_per_stream and cell.concurrency_asked and cell.concurrency_asked > 1:
                cell.tok_s_aggregate = cell.tok_s_aggregate or value[0]
            elif not (cell.tok_s_per_stream or cell.tok_s_aggregate):
                cell.unclear_tok_s = value[0]
    _acceptance(cell, row, columns, where)
    for name in ("step", "tpot", "ttft"):
        value = get(name)
        if value and value[0] > 0:
            seconds = _seconds(value, columns[name], row, where)
            if name == "ttft":
                cell.ttft_s = seconds
            elif name == "step":
                cell.step_s, cell.step_definition = seconds, "step_interval"
            else:
                cell.tpot_s = seconds
    prefill, output, model = get("pp"), get("output"), row.cells.get(columns.get("model", ""), "")
    cell.prefill_tok_s = prefill[0] if prefill and prefill[0] > 0 else None
    cell.output_tokens = output[0] if output and output[0] >= 1 else None
    cell.checkpoint = model[:200]
    rates = (
        cell.tok_s_per_stream,
        cell.tok_s_aggregate,
        cell.unclear_tok_s,
        cell.prefill_tok_s,
        cell.step_s,
        cell.tpot_s,
    )
    return cell if any(rates) else None


def _acceptance(cell: Cell, row: Row, columns: dict[str, str], where: str) -> None:
    length, rate = _get(row, columns, "accept_length", where), _get(row, columns, "accept_rate", where)
    percent, plain = _get(row, columns, "accept_percent", where), _get(row, columns, "accept", where)
    if length:
        if length[0] < 1.0:
            raise IngestError(
                f"{where}, line {row.line}: {length[0]:g} tokens per step; with the bonus token it is at least 1."
            )
        cell.tokens_per_step, cell.acceptance_source = length[0], "run"
    elif percent or rate or plain:
        value, _, unit = percent or rate or plain or (0.0, None, "")
        share = percent is not None or rate is not None or unit.startswith("%")
        if share:
            fraction = value / 100.0 if percent is not None or unit.startswith("%") or value > 1.0 else value
            if fraction > 1.0:
                raise IngestError(f"{where}, line {row.line}: an acceptance of {value:g} % cannot be.")
            cell.accept_rate = fraction
        else:
            cell.unclear_accept = value


def _seconds(value: tuple[float, float | None, str], column: str, row: Row, where: str) -> float:
    unit = value[2] or (
        match[1] if (match := re.search(r"[_( ]?(ms|s)\)?$", column)) else "ms" if column.startswith("ms/") else ""
    )
    if unit not in ("ms", "s"):
        raise IngestError(
            f"{where}, line {row.line}: {column!r} has no unit; name the column {column}_ms or {column}_s."
        )
    return value[0] / 1000.0 if unit == "ms" else value[0]


def _whole(value: float, where: str, line: int, column: str, minimum: int) -> float:
    if value != int(value) or value < minimum:
        raise IngestError(
            f"{where}, line {line}: {column} is {value:g}; expected a whole number of at least {minimum}."
        )
    return value


def _tests(row: Row, columns: dict[str, str], where: str, joined: dict[tuple[object, ...], Cell]) -> Cell | None:
    """Rows of a `test` column: "tg128 @ d4096 (c4)"; prefill and decoding become cells of their own."""
    match = _TEST.match(row.cells[columns["test"]].strip().lower())
    value = (
        _get(row, columns, "tg_stream", where)
        or _get(row, columns, "tg", where)
        or _get(row, columns, "tg_total", where)
    )
    if match is None or value is None or value[0] <= 0:
        return None
    depth, streams = float(match[4] or 0), float(match[5] or 1)
    cell = Cell(
        f"line {row.line}", concurrency_asked=streams, checkpoint=row.cells.get(columns.get("model", ""), "")[:200]
    )
    cell.noise = value[1] / value[0] if value[1] else None
    if match[2] == "tg":
        cell.output_tokens = float(match[3]) if match[3] and int(match[3]) else None
        prompt = joined.get((match[4], match[5], cell.checkpoint))
        # llama-benchy decodes after the prompt of the test; llama-bench, which prints size and params, on its own.
        alone = "size" in row.cells or "params" in row.cells
        cell.context_tokens = depth + (float(prompt.output_tokens or 0) if prompt and not alone else 0.0)
        if "tg_stream" in columns or streams == 1:
            cell.tok_s_per_stream = value[0]
        elif "tg_total" in columns:
            cell.tok_s_aggregate = value[0]
        else:
            cell.unclear_tok_s = value[0]
    else:
        size = float(match[3] or 0)
        cell.prefill_tok_s, cell.context_tokens, cell.k = value[0], depth + size, None
        memory = Cell("prompt", output_tokens=size)
        joined[(match[4], match[5], cell.checkpoint)] = memory
        ttft = _get(row, columns, "ttft", where)
        if ttft and ttft[0] > 0:
            cell.ttft_s = _seconds(ttft, columns["ttft"], row, where)
    return cell


FORMAT = Reader("peer-table", TITLE, score, read)
