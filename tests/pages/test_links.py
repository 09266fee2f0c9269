"""Settings travel in the link, nonsense falls back with a sentence, the language follows its order of precedence."""

from __future__ import annotations

import pytest

from pages._ui.i18n import translate
from tests.pages.test_smoke import all_text


def first(value: str | list[str]) -> str:
    """A query parameter as a page reads it."""
    return value[0] if isinstance(value, list) else value


def test_a_link_restores_language_and_settings(lab) -> None:
    at = lab("p_prefill_decode.py", lang="zh", pd_length="128", pd_output="20", pd_prompt="What is a token?")
    assert at.select_slider(key="pd_length").value == 128
    assert at.slider(key="pd_output").value == 20
    assert at.text_area(key="pd_prompt").value == "What is a token?"
    assert at.title[0].value == "预填充与解码"


def test_settings_are_written_into_the_link_as_ids(lab) -> None:
    at = lab("p_batching.py", lang="en")
    at.segmented_control(key="bt_workload").set_value("one_long").run()
    assert first(at.query_params["bt_workload"]) == "one_long"
    assert first(at.query_params["lang"]) == "en"


def test_a_default_leaves_the_link_clean(lab) -> None:
    at = lab("p_prefill_decode.py", lang="en", pd_output="20")
    at.slider(key="pd_output").set_value(64).run()
    assert "pd_output" not in at.query_params


@pytest.mark.parametrize(
    ("page", "key", "value", "expected"),
    [
        ("p_prefill_decode.py", "pd_output", "999999", 64),
        ("p_prefill_decode.py", "pd_output", "-5", 64),
        ("p_prefill_decode.py", "pd_output", "١٢", 64),
        ("p_prefill_decode.py", "pd_length", "17", 0),
        ("p_batching.py", "bt_workload", "<script>alert(1)</script>", "abcd"),
        ("p_scheduling_ladder.py", "sl_rung", "foo", "orca"),  # its field comes only after a run
    ],
)
def test_nonsense_in_a_link_is_said_and_not_used(lab, page: str, key: str, value: str, expected: object) -> None:
    at = lab(page, lang="en", **{key: value})
    assert not at.exception
    assert at.session_state[key] == expected
    notices = [w.value for w in at.warning if key in w.value]
    assert len(notices) == 1
    assert "<" not in notices[0]
    assert key not in at.query_params


def test_a_notice_goes_when_the_setting_is_changed(lab) -> None:
    at = lab("p_prefill_decode.py", lang="en", pd_output="abc")
    assert at.warning
    at.slider(key="pd_output").set_value(30).run()
    assert not at.warning


def test_settings_come_back_after_another_page(lab) -> None:
    at = lab("p_prefill_decode.py", lang="en")
    at.slider(key="pd_output").set_value(30).run()
    at.switch_page("p_home.py").run()
    at.switch_page("p_prefill_decode.py").run()
    assert at.slider(key="pd_output").value == 30


@pytest.mark.parametrize(
    ("prompt", "key"),
    [("   ", "prefill_decode.empty"), ("x" * 100_000, "prefill_decode.too_long")],
)
def test_a_bad_prompt_is_one_sentence_and_stays_out_of_the_link(lab, prompt: str, key: str) -> None:
    at = lab("p_prefill_decode.py", lang="en")
    at.text_area(key="pd_prompt").set_value(prompt).run()
    assert not at.exception
    assert at.button(key="run_prefill_decode").disabled
    assert translate("en", key, n="100,000", limit="1,000") in all_text(at)
    assert len(first(at.query_params.get("pd_prompt", ""))) <= 1_000


def test_a_prompt_with_too_many_tokens_is_refused_before_the_engine_does(lab) -> None:
    at = lab("p_prefill_decode.py", lang="en")
    at.slider(key="pd_output").set_value(200)
    at.text_area(key="pd_prompt").set_value("a " * 499 + "b").run()
    assert not any("500" in w.value for w in at.warning)
    assert "504 tokens" in all_text(at)


# ------------------------------------------------------------------------------------------------- language
def test_the_browser_decides_at_first(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from pages._ui import i18n

    monkeypatch.setattr(i18n, "match_locale", lambda locale: "zh")
    at = lab()
    assert at.title[0].value == translate("zh", "common.product")
    assert "lang" not in at.query_params


def test_a_choice_is_remembered_in_the_next_session(lab) -> None:
    at = lab()
    at.segmented_control(key="language_switch").set_value("zh").run()
    assert at.title[0].value == translate("zh", "common.product")
    assert first(at.query_params["lang"]) == "zh"
    assert lab().title[0].value == translate("zh", "common.product")


def test_a_link_wins_over_the_remembered_choice(lab, store) -> None:
    store.set_preference("testlearner-testlearner", "language", '"zh"')
    assert lab(lang="en").title[0].value == translate("en", "common.product")


def test_an_unknown_language_is_said(lab) -> None:
    at = lab(lang="tlh")
    assert not at.exception
    assert any("tlh" not in w.value and "en, zh" in w.value for w in at.warning)


def test_the_language_stays_over_a_page_switch(lab) -> None:
    at = lab(lang="zh")
    at.switch_page("p_batching.py").run()
    assert at.title[0].value == "静态批处理与连续批处理"
