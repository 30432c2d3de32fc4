"""Plots of the frozen records, as matplotlib figures: no state, no pyplot, the same record as the table beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from twin.planning.explain import Explanation
from twin.planning.predict import Cell, Interval, Prediction
from twin.planning.residuals import ResidualRow
from twin.report.figure import COLOURS, INK, LIGHT, MARKERS, new_figure
from twin.report.waterfall import label, waterfall_steps
from twin.step.graph import MECHANISMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from twin.acceptance.model import Acceptance

#: A name and the cells of one curve.
Series = tuple[str, Sequence[Cell]]
#: A name, tokens in flight, and unique experts at each.
Union = tuple[str, Sequence[float], Sequence[Interval]]


def _line(axes: Axes, index: int, x: Sequence[float], values: Sequence[Interval], name: str) -> None:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    axes.plot(x, [v.mean for v in values], color=colour, marker=marker, markersize=5, label=name)
    axes.fill_between(x, [v.p05 for v in values], [v.p95 for v in values], color=colour, alpha=0.18, linewidth=0)


def throughput_against_k(series: Sequence[Series]) -> Figure:
    """tok/s of a stream against k, a band of 90 % around each curve."""
    with new_figure() as (figure, axes):
        for index, (name, cells) in enumerate(series):
            _line(axes, index, [c.k for c in cells], [c.tok_s_per_stream for c in cells], name)
        axes.set(xlabel="k, drafted tokens a step", ylabel="tok/s of a stream", ylim=(0, None))
        axes.legend()
    return figure


def throughput_against_streams(series: Sequence[Series]) -> Figure:
    """tok/s of all streams against the number of live streams, both on logarithmic axes."""
    with new_figure() as (figure, axes):
        for index, (name, cells) in enumerate(series):
            _line(axes, index, [c.concurrency for c in cells], [c.tok_s_aggregate for c in cells], name)
        axes.set(xlabel="live streams", ylabel="tok/s of all streams", xscale="log", yscale="log")
        _plain_ticks(axes, sorted({c.concurrency for _, cells in series for c in cells}))
        axes.legend()
    return figure


def _plain_ticks(axes: Axes, ticks: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xticks(list(ticks), [str(t) for t in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def pareto(series: Sequence[Series]) -> Figure:
    """What a user gets against what the box gives, a point for every number of streams."""
    with new_figure() as (figure, axes):
        for index, (name, cells) in enumerate(series):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            x, y = [c.tok_s_per_stream.mean for c in cells], [c.tok_s_aggregate.mean for c in cells]
            axes.plot(x, y, color=colour, marker=marker, markersize=5, label=name)
            for cell, a, b in zip(cells, x, y, strict=True):
                axes.annotate(str(cell.concurrency), (a, b), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.set(
            xlabel="tok/s of a stream (a user)", ylabel="tok/s of all streams (the box)", xlim=(0, None), ylim=(0, None)
        )
        axes.legend(title="labels: live streams", title_fontsize="small")
    return figure


def step_breakdown(bars: Sequence[tuple[str, Cell]]) -> Figure:
    """One bar a setting: where the step's time goes, in ms, largest first, written on the bar where there is room."""
    with new_figure(height=1.2 + 0.62 * len(bars)) as (figure, axes):
        widest = max(cell.step_ms.mean for _, cell in bars)
        names = [n for n in MECHANISMS if any(cell.breakdown_ms[n] > 0 for _, cell in bars)]
        names.sort(key=lambda n: -max(cell.breakdown_ms[n] for _, cell in bars))
        left = np.zeros(len(bars))
        rows = np.arange(len(bars))[::-1]
        for name in names:
            width = np.array([cell.breakdown_ms[name] for _, cell in bars])
            colour = COLOURS[MECHANISMS.index(name) % len(COLOURS)]
            axes.barh(rows, width, left=left, color=colour, label=label(name), height=0.66)
            for row, at, value in zip(rows, left, width, strict=True):
                if value > 0.045 * widest:
                    ink = "#000000" if colour in LIGHT else "#ffffff"
                    axes.text(at + value / 2, row, f"{value:.2g}", ha="center", va="center", color=ink, fontsize=8)
            left += width
        axes.set_yticks(rows, [name for name, _ in bars])
        axes.set(xlabel="ms of a step")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def waterfall(found: Explanation) -> Figure:
    """From the step of A to the step of B, mechanism by mechanism."""
    bars = waterfall_steps(found)
    with new_figure(height=1.3 + 0.3 * (len(bars) + 2)) as (figure, axes):
        rows = len(bars) + 1
        ends = [(rows, found.a.title, found.a.step_ms), (0, found.b.title, found.b.step_ms)]
        axes.barh([row for row, _, _ in ends], [value for _, _, value in ends], color=COLOURS[0], height=0.66)
        for index, (part, (_, start, end)) in enumerate(zip(found.parts, bars, strict=True)):
            row = rows - 1 - index
            axes.barh(row, end - start, left=start, color=COLOURS[2] if end <= start else COLOURS[1], height=0.66)
            axes.annotate(
                f"{part.difference_ms:+.2f} ms",
                (max(start, end), row),
                textcoords="offset points",
                xytext=(4, 0),
                va="center",
                fontsize=8,
            )
        for row, _, value in ends:
            axes.annotate(
                f"{value:.2f} ms", (value, row), textcoords="offset points", xytext=(4, 0), va="center", fontsize=8
            )
        axes.set_yticks(range(rows, -1, -1), [found.a.title, *(label(name) for name, *_ in bars), found.b.title])
        every = [x for _, *pair in bars for x in pair] + [found.a.step_ms, found.b.step_ms]
        low = max(0.0, min(every) - 0.6 * (max(every) - min(every)))
        axes.set(xlabel="ms of a step", xlim=(low, max(every) + 0.12 * (max(every) - low)))
        axes.grid(axis="y", visible=False)
    return figure


def residuals(rows: Sequence[ResidualRow]) -> Figure:
    """Predicted over measured by receipt, with the 90 % interval of what a repeat of that run would show."""
    ordered = sorted(rows, key=lambda row: (row.lane, row.quantity, row.concurrency, row.k))
    with new_figure(height=1.2 + 0.21 * len(ordered)) as (figure, axes):
        for index, row in enumerate(ordered):
            y, colour = len(ordered) - 1 - index, COLOURS[0] if row.in_fit else COLOURS[1]
            low, mean, high = (100 * (v / row.measured - 1) for v in (row.p05, row.predicted, row.p95))
            axes.plot([low, high], [y, y], color=colour, linewidth=1.4)
            axes.plot([mean], [y], color=colour, marker="o" if row.in_fit else "D", markersize=5, linestyle="none")
        for in_fit, name in ((True, "in the fit"), (False, "not in the fit")):
            if any(row.in_fit is in_fit for row in ordered):
                axes.plot([], [], color=COLOURS[0 if in_fit else 1], marker="o" if in_fit else "D", label=name)
        axes.axvline(0, color=INK, linewidth=0.8)
        names = [f"{r.lane} {r.quantity} k={r.k} C{r.concurrency} {r.context_tokens}" for r in ordered]
        axes.set_yticks(range(len(ordered) - 1, -1, -1), names, fontsize=7)
        # A stage known within a factor must not squeeze the cells known within per cents.
        widest = max((abs(100 * row.error) for row in ordered), default=0.0)
        axes.set(xlabel="predicted over measured, %", xlim=(-max(30.0, 1.2 * widest), max(30.0, 1.2 * widest)))
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def acceptance_curves(found: Sequence[tuple[str, Acceptance]]) -> Figure:
    """Survival (first p drafts all kept) and conditional acceptance by position."""
    with new_figure(width=8.4, columns=2) as (figure, (left, right)):
        for index, (name, accepted) in enumerate(found):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            position = np.arange(1, accepted.k + 1)
            left.plot(position, accepted.survival, color=colour, marker=marker, label=name)
            right.plot(position, accepted.conditional, color=colour, marker=marker, label=name)
        left.set(xlabel="position", ylabel="first p drafts all kept", ylim=(0, 1))
        right.set(xlabel="position", ylabel="kept, given those before", ylim=(0, 1))
        left.legend(fontsize="small")
    return figure


def union_curve(series: Sequence[Union], uniform: Sequence[float] | None = None) -> Figure:
    """Unique experts a layer against verified tokens; `uniform` is independent uniform routing at the first x."""
    with new_figure() as (figure, axes):
        for index, (name, tokens, values) in enumerate(series):
            _line(axes, index, tokens, values, name)
        if uniform is not None and series:
            axes.plot(series[0][1], uniform, color=INK, linestyle="--", linewidth=1, label="uniform routing")
        axes.set(xlabel="verified tokens in flight", ylabel="unique experts a layer", xscale="log", ylim=(0, None))
        from matplotlib.ticker import FuncFormatter

        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.legend()
    return figure


def prediction(found: Prediction) -> Figure:
    """`twin predict --plot`: where the step goes, or throughput against streams when several numbers were asked for."""
    streams = sorted({cell.concurrency for cell in found.cells})
    if len(streams) < 2:
        return step_breakdown([(f"k = {c.k}, C{c.concurrency}", c) for c in found.cells[:12]])
    return throughput_against_streams([(found.lane, sorted(found.cells, key=lambda cell: cell.concurrency))])
