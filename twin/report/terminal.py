"""Tables and bars on a terminal: aligned, coloured only on a terminal, NO_COLOR honoured, plain where piped."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Width of tables when the output is not a terminal and COLUMNS does not say.
PIPE_WIDTH = 160


def console() -> Console:
    """A console on stdout. Piped output is plain and wide enough not to be cut."""
    from rich.console import Console
    from rich.errors import MarkupError

    class Forgiving(Console):
        """Text of other people's files with a bracket that closes nothing is shown as it is."""

        def render_str(self, text: str, **how: Any) -> Text:
            try:
                return super().render_str(text, **how)
            except MarkupError:
                return super().render_str(text, **(how | {"markup": False}))

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Forgiving(width=width, highlight=False, soft_wrap=False)


def literal(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows whose cells are shown as they are: brackets in them are no markup."""
    from rich.markup import escape

    return [[escape(cell) for cell in row] for row in rows]


def print_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    out: Console | None = None,
) -> None:
    """A table with numbers to the right; columns in `left` to the left."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    (out or console()).print(table)


def bar(value: float, whole: float, width: int = 30) -> str:
    """A unicode bar of `value` in `whole`, to an eighth of a cell."""
    if whole <= 0:
        return ""
    eighths = round(max(0.0, min(1.0, value / whole)) * width * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def number(value: float, digits: int = 3) -> str:
    """A number to `digits` significant digits, thousands separated, never in scientific notation for what people read."""
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - magnitude)}f}" if magnitude else f"{value:.{digits}g}"
