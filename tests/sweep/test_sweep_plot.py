"""The picture of a sweep: a line a setting, refused cells left out, and a reason where nothing can be drawn."""

from __future__ import annotations

import pytest

from twin.errors import PolicyError
from twin.report.sweep_plot import sweep_figure

pytest.importorskip("matplotlib")


def _row(lane: str, k: int, value: float, refused: str = "") -> dict[str, object]:
    return {
        "lane": lane,
        "k": k,
        "refused": refused,
        "tok_s_aggregate": value,
        "tok_s_aggregate_p05": 0.9 * value,
        "tok_s_aggregate_p95": 1.1 * value,
    }


def test_one_line_a_lane_and_refused_cells_left_out() -> None:
    rows = [_row("a", 0, 10.0), _row("a", 3, 20.0), _row("b", 0, 11.0), _row("b", 3, 0.0, "no draft head")]
    axes = sweep_figure(rows, ["k", "lane"], "tok_s_aggregate").axes[0]
    drawn = {line.get_label(): list(map(float, line.get_ydata())) for line in axes.get_lines()}
    assert drawn == {"lane a": [10.0, 20.0], "lane b": [11.0]}
    assert axes.get_xlabel() == "k"


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(PolicyError, match="no axis"):
        sweep_figure([_row("a", 5, 1.0), _row("b", 5, 2.0)], ["k", "lane"], "tok_s_aggregate")
    many = [_row(f"lane-{i}", k, 1.0) for i in range(20) for k in (0, 5)]
    with pytest.raises(PolicyError, match="20 lines"):
        sweep_figure(many, ["k", "lane"], "tok_s_aggregate")
