"""A lesson from the locked prediction to the quiz, as a learner does it, and the ways a run can end badly."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from engine.lab.records import Disturbance
from engine.server.client import EngineRefused
from engine.server.jobs import LEASE_S
from lessons.catalog import lesson
from lessons.quiz import correct_answer, public_id
from pages._ui import run_panel
from pages._ui.i18n import translate
from pages._ui.units import percent
from tests.pages.fake_client import FakeClient
from tests.pages.test_smoke import all_text

LEARNER = "testlearner-testlearner"
LESSONS = (("prefill_decode", "p_prefill_decode.py"), ("batching", "p_batching.py"))


def predict(at: AppTest, value: float = 7) -> AppTest:
    """Fill in every number and lock."""
    for field in at.number_input:
        field.set_value(int(value) if isinstance(field.step, int) else float(value))
    for field in [r for r in at.radio if str(r.key).startswith("predict:")]:
        field.set_value(field.options[0])
    button = next(b for b in at.button if b.label == translate("en", "predict.commit"))
    return button.click().run()


def start(at: AppTest, lesson_id: str) -> AppTest:
    return at.button(key=f"run_{lesson_id}").click().run()


def finish(at: AppTest, most: int = 12) -> AppTest:
    """Look again, as the page does on its own, until nothing runs."""
    for _ in range(most):
        if not any(str(b.key).startswith("stop_") for b in at.button):
            return at.run()
        at.run()
    raise AssertionError("the run never ended")


def run_lesson(lab, lesson_id: str, page: str, **query: str) -> AppTest:
    at = predict(lab(page, lang="en", **query))
    return finish(start(at, lesson_id))


@pytest.mark.parametrize(("lesson_id", "page"), LESSONS)
def test_the_button_waits_for_the_prediction(lab, client: FakeClient, lesson_id: str, page: str) -> None:
    at = lab(page, lang="en")
    assert at.button(key=f"run_{lesson_id}").disabled
    assert translate("en", "run.predict_first") in all_text(at)
    at = predict(at)
    assert not at.exception
    assert not at.button(key=f"run_{lesson_id}").disabled
    assert not at.number_input
    assert client.submitted == []


def test_an_incomplete_prediction_is_not_locked(lab, store) -> None:
    at = lab("p_prefill_decode.py", lang="en")
    next(b for b in at.button if b.label == translate("en", "predict.commit")).click().run()
    assert at.error[0].value == translate("en", "predict.incomplete")
    assert store.predictions(LEARNER, "prefill_decode") == []


@pytest.mark.parametrize(("lesson_id", "page"), LESSONS)
def test_a_whole_lesson(lab, client: FakeClient, store, lesson_id: str, page: str) -> None:
    at = run_lesson(lab, lesson_id, page)
    assert not at.exception
    assert not at.error
    assert translate("en", "run.done") in [s.value for s in at.success]
    runs = store.latest_runs(LEARNER, lesson_id)
    assert set(runs) == ({"run"} if lesson_id == "prefill_decode" else {"static", "chunked"})
    assert [s.policy for s in client.submitted] == (["chunked"] if lesson_id == "prefill_decode" else [*runs][::-1])
    assert set(client.clients) == {LEARNER}
    settled = store.predictions(LEARNER, lesson_id)
    assert settled
    assert all(p.run_id in client.runs and p.answer is not None for p in settled)
    shown = all_text(at)
    assert translate("en", "predict.outcome") in shown
    assert "too high" in shown or "too low" in shown or "Spot on" in shown
    assert translate("en", "quiz.from_your_run") in shown


@pytest.mark.parametrize(
    ("shares", "told"),
    [((0.0, 0.234, True), "others_busy"), ((0.051, 0.02, True), "time_stolen"), ((0.0, 0.05, False), None)],
)
def test_a_noisy_measurement_is_told(lab, client: FakeClient, shares, told: str | None) -> None:
    client.disturbance = Disturbance(steal_share=shares[0], others_share=shares[1], is_noisy=shares[2])
    shown = all_text(run_lesson(lab, "prefill_decode", "p_prefill_decode.py"))
    for name, share in (("others_busy", percent(shares[1], "en")), ("time_stolen", percent(shares[0], "en"))):
        assert (translate("en", f"run.{name}", share=share) in shown) == (name == told)


@pytest.mark.parametrize(("lesson_id", "page"), LESSONS)
def test_every_figure_has_a_name_a_table_and_a_badge(lab, lesson_id: str, page: str) -> None:
    at = run_lesson(lab, lesson_id, page)
    charts, tables = at.get("plotly_chart"), at.dataframe
    assert len(charts) >= 2
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    assert len(tables) >= len(charts)
    measured = translate("en", "common.badge_measured")
    assert sum(f"{measured}]" in m.value for m in at.markdown) >= len(charts)
    cells = [str(cell) for table in at.table for cell in table.value.to_numpy().ravel()]
    assert any(f"{translate('en', 'common.badge_modelled')}]" in cell for cell in cells)
    assert any(f"{measured}]" in cell for cell in cells)


def test_model_output_is_never_read_as_markdown(lab) -> None:
    at = run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    raw = "**bold** <b>x</b> $y$"
    assert any(raw in block.value for block in at.code)
    assert raw not in all_text(at)


def test_everything_is_there_after_a_reload(lab, store) -> None:
    run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    at = lab("p_prefill_decode.py", lang="en")
    assert translate("en", "predict.locked") in all_text(at)
    assert len(at.get("plotly_chart")) == 3


def test_a_running_job_survives_reload_and_page_switch(lab, client: FakeClient, store) -> None:
    client.num_running = 6
    start(predict(lab("p_prefill_decode.py", lang="en")), "prefill_decode")
    at = lab("p_prefill_decode.py", lang="en")  # a new browser session of the same learner
    assert any(str(b.key) == "stop_prefill_decode" for b in at.button)
    assert at.button(key="run_prefill_decode").disabled
    at.switch_page("p_home.py").run()
    for _ in range(8):  # the sidebar goes on following
        at.run()
    assert set(store.latest_runs(LEARNER, "prefill_decode")) == {"run"}
    assert len(client.submitted) == 1


def test_the_place_in_the_queue_is_shown(lab, client: FakeClient) -> None:
    client.num_queued = 5
    at = start(predict(lab("p_batching.py", lang="en")), "batching")
    assert translate("en", "run.queued", position=2) in all_text(at)


def test_who_waits_far_back_is_asked_for_less_often_until_it_is_near(lab, client: FakeClient, monkeypatch) -> None:
    monkeypatch.setattr(run_panel, "FAR", 2)  # the fake line is two long
    client.num_queued, client.num_running = 3, 2
    at = start(predict(lab("p_batching.py", lang="en")), "batching")
    paces = [at.session_state["_pace:batching"]]
    for _ in range(4):
        at.run()
        paces.append(at.session_state["_pace:batching"])
    assert paces[0] == run_panel.FOLLOW_FAR_S and run_panel.FOLLOW_S in paces
    assert 3 * run_panel.FOLLOW_FAR_S < LEASE_S, "a run that nobody follows for so long is cancelled"


def test_stop_cancels_the_run_and_keeps_the_lesson(lab, client: FakeClient, store) -> None:
    client.num_running = 50
    at = start(predict(lab("p_prefill_decode.py", lang="en")), "prefill_decode")
    at.button(key="stop_prefill_decode").click().run()
    assert client.cancelled == ["run-000000000000"]
    assert translate("en", "run.stopped") in [i.value for i in at.info]
    assert not at.button(key="run_prefill_decode").disabled
    assert store.predictions(LEARNER, "prefill_decode")[0].run_id is None


def test_an_engine_that_dies_in_mid_run(lab, client: FakeClient, store) -> None:
    client.num_running = 50
    at = start(predict(lab("p_prefill_decode.py", lang="en")), "prefill_decode")
    client.down = True
    at.run()
    assert not at.exception
    assert translate("en", "run.no_answer") in all_text(at)
    client.down, client.num_running = False, 1
    client.lost.add("run-000000000000")
    at.run()
    assert translate("en", "run.ended_lost") in [e.value for e in at.error]
    assert store.predictions(LEARNER, "prefill_decode")
    at = finish(at.button(key="retry_prefill_decode").click().run())
    assert not at.error
    assert store.latest_runs(LEARNER, "prefill_decode")["run"].run_id == "run-000000000001"


@pytest.mark.parametrize(
    ("refusal", "key"),
    [
        (EngineRefused("max_tokens is 9; too many", "max_tokens"), "run.ended_refused"),
        (EngineRefused("you have 2 runs", "client_id", 429, "own_runs"), "run.ended_busy"),
        (EngineRefused("64 runs are waiting", "client_id", 429, "queue_full"), "run.ended_full"),
    ],
)
def test_a_refusal_is_one_sentence(lab, client: FakeClient, refusal: EngineRefused, key: str) -> None:
    client.refuse = refusal
    at = start(predict(lab("p_prefill_decode.py", lang="en")), "prefill_decode")
    assert not at.exception
    expected = translate("en", key, message="max_tokens is 9; too many") if "refused" in key else translate("en", key)
    assert at.error[0].value.replace("\\", "") == expected


def test_a_second_part_starts_only_after_the_first_is_stored(lab, client: FakeClient, store) -> None:
    client.num_running = 3
    at = start(predict(lab("p_batching.py", lang="en")), "batching")
    while len(client.submitted) == 1:
        assert "chunked" not in store.latest_runs(LEARNER, "batching")
        at.run()
    assert set(store.latest_runs(LEARNER, "batching")) == {"static"}


# ------------------------------------------------------------------------------------------------- prediction
def test_changing_the_settings_before_the_run_voids_the_prediction(lab) -> None:
    at = predict(lab("p_prefill_decode.py", lang="en"))
    at.slider(key="pd_output").set_value(100).run()
    assert at.button(key="run_prefill_decode").disabled
    assert translate("en", "predict.void") in [i.value for i in at.info]
    assert len(at.number_input) == 2


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_number_that_cannot_be_meant_is_named_with_what_is_allowed(lab, store, lang: str) -> None:
    at = lab("p_prefill_decode.py", lang=lang)
    asked = [p for p in lesson("prefill_decode").predictions if p.kind == "number"]
    for field, prediction in zip(at.number_input, asked, strict=True):
        field.set_value(prediction.maximum + 1)
    next(b for b in at.button if b.label == translate(lang, "predict.commit")).click().run()
    assert not at.exception and not store.predictions(LEARNER, "prefill_decode")
    assert len(at.error) == len(asked)
    for said, prediction in zip(at.error, asked, strict=True):
        assert f"{prediction.minimum:,g}" in said.value and f"{prediction.maximum:,g}" in said.value
    assert [field.value for field in at.number_input] == [p.maximum + 1 for p in asked], "nothing typed is lost"


def test_after_the_first_run_the_learner_may_explore_or_predict_again(lab, store) -> None:
    at = run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    at.slider(key="pd_output").set_value(100).run()
    assert not at.button(key="run_prefill_decode").disabled
    at.button(key="predict_again_button:prefill_decode").click().run()
    at = predict(at, 3)
    assert {p.attempt for p in store.predictions(LEARNER, "prefill_decode")} == {1, 2}
    assert {p.value for p in store.predictions(LEARNER, "prefill_decode") if p.attempt == 1} == {7.0}


def test_a_later_run_and_settings_that_have_changed_since_are_told(lab) -> None:
    at = run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    told = [translate("en", key) for key in ("predict.first_run", "run.other_settings")]
    assert [words in all_text(at) for words in told] == [False, False]
    at = finish(start(at, "prefill_decode"))
    assert [words in all_text(at) for words in told] == [True, False]
    at = lab("p_prefill_decode.py", lang="en", pd_output="8")
    assert [words in all_text(at) for words in told] == [True, True]


def test_the_questions_belong_to_the_workload(lab) -> None:
    prompts = {}
    for preset in ("abcd", "chat"):
        at = lab("p_batching.py", lang="en", bt_workload=preset)
        prompts[preset] = [field.label for field in at.number_input]
    assert prompts["abcd"] != prompts["chat"]


# ------------------------------------------------------------------------------------------------- quiz
def item_of(lesson_id: str, kind: str):
    return next(item for item in lesson(lesson_id).quiz if item.kind == kind)


def submit(at: AppTest, item_id: str) -> AppTest:
    return at.button(key=f"check:{item_id}").click().run()


def test_the_key_never_reaches_the_page(lab) -> None:
    at = lab("p_prefill_decode.py", lang="en")
    items = [item for item in lesson("prefill_decode").quiz if item.kind in ("choice", "several")]
    shown = all_text(at)
    assert not any(option.feedback["en"] in shown for item in items for option in item.options)
    offered = {str(value) for radio in at.radio for value in radio.options}
    assert offered.isdisjoint(option.id for item in items for option in item.options)


def test_a_wrong_choice_is_explained_and_can_be_tried_again(lab, store) -> None:
    item = item_of("prefill_decode", "choice")
    at = lab("p_prefill_decode.py", lang="en")
    wrong = next(option for option in item.options if not option.correct)
    at.radio(key=f"quiz:{item.id}").set_value(public_id(item, wrong))
    at = submit(at, item.id)
    assert not at.exception
    assert wrong.feedback["en"] in all_text(at)
    at.radio(key=f"quiz:{item.id}").set_value(correct_answer(item))
    at = submit(at, item.id)
    assert [a.score for a in store.answers(LEARNER, "prefill_decode")] == [0.0, 1.0]
    assert translate("en", "quiz.right") in [s.value for s in at.success]


def test_a_number_is_graded_and_restored_after_a_reload(lab, store) -> None:
    item = item_of("prefill_decode", "number")
    at = lab("p_prefill_decode.py", lang="en")
    at.text_input(key=f"quiz:{item.id}").set_value(str(item.answer))
    at = submit(at, item.id)
    assert store.answers(LEARNER, "prefill_decode")[0].score == 1
    again = lab("p_prefill_decode.py", lang="en")
    assert again.text_input(key=f"quiz:{item.id}").value == str(item.answer)
    assert translate("en", "quiz.right") in [s.value for s in again.success]


def test_nonsense_and_nothing_are_not_graded(lab, store) -> None:
    number, choice = item_of("prefill_decode", "number"), item_of("prefill_decode", "choice")
    at = lab("p_prefill_decode.py", lang="en")
    at.text_input(key=f"quiz:{number.id}").set_value("many")
    at = submit(at, number.id)
    assert translate("en", "quiz.not_a_number") in [e.value for e in at.error]
    at = submit(at, choice.id)
    assert translate("en", "quiz.choose_first") in [e.value for e in at.error]
    assert store.answers(LEARNER, "prefill_decode") == []


def test_several_answers(lab, store) -> None:
    item = item_of("prefill_decode", "several")
    at = lab("p_prefill_decode.py", lang="en")
    for value in correct_answer(item):
        at.checkbox(key=f"quiz:{item.id}:{value}").check()
    submit(at, item.id)
    assert [a.score for a in store.answers(LEARNER, "prefill_decode")] == [1.0]


def test_progress_shows_on_the_home_page(lab) -> None:
    at = run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    at.switch_page("p_home.py").run()
    assert any("check_circle" in c.value and translate("en", "home.ran") in c.value for c in at.markdown)
