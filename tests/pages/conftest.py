"""A lab without an engine process: every test has its own database and a fake engine client."""

from __future__ import annotations

from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from lessons.store import Store
from pages._ui import session
from pages._ui.engine_watch import ask_device, ask_state
from tests.pages.fake_client import FakeClient

MAIN = Path(__file__).resolve().parents[2] / "pages" / "_main.py"


@pytest.fixture
def store() -> Store:
    return Store("sqlite://")


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, store: Store, client: FakeClient):
    """``lab(lang=..., **query)`` opens the lab as a new browser that has the same learner's cookie."""
    monkeypatch.setattr(session, "store", lambda: store)
    monkeypatch.setattr(session, "client", lambda: client)
    monkeypatch.setattr(session, "new_sid", lambda: "testlearner-testlearner")
    monkeypatch.setattr(session, "look_at_engine", lambda: ask_state(client))
    monkeypatch.setattr(session, "device", lambda: ask_device(client) if ask_state(client).ready else None)

    def open_lab(page: str | None = None, **query: str) -> AppTest:
        st.cache_data.clear()
        at = AppTest.from_file(str(MAIN), default_timeout=60)
        for key, value in query.items():
            at.query_params[key] = value
        at.run()
        if page is not None:
            at.switch_page(page).run()
        return at

    return open_lab
