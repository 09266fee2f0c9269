"""Every page opens in both languages, with the engine ready, starting, failed and gone, and shows no traceback."""

from __future__ import annotations

import re

import pytest
from streamlit.testing.v1 import AppTest

from pages._ui.i18n import translate
from tests.pages.conftest import MAIN
from tests.pages.fake_client import FakeClient

PAGES = sorted(path.name for path in MAIN.parent.glob("p_*.py"))
CJK = re.compile(r"[\u4e00-\u9fff]")


def all_text(at: AppTest) -> str:
    kinds = (at.title, at.header, at.subheader, at.markdown, at.caption, at.info, at.warning, at.error, at.success)
    return "\n".join(element.value for kind in kinds for element in kind)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_in_its_language(lab, page: str, lang: str) -> None:
    at = lab(page, lang=lang)
    assert not at.exception
    assert at.title[0].value
    assert bool(CJK.search(all_text(at))) == (lang == "zh")


@pytest.mark.parametrize("page", PAGES)
def test_the_lab_works_while_the_engine_is_gone(lab, client: FakeClient, page: str) -> None:
    client.down = True
    at = lab(page, lang="en")
    assert not at.exception
    assert translate("en", "common.engine_down") in all_text(at)
    assert at.title[0].value


@pytest.mark.parametrize("state", ["starting", "loading", "failed"])
def test_a_lesson_can_be_read_while_the_engine_is_not_ready(lab, client: FakeClient, state: str) -> None:
    client.state = state
    at = lab("p_prefill_decode.py", lang="en")
    assert not at.exception
    assert translate("en", f"common.engine_{state}") in all_text(at)
    assert at.button(key="run_prefill_decode").disabled
    if state == "failed":
        assert "no file" in at.error[0].value


def test_the_button_comes_alive_when_the_engine_is_ready(lab, client: FakeClient, store) -> None:
    client.state = "loading"
    at = lab("p_prefill_decode.py", lang="en")
    for field in at.number_input:
        field.set_value(5.0)
    next(b for b in at.button if b.label == translate("en", "predict.commit")).click().run()
    assert at.button(key="run_prefill_decode").disabled
    client.state = "ready"
    at.run()
    assert not at.button(key="run_prefill_decode").disabled


def test_home_shows_the_course_and_the_machine(lab) -> None:
    at = lab(lang="en")
    shown = all_text(at)
    assert "Prefill and decode" in shown
    assert "Static and continuous batching" in shown
    assert "test bench" in shown
    assert "20 GB/s" in shown
    assert at.get("plotly_chart") == []


def test_home_continues_where_the_learner_left_off(lab, store) -> None:
    assert "Begin" in lab(lang="en").button(key="continue").label
    store.save_prediction("testlearner-testlearner", "batching", "times_sooner", 2.0)
    label = lab(lang="en").button(key="continue").label
    assert "Continue" in label
    assert "batching" in label


def test_my_data_is_deleted_only_when_i_say_so_twice(lab, store) -> None:
    store.save_prediction("testlearner-testlearner", "batching", "times_sooner", 2.0)
    at = lab(lang="en")
    assert at.button(key="delete_data").disabled
    at.checkbox(key="delete_sure").check().run()
    at.button(key="delete_data").click().run()
    assert not at.exception
    assert store.predictions("testlearner-testlearner", "batching") == []


def test_a_notice_of_the_database_is_shown(lab, monkeypatch: pytest.MonkeyPatch, store) -> None:
    monkeypatch.setattr(type(store), "notice_in", lambda self, lang: "The file was set aside.")
    assert "set aside" in lab(lang="en").warning[0].value


@pytest.mark.parametrize(("page", "after"), [("p_batching.py", "paged-attention"), ("p_summary.py", "playground")])
def test_a_lesson_ends_with_the_way_to_the_next_page(lab, page: str, after: str) -> None:
    last = lab(page, lang="zh").main.get("page_link")[-1].proto
    assert last.page == after
    assert last.query_string == "lang=zh"
    assert last.label.startswith("接下来")
