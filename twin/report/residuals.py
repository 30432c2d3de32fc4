"""Predicted against measured, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twin.errors import TwinError
from twin.fitting.score import Score
from twin.report.figure import save


def plot_residuals(scores: Sequence[Score], path: Path, *, force: bool) -> None:
    """Relative error of every held-out cell by lane, with its 90 % interval. Raises TwinError without matplotlib."""
    if path.exists() and not force:
        raise TwinError(f"{path}: exists already; give --force to replace it, or another name.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TwinError("--plot needs matplotlib; install it with: pip install 'twin-lane[plots]'") from None
    lanes = sorted({s.cell.receipt.lane for s in scores})
    figure = Figure(figsize=(9, 0.3 * len(lanes) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes):
        own = [s for s in scores if s.cell.receipt.lane == lane]
        for index, s in enumerate(own):
            y = row + 0.7 * (index / max(1, len(own) - 1) - 0.5) if len(own) > 1 else row
            axes.plot(
                [100 * (s.p05 / s.cell.receipt.value - 1), 100 * (s.p95 / s.cell.receipt.value - 1)],
                [y, y],
                color="0.75",
                lw=0.8,
                zorder=1,
            )
            axes.plot(100 * s.relative_error, y, "o", ms=3, color="tab:blue" if s.covered else "tab:red", zorder=2)
    axes.axvline(0, color="0.4", lw=0.8)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_xlim(-60, 60)
    axes.set_xlabel("predicted over measured, %; grey: 90 % interval; red: the interval misses")
    save(figure, path, force=force)
