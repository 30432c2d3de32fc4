"""Published acceptance lengths by draft length, as small YAML files (InferenceX golden acceptance lengths).

    model-name:
      thinking_on:
        1: 1.79
        2: 2.27

Keys of the innermost level are the draft tokens k, values tokens per step with the bonus token. Only this shape is
read, by indentation; it is not a YAML parser.
"""

from __future__ import annotations

import re

from twin.errors import IngestError
from twin.ingest.model import Cell, Flag, Found
from twin.ingest.reader import Head, Reader, line_score, nothing_inside
from twin.ingest.source import Source

TITLE = "acceptance lengths by draft length (YAML)"
_HEADING = re.compile(r"^( *)([A-Za-z][A-Za-z0-9._ -]{0,119}):\s*(?:#.*)?$")
_ENTRY = re.compile(r"^( +)([0-9]{1,2}):\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(?:#.*)?$")
_SIGNATURE = re.compile(
    r"\A(?:\s*#[^\n]*\n|\s*\n)*[A-Za-z][A-Za-z0-9._-]{0,119}:[^\n]*\n(?: +[A-Za-z][\w.-]*:[^\n]*\n)*(?: +#[^\n]*\n)* "
    r"+[0-9]{1,2}: *[0-9]+(\.[0-9]+)?"
)


def score(head: Head) -> float:
    return 0.0 if head.json else line_score(head, _SIGNATURE)


def read(source: Source) -> Found:
    """One acceptance cell for each k of each setting."""
    found = Found(FORMAT.name, source.where, source.sha256())
    found.flags.append(Flag("acceptance-only", "published acceptance lengths; no times in the file"))
    path: list[tuple[int, str]] = []
    seen: set[tuple[str, int]] = set()
    for number, line in enumerate(source.lines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            if line.startswith("# ") and len(found.notes) < 8:
                found.notes.append(line[2:200].strip())
            continue
        if entry := _ENTRY.match(line):
            k, length = int(entry[2]), float(entry[3])
            name = " / ".join(p for indent, p in path if indent < len(entry[1]))
            if not 1.0 <= length <= k + 1.0005:
                raise IngestError(
                    f"{source.where}, line {number}: {length:g} tokens per step at k = {k}; expected 1 to {k + 1}."
                )
            if (name, k) in seen:
                raise IngestError(f"{source.where}, line {number}: k = {k} of {name!r} appears twice.")
            seen.add((name, k))
            cell = Cell(
                f"{name}, k = {k}",
                k=k,
                tokens_per_step=length,
                acceptance_source="run",
                checkpoint=path[0][1] if path else "",
            )
            cell.notes.append(name)
            found.cells.append(cell)
        elif heading := _HEADING.match(line):
            path = [p for p in path if p[0] < len(heading[1])] + [(len(heading[1]), heading[2])]
        else:
            found.keep(f"line {number}", line[:120])
        if number > 100_000:
            raise IngestError(f"{source.where}: more than 100,000 lines; this is no table of acceptance lengths.")
    if not found.cells:
        raise nothing_inside(source, TITLE, "no entry")
    return found


FORMAT = Reader("acceptance-lengths", TITLE, score, read)
