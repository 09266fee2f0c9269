"""The timeline player on a long Run in Chromium: 5 000 steps, 64 requests. Frames a second, and bytes sent.

    python -m tests.load.player

The page is a small Streamlit app with nothing but the player. Frames are those the browser gives while the timeline
plays (``requestAnimationFrame``), over some seconds; bytes are those of the websocket. Under a minute in all.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

from playwright import sync_api

from tests.e2e.conftest import FLAGS
from tests.unit.player_runs import long_run

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS, NUM_REQUESTS, NUM_RUNNING, NUM_TOKENS = 5_000, 64, 8, 615
PLAY_S = 6.0
FRAMES_TARGET, BYTES_TARGET = 50.0, 300_000
APP = f"""
import streamlit as st
from pages._ui.player import timeline_player
from tests.unit.player_runs import long_run

@st.cache_resource
def run():
    return long_run({NUM_STEPS}, {NUM_REQUESTS}, {NUM_RUNNING}, {NUM_TOKENS})

st.set_page_config(layout="wide")
if st.button("show"):
    timeline_player([("long", run())], lang="en", key="p", autoplay=False)
"""
FRAMES = """seconds => new Promise(done => {
    const stamps = [];
    const tick = now => {
        stamps.push(now);
        if (now - stamps[0] < seconds * 1000) requestAnimationFrame(tick); else done(stamps);
    };
    requestAnimationFrame(tick);
})"""


def measure(url: str) -> tuple[int, list[float], list[float]]:
    """(bytes the websocket brought for the player, frame times in ms while still, and while playing)."""
    with sync_api.sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        received: list[int] = []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda frame: received.append(len(frame))))
        page.goto(url)
        page.get_by_role("button", name="show").wait_for()
        time.sleep(1.0)
        before = sum(received)
        page.get_by_role("button", name="show").click()
        page.locator(".player .canvas").first.wait_for(timeout=60_000)
        time.sleep(1.5)
        num_bytes = sum(received) - before
        still = page.evaluate(FRAMES, 2.0)
        page.locator(".player .root").focus()
        page.keyboard.press("Space")
        playing = page.evaluate(FRAMES, PLAY_S)
        browser.close()
    return num_bytes, _gaps_ms(still), _gaps_ms(playing)


def _gaps_ms(stamps: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(stamps)]


def main() -> int:
    run = long_run(NUM_STEPS, NUM_REQUESTS, NUM_RUNNING, NUM_TOKENS)
    print(f"{len(run.steps)} steps, {len(run.requests)} requests", flush=True)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (Path(folder) / "app.py").write_text(APP, encoding="utf-8")
        shutil.copytree(ROOT / ".streamlit", Path(folder) / ".streamlit")
        command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
        server = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            num_bytes, still, playing = measure(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait(10)
    frames = 1000 / statistics.fmean(playing)
    slowest = sorted(playing)[int(0.95 * len(playing))]
    print(f"still: {1000 / statistics.fmean(still):.0f} frames/s")
    print(f"playing: {frames:.1f} frames/s over {PLAY_S:g} s, 95 % of frames within {slowest:.0f} ms, target "
          f"{FRAMES_TARGET:g}: {'met' if frames >= FRAMES_TARGET else 'MISSED'}")  # fmt: skip
    print(f"sent: {num_bytes / 1e3:.0f} KB, target {BYTES_TARGET / 1e3:.0f}: "
          f"{'met' if num_bytes <= BYTES_TARGET else 'MISSED'}")  # fmt: skip
    return 0 if frames >= FRAMES_TARGET and num_bytes <= BYTES_TARGET else 1


def _wait(url: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError("the page did not start")


if __name__ == "__main__":
    sys.exit(main())
