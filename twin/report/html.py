"""Small pieces of HTML for pages that stand alone: every text is escaped, nothing is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

#: The page may use its own style and nothing else: no script, no network.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, body: Sequence[str]) -> str:
    """A whole document with the style inside."""
    style = files("twin.report").joinpath("assets/report.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>\n{style}</style>"
    )
    inside = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{inside}\n</main></body></html>\n'


def heading(text: str, level: int = 2) -> str:
    """A heading."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, style: str = "") -> str:
    """A paragraph, with a class of the style sheet."""
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def preformatted(text: str) -> str:
    """Text as it is, for commands."""
    return f"<pre>{escape(text)}</pre>"


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """A table whose first column heads its rows; `left` are text columns. A cell "12 (10 to 14)" has its bracket
    small.
    """
    head = "".join(_head(name, _left(i, left)) for i, name in enumerate(header))
    lines = []
    for row in rows:
        first, *rest = row
        cells = "".join(f"<td{_left(i, left)}>{_cell(text)}</td>" for i, text in enumerate(rest, start=1))
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    body = "".join(lines)
    inside = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    name = escape(caption, quote=True)
    return f'<div class="table" tabindex="0" role="region" aria-label="{name}"><table>{inside}</table></div>'


def _head(name: str, style: str) -> str:
    return f'<th scope="col"{style}>{escape(name)}</th>' if name else "<td></td>"


def _left(index: int, left: Sequence[int]) -> str:
    return ' class="left"' if index in left else ""


def _cell(text: str) -> str:
    value, bracket, spread = text.partition(" (")
    if bracket and spread.endswith(")"):
        return f'{escape(value)} <span class="range">({escape(spread)}</span>'
    return escape(text)


def figure(svg: str, caption: str) -> str:
    """A drawing with its caption; `svg` is markup from `twin.report.figure.inline_svg`."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def details(summary: str, inside: str) -> str:
    """Markup that opens on a click (and prints only when it is open)."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"
