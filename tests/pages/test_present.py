"""The projector view: the whole lesson without frame and lock, nothing of it stored; the notes window beside it."""

from __future__ import annotations

import json

import pytest

from lessons.catalog import lesson
from lessons.guide import TITLES, guide
from pages._ui.i18n import translate
from pages._ui.present import CHART_SCALE
from tests.pages.test_recorded_mode import LEARNER, LESSONS
from tests.pages.test_smoke import all_text


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_a_class_sees_a_lesson_without_locking_or_storing_a_prediction(lab, client, store, lesson_id: str) -> None:
    client.down = True
    store.show_recorded(store.learner(LEARNER), lesson_id, True)
    at = lab(f"p_{lesson_id}.py", lang="en", present="1")
    assert not at.exception
    assert not at.sidebar.markdown
    said = all_text(at)
    assert translate("en", "present.outcome") in said
    assert translate("en", "recorded.other_settings") not in said
    at.button(key="stage_answer").click().run()
    assert not at.exception
    assert store.predictions(LEARNER, lesson_id) == []
    assert store.answers(LEARNER, lesson_id) == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_before_the_run_the_room_is_not_told_to_lock_anything(lab, client, lang: str) -> None:
    client.down = True
    said = [info.value for info in lab("p_prefill_decode.py", lang=lang, present="1").info]
    assert translate(lang, "present.no_run") in said and translate(lang, "prefill_decode.no_run") not in said


def test_the_quiz_goes_question_by_question_and_shows_the_answer_when_asked(lab, store) -> None:
    at = lab("p_batching.py", lang="en", present="1")
    items = lesson("batching").quiz
    assert at.button(key="stage_before").disabled
    for index, item in enumerate(items[:3], start=1):
        said = all_text(at)
        assert f"{index} / {len(items)}" in said
        assert item.kind not in ("choice", "several") or item.options[0].feedback["en"] not in said
        at.button(key="stage_answer").click().run()
        assert item.kind not in ("choice", "several") or item.options[0].feedback["en"] in all_text(at)
        at.button(key="stage_after").click().run()
    assert store.answers(LEARNER, "batching") == []


def test_the_room_is_set_beside_the_run(lab, store) -> None:
    store.show_recorded(store.learner(LEARNER), "prefill_decode", True)
    at = lab("p_prefill_decode.py", lang="en", present="1")
    at.number_input(key="hands:prefill_decode:token_ratio").set_value(1000.0).run()
    assert "too high" in all_text(at)
    assert store.predictions(LEARNER, "prefill_decode") == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_notes_hold_the_guide_and_not_the_page(lab, lang: str) -> None:
    at = lab("p_batching.py", lang=lang, present="notes")
    assert not at.exception
    found, said = guide("batching", lang), all_text(at)
    assert found.aim in said
    assert all(step.text in said for step in found.steps)
    assert all(belief in said.replace("\\", "") for belief in lesson("batching").misconceptions[lang])
    assert TITLES[lang]["trouble"] in said
    assert not [b for b in at.button if str(b.key).startswith("run_")]


def test_the_way_onto_the_stage_is_on_every_lesson_and_nonsense_is_no_mode(lab) -> None:
    at = lab("p_batching.py", lang="en", present="nonsense")
    assert not at.exception
    assert at.button(key="run_batching").disabled
    labels = [link.label for link in at.get("page_link")]
    assert translate("en", "present.link") in labels
    assert translate("en", "present.notes") not in labels
    at = lab(lang="en")  # home: both for every lesson
    labels = [link.label for link in at.get("page_link")]
    assert labels.count(translate("en", "present.notes")) == labels.count(translate("en", "present.link"))
    assert labels.count(translate("en", "present.notes")) >= len(LESSONS)


def test_the_words_in_a_picture_grow_with_those_at_its_axes(lab, store) -> None:
    store.show_recorded(store.learner(LEARNER), "prefill_decode", True)
    sizes = []
    for present in ({}, {"present": "1"}):
        chart = lab("p_prefill_decode.py", lang="en", **present).get("plotly_chart")[0]
        layout = json.loads(chart.proto.spec)["layout"]
        (words,) = (one["font"]["size"] for one in layout["annotations"] if "TTFT" in one["text"])
        sizes.append((words, layout["xaxis"]["tickfont"]["size"]))
    (words, ticks), (larger, larger_ticks) = sizes
    assert larger == round(words * CHART_SCALE)
    assert larger_ticks == ticks * CHART_SCALE
