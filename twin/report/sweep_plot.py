"""A sweep as a picture: one output against the first axis that is a number, a line for every other setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twin.errors import PolicyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: More lines than this are no picture.
MAX_LINES = 16


def sweep_figure(rows: Sequence[Mapping[str, Any]], varying: Sequence[str], output: str) -> Figure:
    """`output` with its 5 and 95 % quantiles against the first numeric column of `varying`. Raises PolicyError without one."""
    from twin.report.figure import new_figure

    rows = [row for row in rows if not row["refused"]]
    axis = next(
        (n for n in varying if len({row[n] for row in rows}) > 1 and all(_is_number(row[n]) for row in rows)), None
    )
    if axis is None:
        raise PolicyError(
            "--plot: no axis of the sweep is a number with more than one value; add one with --grid k=0..9."
        )
    lines: dict[str, list[Mapping[str, Any]]] = {}
    others = [n for n in varying if n != axis and len({str(row[n]) for row in rows}) > 1]
    for row in rows:
        lines.setdefault(", ".join(f"{n} {row[n]}" for n in others) or "all", []).append(row)
    if len(lines) > MAX_LINES:
        raise PolicyError(
            f"--plot: {len(lines)} lines, at most {MAX_LINES} can be told apart; fix some axes or sweep fewer values."
        )
    with new_figure(7.5, 4.2) as (figure, axes):
        for name, own in lines.items():
            own = sorted(own, key=lambda row: float(row[axis]))
            x = [float(row[axis]) for row in own]
            (line,) = axes.plot(x, [row[output] for row in own], marker="o", markersize=3.5, label=name)
            axes.fill_between(
                x,
                [row[f"{output}_p05"] for row in own],
                [row[f"{output}_p95"] for row in own],
                color=line.get_color(),
                alpha=0.12,
            )
        axes.set(xlabel=axis, ylabel=output, ylim=(0, None))
        axes.legend(fontsize=8)
    figure_out: Figure = figure
    return figure_out


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)
