"""The load tests' learner without a browser, against a real Streamlit server: one page, one widget, one fragment."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.load.browserless import Learner

APP = """
import streamlit as st
st.session_state["turn"] = st.session_state.get("turn", 0) + 1
name = st.text_input("Name", key="name")
sid = st.context.cookies.get("token_by_token_sid")
st.markdown(f"turn {st.session_state['turn']} of {name or 'nobody'} with {sid}")

@st.fragment(run_every=0.5)
def grow():
    st.session_state["grown"] = st.session_state.get("grown", 0) + 1
    st.markdown(f"grown {st.session_state['grown']}")

grow()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("load_app")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"port": port, "address": "127.0.0.1", "headless": "true", "fileWatcherType": "none"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    command += [part for name, value in options.items() for part in (f"--server.{name}", str(value))]
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log.txt").read_text()
                time.sleep(0.25)
        yield f"ws://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def test_a_learner_opens_a_page_types_and_follows_a_fragment(url: str) -> None:
    async def visit() -> None:
        learner = Learner(url, "a-sid-of-a-load-test-01")
        first = await learner.open()
        assert first.well and first.num_bytes > 0 and first.seconds > 0
        assert "turn 1 of nobody with a-sid-of-a-load-test-01" in learner.texts
        await learner.rerun("name", string_value="Ada")
        assert "turn 2 of Ada with a-sid-of-a-load-test-01" in learner.texts
        ((fragment_id, every_s),) = learner.fragments.items()
        assert every_s == 0.5
        again = await learner.refresh(fragment_id)
        assert again.well and learner.texts == ["grown 3"]
        assert not learner.errors
        await learner.close()

    asyncio.run(visit())
