"""A lab without an engine process: every test has its own database and a fake engine client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import streamlit as st
from sqlalchemy import insert, select
from streamlit.testing.v1 import AppTest

from engine.lab.records import Run
from lessons.shown import LessonStore
from pages._ui import session
from pages._ui.engine_watch import ask_device, ask_state
from tests.pages.fake_client import FakeClient

MAIN = Path(__file__).resolve().parents[2] / "pages" / "_main.py"


@pytest.fixture
def store() -> LessonStore:
    return LessonStore("sqlite://")


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, store: LessonStore, client: FakeClient):
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


@dataclass(frozen=True)
class Studied:
    """What a study left behind: the rows of the learner's database, and the engine's Runs."""

    rows: dict[str, list[dict]]
    runs: dict[str, Run]


@pytest.fixture(scope="session")
def kept_studies() -> dict[str, Studied]:
    return {}


@pytest.fixture
def studied(lab, store: LessonStore, client: FakeClient, kept_studies: dict[str, Studied]) -> Callable[..., AppTest]:
    """``studied(page, lesson_id, value=7, **query)`` opens a page whose study the learner has done already.

    The first test plays it through the page (prediction, start, to the end); for later ones its records are put back.
    """
    from tests.pages.test_lessons import finish, predict, start

    def open_after_study(page: str, lesson_id: str, value: float = 7, **query: str) -> AppTest:
        if lesson_id not in kept_studies:
            at = finish(start(predict(lab(page, lang="en"), value), lesson_id), most=60)
            assert not at.exception and not at.error
            kept_studies[lesson_id] = Studied(_rows(store), dict(client.runs))
        else:
            _put_back(store, kept_studies[lesson_id].rows)
            client.runs |= kept_studies[lesson_id].runs
        return lab(page, **({"lang": "en"} | query))

    return open_after_study


def _rows(store: LessonStore) -> dict[str, list[dict]]:
    tables = store._db._metadata.sorted_tables
    return store._db.read(lambda c: {t.name: [dict(row) for row in c.execute(select(t)).mappings()] for t in tables})


def _put_back(store: LessonStore, rows: dict[str, list[dict]]) -> None:
    def work(connection) -> None:
        for table in store._db._metadata.sorted_tables:
            connection.execute(table.delete())
            if rows[table.name]:
                connection.execute(insert(table), rows[table.name])

    store._db.write(work)
