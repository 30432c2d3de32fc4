"""Plots: drawn from records, files by their ending, pages' own colours inside a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")

from twin.cli.main import cli
from twin.errors import TwinError
from twin.lane.catalogue import catalogue_roots
from twin.planning.explain import explain
from twin.planning.predict import Interval
from twin.planning.residuals import ResidualRow
from twin.planning.scenario import parse_setting, resolve
from twin.report import plots
from twin.report.figure import COLOURS, inline_svg, save

A, B = (resolve(parse_setting(text), catalogue_roots()) for text in ("sidecar:k=5", "tp4:k=7"))
ROW = ResidualRow(
    "a", "s", "sidecar", "code", 5, "token", 1, 2048, "step_time", "ms", 11.0, 10.8, 10.2, 11.4, -0.02, True, False
)


def test_a_curve_has_a_point_for_every_cell_and_a_band_around_it() -> None:
    cells = [A.others(k=k) for k in (0, 3, 5)]
    axes = plots.throughput_against_k([("A", cells)]).axes[0]
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [0, 3, 5]
    assert list(line.get_ydata()) == [c.tok_s_per_stream.mean for c in cells]
    (band,) = axes.collections
    ys = band.get_paths()[0].vertices[:, 1]
    assert min(ys) == pytest.approx(min(c.tok_s_per_stream.p05 for c in cells))
    assert max(ys) == pytest.approx(max(c.tok_s_per_stream.p95 for c in cells))


def test_bars_of_a_step_add_up_to_it() -> None:
    axes = plots.step_breakdown([("A", A.cell), ("B", B.cell)]).axes[0]
    widths = [patch.get_width() for patch in axes.patches]
    assert sum(widths) == pytest.approx(A.cell.step_ms.mean + B.cell.step_ms.mean, rel=1e-6)


def test_the_waterfall_is_drawn_from_a_to_b() -> None:
    found = explain(A, B, samples=20)
    axes = plots.waterfall(found).axes[0]
    steps = [patch for patch in axes.patches][2:]
    assert sum(p.get_width() for p in steps) == pytest.approx(found.b.step_ms - found.a.step_ms, abs=1e-9)


def test_residuals_tell_fitted_receipts_from_others() -> None:
    figure = plots.residuals([ROW])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not in the fit"]


def test_the_other_plots_take_their_records() -> None:
    by_streams = [("A", [A.others(concurrency=n) for n in (1, 4)])]
    assert plots.throughput_against_streams(by_streams).axes[0].get_xscale() == "log"
    assert len(plots.pareto(by_streams).axes[0].texts) == 2
    plots.acceptance_curves([("A", A.predictor.acceptance(5, "token"))])
    plots.union_curve([("code", (1, 2), (Interval(6, 6, 6, 6), Interval(10, 9, 10, 11)))], [6.0, 11.9])


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_files_are_made_by_their_ending_and_the_same_twice(ending: str, tmp_path: Path) -> None:
    figure = plots.step_breakdown([("A", A.cell)])
    one, other = tmp_path / f"one.{ending}", tmp_path / f"other.{ending}"
    save(figure, one)
    save(figure, other)
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[ending]
    assert one.read_bytes().startswith(start)
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(TwinError, match="exists already"):
        save(figure, one)


def test_an_unknown_ending_or_folder_is_refused(tmp_path: Path) -> None:
    figure = plots.step_breakdown([("A", A.cell)])
    with pytest.raises(TwinError, match=r"ends in .svg, .png, .pdf; got '.gif'"):
        save(figure, tmp_path / "x.gif")
    with pytest.raises(TwinError, match="cannot be written"):
        save(figure, tmp_path / "missing" / "x.svg")


def test_an_inline_drawing_has_its_own_ids_and_the_colours_of_the_page() -> None:
    svg = inline_svg(plots.waterfall(explain(A, B, samples=20)), "one", 'A "quoted" <title> & more')
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == 'A "quoted" <title> & more'
    assert "currentColor" in svg and "var(--c1)" in svg
    assert not any(colour in svg for colour in COLOURS)
    assert all(name.startswith("one-") for name in re.findall(r'\bid="([^"]+)"', svg))
    assert all(ref.startswith("one-") for ref in re.findall(r"url\(#([^)]+)\)", svg))
    assert "<style" not in svg and "<metadata" not in svg


def test_a_title_with_a_dollar_is_text() -> None:
    inline_svg(plots.step_breakdown([("costs $5 $\\bad{", A.cell)]), "x", "x")


@pytest.mark.parametrize("streams", ["1", "1,2,8"])
def test_predict_draws_what_it_printed(streams: str, tmp_path: Path) -> None:
    file = tmp_path / "x.svg"
    done = CliRunner().invoke(cli, ["predict", "--lane", "tp4", "--k", "7", "-c", streams, "--plot", str(file)])
    assert done.exit_code == 0, done.output
    ElementTree.parse(file)
