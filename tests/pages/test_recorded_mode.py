"""Every lesson works from its recorded Runs with no engine: prediction, pictures, explanation, quiz, and the label."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from lessons import recorded
from lessons.catalog import lesson as find_lesson
from lessons.catalog import load_lessons
from pages._ui.badges import escape
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_smoke import all_text

LEARNER = "testlearner-testlearner"
LESSONS = [lesson.id for lesson in load_lessons() if recorded.exists(lesson.id)]


def commit_something(at: AppTest, lang: str) -> None:
    """Lock any prediction: what is asked for is each lesson's business."""
    commit = next(b for b in at.button if b.label == translate(lang, "predict.commit"))
    for field in at.number_input:
        if str(field.key).startswith("predict:"):
            _, lesson_id, prediction_id, _ = field.key.split(":")
            least = find_lesson(lesson_id).prediction(prediction_id).minimum
            field.set_value(int(least) + 1 if field.step == 1 else least + 0.5)
    for field in at.radio:
        if str(field.key).startswith("predict:"):
            field.set_value(field.options[0])
    commit.click().run()


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_a_lesson_works_with_no_engine(lab, client: FakeClient, store, lesson_id: str) -> None:
    client.down = True
    at = lab(f"p_{lesson_id}.py", lang="en")
    assert at.button(key=f"show_recorded_{lesson_id}").disabled
    commit_something(at, "en")
    at.button(key=f"show_recorded_{lesson_id}").click().run()
    assert not at.exception
    said = all_text(at)
    run = next(iter(recorded.runs(lesson_id).values()))
    assert f"recorded {recorded.origin(run).date}" in said
    assert run.header.device.name in said
    assert translate("en", "predict.outcome") in said
    assert all(p.run_id is not None for p in store.predictions(LEARNER, lesson_id))
    assert translate("en", "quiz.from_your_run") in said
    assert f"{translate('en', 'common.badge_measured')}]" not in said
    assert at.button(key=f"run_{lesson_id}").disabled


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_the_recorded_runs_are_shown_in_chinese(lab, client: FakeClient, store, lesson_id: str) -> None:
    client.down = True
    store.show_recorded(store.learner(LEARNER), lesson_id, True)
    at = lab(f"p_{lesson_id}.py", lang="zh")
    assert not at.exception
    run = next(iter(recorded.runs(lesson_id).values()))
    assert translate("zh", "common.badge_recorded", date=recorded.origin(run).date) in all_text(at)
    has_prompts_of_its_own = len(recorded.experiments(lesson_id)) == 2
    assert (translate("zh", "recorded.other_language") in all_text(at)) == has_prompts_of_its_own


def test_the_player_calls_recorded_runs_recorded(lab, client: FakeClient, store) -> None:
    client.down = True
    store.show_recorded(store.learner(LEARNER), "batching", True)
    at = lab("p_batching.py", lang="zh")
    (player,) = at.get("bidi_component")
    sent = json.loads(player.proto.json)["runs"]
    days = {recorded.origin(run).date for run in recorded.runs("batching").values()}
    assert {run["badge"] for run in sent} == {translate("zh", "common.badge_recorded", date=day) for day in days}


def test_other_settings_leave_the_prediction_open(lab, client: FakeClient, store) -> None:
    client.down = True
    at = lab("p_training_inference.py", lang="en", ti_length="64")
    commit_something(at, "en")
    at.button(key="show_recorded_training_inference").click().run()
    assert not at.exception
    assert translate("en", "recorded.other_settings") in all_text(at)
    assert all(p.run_id is None for p in store.predictions(LEARNER, "training_inference"))


def test_an_own_run_takes_the_place_of_the_recorded_one_and_stands_beside_it(lab, client, store) -> None:
    store.show_recorded(store.learner(LEARNER), "prefill_decode", True)
    at = lab("p_prefill_decode.py", lang="en")
    commit_something(at, "en")
    at.button(key="run_prefill_decode").click().run()
    for _ in range(3):
        at.run()
    assert not at.exception
    said = all_text(at)
    assert escape("run-000000000000") in said
    assert not store.shows_recorded(LEARNER, "prefill_decode")
    at.session_state["against_prefill_decode"] = True  # the click on the comparison
    at.run()
    assert not at.exception
    shown = at.table[-1].value
    assert "test bench" in all_text(at)
    assert {"GB/s", "TFLOP/s", "token/s"} <= {str(cell).rpartition(" ")[2] for cell in shown.iloc[:, 2]}
    assert str(shown.iloc[-1, 3]).endswith("×")
    at.button(key="show_recorded_prefill_decode").click().run()
    at.button(key="hide_recorded_prefill_decode").click().run()
    assert not store.shows_recorded(LEARNER, "prefill_decode")
