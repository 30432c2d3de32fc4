"""The report: one file that needs nothing else, says what was asked, and shows no markup it was given."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")

from twin.cli.main import cli
from twin.lane.catalogue import catalogue_roots
from twin.planning.scenario import Scenario, read_scenario, scenario_toml
from twin.planning.scenario_result import run_scenario
from twin.report.html import table
from twin.report.pdf import find_browser
from twin.report.scenario import report_html

ROOTS = catalogue_roots()
MISSION = read_scenario(ROOTS[-1] / "scenarios" / "reports" / "one-stream.toml")
QUICK = {"ks": [3, 5], "streams": [1, 4]}


@pytest.fixture(scope="module")
def page() -> str:
    return report_html(run_scenario(MISSION.model_copy(update=QUICK), ROOTS))


class Links(HTMLParser):
    """Collects what a browser would fetch or run, and how tags nest."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "data", "action") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(page: str) -> Links:
    links = Links()
    links.feed(page)
    assert links.open == []
    return links


def test_the_page_stands_alone_and_is_small(page: str) -> None:
    links = parsed(page)
    assert links.fetched == [] and links.scripts == 0
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert len(page.encode()) < 3_000_000


def test_the_page_has_question_answer_plots_sources_versions_and_seed(page: str) -> None:
    assert MISSION.question in page
    assert "times (" in page and "from tokens per step" in page
    for name in ("breakdown", "waterfall", "by-k", "by-streams", "pareto", "residuals", "union", "acceptance"):
        assert f'id="{name}-' in page, name
    for word in (
        "what nobody has measured yet",
        "assumed",
        "seed 0",
        "NumPy",
        "lane sha256",
        "twin explain",
        "Warning:",
    ):
        assert word in page, word
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_every_drawing_has_words_and_every_table_a_caption(page: str) -> None:
    assert page.count("<svg") == len(re.findall(r'<svg [^>]*role="img" aria-label="[^"]+', page)) == 8
    assert page.count("<table>") == page.count("<caption>")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_what_a_person_wrote_is_text() -> None:
    bad = "<script>alert(1)</script>"
    setting = MISSION.settings[0].model_copy(update={"label": bad})
    asked = Scenario(schema_version=1, title=bad, question=bad, notes=bad, receipts=False, settings=[setting], **QUICK)
    page = report_html(run_scenario(asked, ROOTS))
    assert parsed(page).scripts == 0
    assert "&lt;script&gt;alert(1)" in page


def test_one_setting_alone_is_answered_without_a_comparison() -> None:
    asked = MISSION.model_copy(update=QUICK | {"settings": list(MISSION.settings[:1]), "receipts": False})
    page = report_html(run_scenario(asked, ROOTS))
    assert "tok/s with 1 live stream" in page and 'id="waterfall-' not in page and 'id="residuals-' not in page


def test_a_table_cell_shows_its_interval_small() -> None:
    found = table("t", ["", "x"], [["row <1>", "12 (10 to 14)"], ["b", "plain (x"]])
    assert '12 <span class="range">(10 to 14)</span>' in found
    assert "row &lt;1&gt;" in found and "plain (x</td>" in found


def test_command_line_writes_the_page_and_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "ask.toml"
    asked = MISSION.model_copy(update={"ks": [5], "streams": [1], "receipts": False})
    file.write_text(scenario_toml(asked))
    target = tmp_path / "out.html"
    done = CliRunner().invoke(cli, ["report", str(file), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert target.read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(cli, ["report", str(file), "-o", str(target)])
    assert again.exit_code != 0 and "exists already" in str(again.exception)


@pytest.mark.skipif(find_browser() is None, reason="no browser to print with")
def test_a_browser_prints_it(tmp_path: Path) -> None:
    from twin.report.pdf import print_pdf

    target = tmp_path / "x.pdf"
    print_pdf("<!doctype html><title>x</title><p>hello", target)
    assert target.read_bytes().startswith(b"%PDF")


def test_without_a_browser_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twin.errors import TwinError
    from twin.report.pdf import print_pdf

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TwinError, match="needs a browser: none of chromium"):
        print_pdf("<p>x", tmp_path / "x.pdf")
