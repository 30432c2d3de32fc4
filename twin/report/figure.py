"""The look of plots, and how a figure becomes a file or a part of a page.

`save` writes a file by its ending; `inline_svg` gives an SVG whose text is selectable and whose colours come from the
page (currentColor and the CSS variables --c1 to --c9, --grid, --bar-ink), so that it follows light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twin.errors import TwinError
from twin.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours that stay apart for colour-blind readers (M. Okabe, K. Ito, Color universal design, 2008), with markers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#882255", "#7a7a00", "#6a51a3")
MARKERS = "osD^vPX*<"
#: Colours on which small text must be dark.
LIGHT = ("#cc79a7", "#56b4e9", "#b8860b")
INK, GRID = "#1b1b1b", "#d4d4d4"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a title is a person's text, not a formula
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
}
_ENDINGS = (".svg", ".png", ".pdf")


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise TwinError("plots need matplotlib; install it with: pip install 'twin-lane[plots]'") from None
    return matplotlib


@contextmanager
def new_figure(width: float = 7.0, height: float = 3.8, columns: int = 1) -> Iterator[tuple[Figure, Any]]:
    """A figure in the common style with `columns` axes (one, or an array of them), inches."""
    with _matplotlib().rc_context(_STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(1, columns)


def save(figure: Figure, path: Path, *, force: bool = False) -> None:
    """Write a figure as .svg, .png or .pdf, whole or not at all. Raises TwinError."""
    if path.suffix.lower() not in _ENDINGS:
        raise TwinError(f"{path}: a plot ends in {', '.join(_ENDINGS)}; got {path.suffix or 'no ending'!r}.")
    buffer = io.BytesIO()
    with _matplotlib().rc_context(_STYLE | {"svg.hashsalt": "twin"}):
        figure.savefig(
            buffer, format=path.suffix.lower()[1:], dpi=160, facecolor="white", metadata=_undated(path.suffix)
        )
    write_bytes(path, buffer.getvalue(), force=force)


def _undated(suffix: str) -> dict[str, Any]:
    # The same record must give the same file.
    return {"Date": None} if suffix.lower() == ".svg" else {"CreationDate": None} if suffix.lower() == ".pdf" else {}


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an <svg> element for a page; `name` keeps ids apart, `description` is read to who cannot see it."""
    buffer = io.StringIO()
    with _matplotlib().rc_context(_STYLE | {"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Its one rule is for every element there is; the page has it for svg elements alone.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    for index, colour in enumerate(COLOURS, start=1):
        text = text.replace(colour, f"var(--c{index})")
    text = text.replace("#ffffff", "var(--bar-ink)").replace(INK, "currentColor").replace(GRID, "var(--grid)")
    head = re.match(r"<svg([^>]*)>", text)
    assert head is not None
    size = re.search(r'viewBox="[^"]+"', head[1])
    assert size is not None
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    opening = f'<svg {size[0]} {spaces} role="img" aria-label="{escape(description, quote=True)}">'
    return opening + text[head.end() :]
