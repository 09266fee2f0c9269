"""The timeline player in a real browser: a tiny page with one, two or a growing Run, driven as a learner would."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

APP = """
import streamlit as st
from pages._ui.player import partial_run, timeline_player
from engine.lab.scenario import Scenario
from tests.unit.player_runs import eventful_run, long_run, make_run

st.set_page_config(layout="wide")
query = st.query_params
kind, lang = query.get("kind", "one"), query.get("lang", "en")
st.session_state["reruns"] = st.session_state.get("reruns", 0) + 1
st.markdown(f"reruns={st.session_state['reruns']}")
st.text_input("A field to type in", key="field")
auto = query.get("auto") == "1"
if kind == "one":
    pieces = {"A": ["Hel", "lo ", "<b>wor", "ld</b>"]}
    timeline_player([("static", eventful_run())], lang=lang, key="p", autoplay=auto, texts=[pieces])
elif kind == "two":
    run = eventful_run("run-000000000002")
    short = make_run(run.steps[:9], run.requests[:3], "run-000000000003")
    timeline_player([("static", run), ("chunked", short)], lang=lang, key="p", autoplay=auto)
elif kind == "long":
    timeline_player([("long", long_run(900, 64, 8))], lang=lang, key="p", autoplay=auto)
else:
    full = long_run(600, 8, 4)
    spec = [{"prompt": "x", "request_id": f"r{i}"} for i in range(8)]
    scenario = Scenario.parse({"requests": spec, "limits": {"max_requests": 4, "num_blocks": 64}})

    @st.fragment(run_every=0.3)
    def growing():
        n = st.session_state["n"] = st.session_state.get("n", 0) + 5
        done = n >= 60
        run = full if done else partial_run(scenario, full.steps[:n], full.run_id)
        timeline_player([("now", run)], lang=lang, key="p", live=not done)

    growing()
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("player_app")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    if (ROOT / ".streamlit" / "config.toml").exists():
        shutil.copytree(ROOT / ".streamlit", folder / ".streamlit")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port),
               "--server.address", "127.0.0.1", "--server.headless", "true"]  # fmt: skip
    log = (folder / "log.txt").open("w")
    server = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log.txt").read_text()
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(10)
        log.close()


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=path, args=FLAGS)
        except sync_api.Error as error:
            if os.environ.get("CI"):  # the browser tests must really have run there
                pytest.fail(f"no Chromium here, and CI needs it: {error}")
            pytest.skip(f"no Chromium here: {error}")
        yield found
        found.close()


class Page:
    """A page with the player open, and the few things the tests ask of it."""

    def __init__(self, browser, address, query, **options):
        options = {"viewport": {"width": 1280, "height": 1400}, "locale": "en-GB"} | options
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{address}/?{query}")
        self.page.locator(".player .canvas").first.wait_for(timeout=60_000)
        self.root = self.page.locator(".player .root")

    def now(self) -> float:
        text = self.page.locator(".player .readout").inner_text()
        return float(re.match(r"[\d,.]+", text).group().replace(",", ""))

    def press(self, *keys: str) -> None:
        self.root.focus()
        for key in keys:
            self.page.keyboard.press(key)

    def said(self, i: int = 0) -> str:
        return self.page.locator(".player .panel").nth(i).inner_text()

    def inks(self, i: int = 0) -> dict[str, int]:
        """How many pixels of the i-th picture have each colour that carries meaning; pale: green ones drawn faintly."""
        script = """canvas => {
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const wanted = {blue: [0, 114, 178], orange: [230, 159, 0], grey: [107, 107, 107], red: [213, 94, 0],
                          green: [0, 122, 89]};
          const counts = {pale: 0};
          for (const [name, [r, g, b]] of Object.entries(wanted)) {
            counts[name] = 0;
            for (let i = 0; i < data.length; i += 4)
              if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12) {
                counts[name] += 1;
                if (name === 'green' && Math.abs(data[i + 3] - 0.3 * 255) < 4) counts.pale += 1;
              }
          }
          return counts;
        }"""
        return self.page.locator(".player .canvas").nth(i).evaluate(script)

    def close(self) -> None:
        self.context.close()
        assert self.errors == []


@pytest.fixture
def open_page(browser, address):
    opened: list[Page] = []

    def open_it(query: str = "", **options) -> Page:
        opened.append(Page(browser, address, query, **options))
        return opened[-1]

    yield open_it
    for page in opened:
        page.close()


def wait_for(condition, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_plays_and_pauses_in_the_browser_without_rerunning_the_page(open_page):
    page = open_page("kind=one")
    assert page.now() == 170, "the whole picture is there on arrival"
    page.page.get_by_role("button", name="Play").click()
    wait_for(lambda: 3 < page.now() < 160)
    page.page.get_by_role("button", name="Pause").click()
    held = page.now()
    page.page.wait_for_timeout(300)
    assert page.now() == held
    page.press(" ")
    wait_for(lambda: page.now() > held)
    page.press(" ")
    assert page.page.get_by_text("reruns=1", exact=True).is_visible()


def test_the_picture_has_every_mark(open_page):
    page = open_page("kind=one")
    inks = page.inks()
    pale = inks.pop("pale")
    assert min(inks.values()) > 15, inks
    assert inks["blue"] > 1_000 and inks["orange"] > 2_000
    page.press("Home")
    faint = page.inks()["pale"]
    assert 4 * pale < faint, "check marks are pale before their time, and none is at the end"


def test_steps_by_keyboard_and_says_what_happens(open_page):
    page = open_page("kind=one")
    page.press("Home")
    assert "Step 0 (0–10)" in page.said() and "A reads 8 tokens (0 to 7)" in page.said()
    page.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert page.now() == 30
    said = page.said()
    assert "Preempted: B gives back its blocks." in said
    assert "Waiting: B and C, because no KV block is free." in said
    assert "KV blocks after it: 2 of 64 in use (−1), 2 more cached." in said
    page.press("ArrowLeft")
    assert page.now() == 20
    wait_for(lambda: "Step 2 (0–10)" in page.page.locator(".player .announce").inner_text())
    page.press("End")
    assert page.now() == 170 and "Ended at 170 ms" in page.said()
    page.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert page.now() == 90 and "the next request arrives at 150" in page.said()


def test_speed_keys_change_the_speed_and_are_announced(open_page):
    page = open_page("kind=one")
    speed = page.page.get_by_role("combobox", name="Speed")
    assert speed.input_value() == "0.01", "170 ms last about 15 s by default"
    page.press("+", "+")
    assert speed.input_value() == "0.05"
    page.press("-")
    assert speed.input_value() == "0.02"
    assert "0.02" in page.page.locator(".player .announce").inner_text()


def test_keys_typed_elsewhere_are_left_alone(open_page):
    page = open_page("kind=one")
    field = page.page.get_by_label("A field to type in")
    field.click()
    page.page.keyboard.type(" a+-")
    page.page.keyboard.press("ArrowLeft")
    page.page.keyboard.press("Home")
    assert field.input_value() == " a+-"
    assert page.now() == 170 and page.page.get_by_role("button", name="Play").is_visible()


def test_arrow_keys_inside_the_speed_list_stay_with_the_list(open_page):
    page = open_page("kind=one")
    page.page.get_by_role("combobox", name="Speed").focus()
    page.page.keyboard.press("ArrowDown")
    assert page.now() == 170
    assert page.page.get_by_role("combobox", name="Speed").input_value() == "0.02"


def test_scrubs_by_slider_and_on_the_picture(open_page):
    page = open_page("kind=one")
    page.page.get_by_role("slider", name="Position in time").fill("45")
    assert page.now() == 45 and "Step 4 (0–10)" in page.said()
    box = page.page.locator(".player .canvas").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.page.mouse.down()
    first = page.now()
    page.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=4)
    page.page.mouse.up()
    assert 0 < first < page.now() < 170
    page.press("ArrowRight")
    assert page.now() > first, "the player has the focus after a click on the picture"


def test_autoplay_starts_once_and_survives_a_rerun(open_page):
    page = open_page("kind=one&auto=1")
    wait_for(lambda: 3 < page.now() < 160)
    page.press(" ")
    held = page.now()
    field = page.page.get_by_label("A field to type in")
    field.fill("x")
    field.press("Enter")
    page.page.get_by_text("reruns=2", exact=True).wait_for()
    page.page.wait_for_timeout(300)
    assert page.now() == held


def test_reduced_motion_means_no_autoplay_and_jumps_from_step_to_step(open_page):
    page = open_page("kind=one&auto=1", reduced_motion="reduce")
    page.page.wait_for_timeout(500)
    assert page.now() == 170
    page.press(" ")
    seen = set()
    wait_for(lambda: seen.add(page.now()) or len(seen) >= 4)
    page.press(" ")
    assert seen <= {0, 10, 20, 30, 40, 50}


def test_two_runs_share_one_clock_and_the_difference_is_said(open_page):
    page = open_page("kind=two")
    assert page.page.get_by_text("chunked ends 80 ms before static: 1.89× as fast.").is_visible()
    page.press("Home", "ArrowRight", "ArrowRight")
    assert "Step 2 (0–10)" in page.said(0) and "Step 2 (0–8)" in page.said(1)
    page.press("End")
    assert "Ended at 170 ms" in page.said(0) and "Ended at 90 ms" in page.said(1)


def test_zoom_shows_the_ticks_that_lay_too_close(open_page):
    page = open_page("kind=long")
    note = page.page.get_by_text("Some ticks lie too close together")
    assert note.is_visible()
    page.press("Home")
    for _ in range(3):
        page.page.get_by_role("button", name="Zoom in").click()
    assert not note.is_visible()
    page.press("End")
    assert "Ended" in page.said()


def test_live_run_grows_under_a_held_playhead_and_can_be_followed_again(open_page):
    page = open_page("kind=live")
    status = page.page.locator(".player .status")
    first = page.now()
    wait_for(lambda: page.now() > first)
    assert "following" in status.inner_text()
    assert page.said().startswith("Step "), "a Run still being made has not ended"
    page.press("Home", "ArrowRight")
    held = page.now()
    total = page.page.locator(".player .readout").inner_text()
    wait_for(lambda: page.page.locator(".player .readout").inner_text() != total)
    assert page.now() == held
    page.press("End")
    wait_for(lambda: page.now() > held)
    wait_for(lambda: page.page.get_by_text("The same as a table and in words").is_visible(), 30)
    assert "Ended" in page.said()


def test_text_so_far_is_text_and_follows_the_playhead(open_page):
    page = open_page("kind=one")
    page.page.get_by_text("Text so far").click()
    page.page.get_by_text("Hello <b>world</b>").wait_for()
    page.press("Home", "ArrowRight", "ArrowRight", "ArrowRight")
    assert page.page.locator(".player .made dd").first.inner_text().strip() == "Hello"


def test_table_and_summary_open_without_moving_the_playhead(open_page):
    page = open_page("kind=one")
    page.press("Home", "ArrowRight", "ArrowRight")
    page.page.get_by_text("The same as a table and in words").click()
    page.page.get_by_text("waited 30 ms in all").wait_for()
    page.page.get_by_test_id("stDataFrame").wait_for()
    assert page.now() == 20


def test_speaks_chinese(open_page):
    page = open_page("kind=two&lang=zh")
    page.press("Home", "ArrowRight", "ArrowRight", "ArrowRight")
    assert "等待：B 和 C，因为没有空闲的 KV 块。" in page.said()
    assert page.page.get_by_role("button", name="播放").is_visible()
    assert page.page.get_by_text("chunked 比 static 早 80 ms 结束").is_visible()


def test_fits_a_phone_and_scrubs_by_touch(open_page):
    page = open_page("kind=two", viewport={"width": 390, "height": 844}, has_touch=True, device_scale_factor=2)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    for button in page.page.locator(".player button").all():
        box = button.bounding_box()
        assert box["width"] >= 44 and box["height"] >= 44
    box = page.page.locator(".player .canvas").first.bounding_box()
    assert box["x"] + box["width"] <= 390
    page.page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 30)
    assert 0 < page.now() < 170


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_has_no_serious_accessibility_violation(open_page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page("kind=two", color_scheme=scheme)
    page.press("ArrowLeft", "ArrowLeft")
    response = axe.Axe().run(page.page, context=".st-key-p").response
    assert {"button-name", "select-name", "color-contrast"} <= {p["id"] for p in response["passes"]}, "it looked inside"
    found = response["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == [], found
