"""The board in a real browser: controls, values, address, errors, keyboard, phone width, accessibility.

Needs Chromium and its driver (Debian: chromium, chromium-driver) and selenium; skipped without them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("selenium")
pytest.importorskip("uvicorn")
pytest.importorskip("jinja2")

import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from twin.board.app import make_app
from twin.cli.main import cli
from twin.lane.catalogue import catalogue_roots

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="needs chromium and chromedriver")
HERE = Path(__file__).parent
ROOTS = catalogue_roots()
MISSION = "a=sidecar:k=5,traffic=codegen-padded&b=tp4:k=7,verification=block,traffic=codegen-padded"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(ROOTS, start="sidecar"), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = BROWSER or ""
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    downloads = str(tmp_path_factory.mktemp("downloads"))
    options.add_experimental_option("prefs", {"download.default_directory": downloads})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.downloads = Path(downloads)
    yield driver
    driver.quit()


class Board:
    """The page as a person uses it."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, query: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(f"{self.url}?{query}" if query else self.url)
        self.until(lambda: self.cards() or self.error())

    def until(self, condition: Any) -> Any:
        return WebDriverWait(self.driver, 10, 0.05).until(lambda _: condition())

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def cards(self) -> list[Any]:
        return self.all("#cards article")

    def values(self, side: str = "a") -> list[float]:
        """What a card shows, unrounded: tok/s a stream and in all, tokens per step, step, experts, cold, TTFT."""
        js = "return [...document.querySelectorAll(arguments[0])].map((node) => Number(node.dataset.value))"
        return self.driver.execute_script(js, f".card.{side} [data-value]")

    def error(self) -> str:
        node = self.find("#error")
        return node.text if node.is_displayed() else ""

    def set(self, selector: str, value: str) -> None:
        """Put a value into a control as its slider or keyboard would, and wait for the answer."""
        js = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.changing(lambda: self.driver.execute_script(js, self.find(selector), value))

    def changing(self, act: Any) -> None:
        """Do something and wait until the page shows another answer."""
        self.driver.execute_script("document.querySelector('#cards').firstChild?.setAttribute('data-old', '1')")
        act()
        self.until(lambda: self.error() or not self.all("#cards [data-old]"))

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def board(chrome: webdriver.Chrome, url: str) -> Iterator[Board]:
    page = Board(chrome, url)
    yield page
    assert page.console() == []  # nothing the browser had to complain about, in any test


def predicted(*arguments: str) -> list[float]:
    cell = json.loads(CliRunner().invoke(cli, ["predict", *arguments, "--json"]).output)["cells"][0]
    rates = ["tok_s_per_stream", "tok_s_aggregate", "tokens_per_step", "step_ms"]
    keys = [*rates, "unique_experts_per_layer", "cold_experts_per_layer", "ttft_ms"]
    return [cell[key]["mean"] for key in keys]


def test_it_opens_with_a_lane_as_it_is(board: Board) -> None:
    board.open()
    assert len(board.cards()) == 1
    assert board.values() == predicted("--lane", "sidecar")
    assert board.find("#a-k").get_attribute("value") == "5"


def test_moved_controls_show_what_twin_predict_says(board: Board) -> None:
    board.open()
    Select(board.find("#a-traffic")).select_by_value("codegen-padded")
    board.set("#a-k", "3")
    board.set("#a-concurrency", "4")
    hot = board.all("#side-a .box input[type=number]")[0]
    board.changing(lambda: hot.send_keys(Keys.CONTROL, "a", Keys.NULL, "310"))
    board.until(lambda: "placement.hot=310" in board.driver.current_url.replace("%3D", "="))
    arguments = (
        "--lane",
        "sidecar",
        "--traffic",
        "codegen-padded",
        "--k",
        "3",
        "-c",
        "4",
        "--set",
        "placement.hot=310",
    )
    board.until(lambda: board.values() == predicted(*arguments))


def test_every_slider_of_the_box_goes_to_its_ends_without_a_refusal(board: Board) -> None:
    board.open("a=sidecar:k=5,traffic=codegen-padded")
    count = len(board.all("#side-a .box input[type=range]"))
    for index in range(1, count + 1):
        for end in ("min", "max"):
            slider = board.find(f"#side-a .box .row:nth-of-type({index}) input[type=range]")
            board.set(f"#side-a .box .row:nth-of-type({index}) input[type=range]", slider.get_attribute(end))
            assert board.error() == "", (index, end, board.error())


def test_two_settings_are_compared_and_explained(board: Board) -> None:
    board.open(MISSION)
    assert len(board.cards()) == 2
    words = board.find("#sentences").text
    assert "from tokens per step" in words and "the sidecar hop" in words and "launches" in words
    assert len(board.all("#parts tbody tr")) == 11  # nine mechanisms between the two steps
    board.changing(lambda: board.find("#compare").click())
    assert len(board.cards()) == 1 and not board.find("#why").is_displayed()


def test_the_address_brings_the_same_page_back(board: Board) -> None:
    board.open()
    board.changing(lambda: board.find("#compare").click())
    board.set("#a-k", "4")
    board.set("#b-concurrency", "8")
    board.set("#side-b .box .row:nth-of-type(2) input[type=number]", "7.5")
    before, address = (board.values("a"), board.values("b")), board.driver.current_url
    board.open(address.partition("?")[2])
    assert (board.values("a"), board.values("b")) == before
    assert board.find("#a-k").get_attribute("value") == "4"
    assert board.find("#b-concurrency").get_attribute("value") == "8"
    assert board.find("#compare").is_selected()
    assert "links.sidecar.latency=7.5 us" in board.find("#b-more").get_attribute("value")


def test_bad_input_is_a_message_and_the_next_good_one_takes_it_away(board: Board) -> None:
    board.open()
    board.set("#a-k", "70")
    assert "0 (plain decoding) to 64" in board.error()
    assert board.find("#error").get_attribute("role") == "alert"
    board.set("#a-k", "5")
    board.until(lambda: board.error() == "")


def test_an_address_that_is_no_setting_is_said_and_the_page_still_works(board: Board) -> None:
    board.open("a=sidecr:k=5")
    assert "did you mean 'sidecar" in board.until(board.error)
    board.set("#a-k", "3")
    board.until(lambda: board.error() == "" and board.values() == predicted("--lane", "sidecar", "--k", "3"))


def test_another_lane_brings_its_own_controls(board: Board) -> None:
    board.open()
    board.changing(lambda: Select(board.find("#a-lane")).select_by_value("tp4"))
    labels = [node.text for node in board.all("#side-a .box label")]
    assert "all-reduce latency" in labels and "sidecar round trip" not in labels
    assert board.values() == predicted("--lane", "tp4", "--traffic", "mixed")
    assert board.driver.switch_to.active_element.get_attribute("id") == "a-lane"


def test_export_gives_a_command_and_a_file_that_work(board: Board, tmp_path: Path) -> None:
    board.open("a=sidecar:k=5,traffic=codegen-padded,links.sidecar.latency=8 us")
    board.find("#export-open").click()
    command = board.until(lambda: board.find("#command").text)
    words = shlex.split(command)
    assert words[:2] == ["twin", "predict"]
    assert board.values() == predicted(*words[2:])
    board.find("#download").click()
    file = board.driver.downloads / "scenario.toml"
    board.until(file.exists)
    from twin.planning.scenario import read_scenario

    assert read_scenario(file).settings[0].overrides == ["links.sidecar.latency=8 us"]
    file.unlink()


def test_receipts_are_loaded_and_compared(board: Board, tmp_path: Path) -> None:
    board.open()
    board.find("#receipts").send_keys(str(ROOTS[-1] / "calibration" / "receipts" / "mission.csv"))
    board.until(lambda: "within their 90 % interval" in board.find("#receipts-said").text)
    assert len(board.all("#residuals tbody tr")) > 10
    broken = tmp_path / "broken.csv"
    broken.write_text("id,lan\n1,2\n")
    board.find("#receipts").send_keys(str(broken))
    board.until(lambda: "unknown column 'lan'" in board.find("#receipts-said").text)
    assert not board.find("#residuals-scroll").is_displayed()


def test_the_curve_follows_and_its_numbers_are_there(board: Board) -> None:
    board.open(MISSION)
    board.until(lambda: board.all("#curve svg polyline"))
    assert len(board.all("#curve svg polyline")) == 2
    assert "is best at k = " in board.find("#curve svg").get_attribute("aria-label")
    rows = board.driver.execute_script("return document.querySelectorAll('#curve-table tbody tr').length")
    assert rows == 13


def test_the_keyboard_alone_is_enough(board: Board) -> None:
    board.open()
    board.find("body").send_keys(Keys.TAB)
    active = board.driver.switch_to.active_element
    assert active.text == "Skip to the results"
    slider = board.find("#side-a input[type=range][data-key=k]")
    board.driver.execute_script("arguments[0].focus()", slider)
    board.changing(lambda: slider.send_keys(Keys.ARROW_RIGHT))
    assert board.find("#a-k").get_attribute("value") == "6"
    board.until(lambda: board.values() == predicted("--lane", "sidecar", "--k", "6"))
    compare = board.find("#compare")
    board.driver.execute_script("arguments[0].focus()", compare)
    board.changing(lambda: compare.send_keys(Keys.SPACE))
    assert len(board.cards()) == 2


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_it_fits_the_width_of_a_phone_and_more(board: Board, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    board.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        board.open(MISSION)
        board.until(lambda: board.all("#curve svg"))
        assert board.driver.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        board.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_an_accessibility_scan_finds_nothing(board: Board, scheme: str, width: int) -> None:
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    board.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    board.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        board.open(MISSION)
        board.find("#export-open").click()
        board.until(lambda: board.find("#command").text)
        board.find("#receipts").send_keys(str(ROOTS[-1] / "calibration" / "receipts" / "mission.csv"))
        board.until(lambda: board.all("#residuals tbody tr") and board.all("#curve svg"))
        time.sleep(0.3)  # bars glide to their place; colours are read when they stand
        assert violations(board.driver) == []
    finally:
        board.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        board.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def violations(driver: webdriver.Chrome) -> list[tuple[str, list[str]]]:
    """What axe-core says of the page as it stands. It is no part of the page: it comes in past the page's own policy."""
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    try:
        driver.execute_script((HERE / "axe.min.js").read_text(encoding="utf-8"))
        found = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        return [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found["violations"]]
    finally:
        driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_passes_the_same_scan_and_fetches_nothing(
    scheme: str, chrome: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("matplotlib")
    from twin.planning.scenario import find_scenario, read_scenario
    from twin.planning.scenario_result import run_scenario
    from twin.report.scenario import report_html

    asked = read_scenario(find_scenario("one-stream", ROOTS)).model_copy(update={"ks": [3, 5], "streams": [1, 4]})
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_html(run_scenario(asked, ROOTS)), encoding="utf-8")
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    try:
        chrome.get(file.as_uri())
        fetched = chrome.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert fetched == [] and chrome.get_log("browser") == []
        # The page's own policy stands against the scan too: open it once more with the policy off.
        chrome.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
        chrome.get(file.as_uri())
        assert violations(chrome) == []
    finally:
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
