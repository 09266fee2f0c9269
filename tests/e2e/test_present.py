"""The projector view in a real browser, with no engine at all: sections by key, by button and from the notes window."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pages._ui.i18n import translate
from tests.e2e.conftest import ROOT, settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pages_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The pages with an engine address at which nobody answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = {"TOKEN_BY_TOKEN_HOME": str(tmp_path_factory.mktemp("home"))}
    environment = os.environ | home | {"TOKEN_BY_TOKEN_ENGINE_URL": "http://127.0.0.1:9"}
    environment.pop("DATABASE_URL", None)
    options = ["--server.headless=true", "--server.address=127.0.0.1", f"--server.port={port}"]
    command = [sys.executable, "-m", "streamlit", "run", str(Path("pages") / "_main.py"), *options]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(f"{url}/_stcore/health", timeout=5, trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                assert server.poll() is None, "the pages ended"
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def drawn(page) -> None:
    """The page's script has run to its end. Its title may be out of sight."""
    page.wait_for_selector('[data-testid=stApp][data-test-script-state="notRunning"]')


def place(page) -> str:
    return page.locator(".st-key-present_bar .place").inner_text()


def shown(page) -> list[str]:
    """The headings that can be seen."""
    return [heading.inner_text() for heading in page.locator("h1:visible, h2:visible").all()]


def test_a_lesson_is_shown_section_by_section(pages_alone: str, chromium) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 720}, locale="en-GB")
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{pages_alone}/prefill-decode?lang=en&present=1")
    settled(page)
    page.get_by_text("1 / 7", exact=True).wait_for()
    assert shown(page) == ["Prefill and decode"]
    assert not page.locator("[data-testid=stSidebar]").is_visible()
    assert page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)") >= 22  # 720 / 32

    page.keyboard.press("ArrowRight")
    page.get_by_text("2 / 7", exact=True).wait_for()
    assert shown(page) == ["1 · Predict"]
    field = page.locator(".st-key-hands_token_ratio input")
    field.fill("12")
    field.press("ArrowRight")  # inside a field the key belongs to the field
    assert place(page) == "2 / 7"
    field.press("Tab")
    drawn(page)
    page.get_by_role("button", name=translate("en", "present.next")).click()
    page.get_by_role("button", name=translate("en", "recorded.show")).click()
    page.get_by_text("recorded on", exact=False).first.wait_for()
    drawn(page)
    page.get_by_text("3 / 7", exact=True).wait_for()  # the page was drawn anew, the place is kept

    with context.expect_page() as opened:
        page.get_by_role("button", name=translate("en", "present.notes")).click()
    notes = opened.value
    notes.locator(".st-key-note_step_run[data-present-now]").wait_for()
    notes.get_by_role("button", name=translate("en", "present.next")).click()
    page.get_by_text("4 / 7", exact=True).wait_for()
    notes.locator(".st-key-note_step_look[data-present-now]").wait_for()
    assert shown(page) == ["3 · Look"]
    assert page.locator("[data-testid=stPlotlyChart]").first.bounding_box()["width"] > 800
    assert "The room said 12" in page.locator(".st-key-outcome_prefill_decode").inner_text()
    page.bring_to_front()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("3 / 7", exact=True).wait_for()
    page.get_by_role("button", name=translate("en", "present.leave")).click()
    page.locator("[data-testid=stSidebar]").wait_for()
    assert "present" not in page.url
    context.close()
