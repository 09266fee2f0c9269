"""The whole lab as a user starts it: ``python app.py`` with its real engine, and Debian's Chromium in front of it.

The lab gets a home of its own, so a test never touches a user's records; a model that is converted already is lent to
it. Fixtures are per module: two Playwright drivers cannot live in one thread.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.lent_home import lend_home

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
START_S = 420  # a first start converts the model


@dataclass
class Lab:
    """A running lab. ``engine`` is its engine process now; it is another one after a restart."""

    url: str
    process: subprocess.Popen

    def engine(self) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "serve" in child.cmdline():
                return child
        raise AssertionError("the lab has no engine process")

    def wait_open(self, timeout_s: float = 60) -> None:
        """The pages answer; the engine may still be starting."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the lab ended"
            try:
                httpx.get(f"{self.url}/healthz", timeout=5, trust_env=False).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError(f"the pages do not answer after {timeout_s:.0f} s")

    def wait_ready(self, timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        answer = ""
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the lab ended"
            try:
                response = httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False)
                if response.status_code == 200:
                    return
                answer = response.text
            except httpx.HTTPError as error:
                answer = repr(error)
            time.sleep(0.3)
        raise AssertionError(f"the engine is not ready after {timeout_s:.0f} s: {answer}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = lend_home(tmp_path_factory.mktemp("lab_home"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "TOKEN_BY_TOKEN_ENGINE_URL")}
    environment |= {"TOKEN_BY_TOKEN_HOME": str(home), "TOKEN_BY_TOKEN_ENGINE_PORT": str(port + 1)}
    with (home / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "app.py", "--port", str(port)], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        started = Lab(f"http://127.0.0.1:{port}", process)
        try:
            started.wait_open()
            yield started
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def chromium():
    from playwright import sync_api

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        except sync_api.Error as error:
            if os.environ.get("CI"):  # the browser tests must really have run there
                pytest.fail(f"no Chromium here, and CI needs it: {error}")
            pytest.skip(f"no Chromium here: {error}")
        yield browser
        browser.close()


@pytest.fixture
def visit(lab: Lab, chromium):
    """``visit(path)`` opens a page in a fresh browser, ``visit(path, context)`` in one that was here before."""
    contexts = []

    def open_page(path: str, context=None, **options):
        if context is None:
            options = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB"} | options
            context = chromium.new_context(**options)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(lab.url + path)
        settled(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


def settled(page) -> None:
    """Wait until the page's script has run to its end and the browser has drawn it: some widgets are loaded late."""
    page.wait_for_selector("h1", state="visible")
    page.wait_for_selector('[data-testid=stApp][data-test-script-state="notRunning"]')
    page.wait_for_function(
        """() => {
            const now = document.querySelector('[data-testid=stMain]').querySelectorAll('*').length;
            const before = window.__drawn || {count: -1, since: 0};
            if (before.count !== now) window.__drawn = {count: now, since: performance.now()};
            const loading = document.querySelector('[data-testid=stSkeleton]') !== null;  // code on its way
            return !loading && before.count === now && performance.now() - before.since > 800;
        }""",
        polling=100,
    )
