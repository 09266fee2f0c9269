"""The lesson on training and inference, from the locked prediction to the quiz, in both languages."""

from __future__ import annotations

import json

import pytest

from lessons.catalog import lesson
from lessons.quiz import correct_answer
from lessons.training_inference.scenarios import three_ways
from pages._ui.i18n import translate
from pages._ui.player import called
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, run_lesson, start
from tests.pages.test_smoke import CJK, all_text
from tests.unit.lesson_runs import serve

ID, PAGE = "training_inference", "p_training_inference.py"


def test_from_the_prediction_to_the_pictures(lab, client: FakeClient, store) -> None:
    at = run_lesson(lab, ID, PAGE)
    assert not at.exception and not at.error
    (submitted,) = client.submitted
    assert submitted == three_ways("Once upon a time", 128)
    assert set(store.latest_runs(LEARNER, ID)) == {"run"}
    settled = store.predictions(LEARNER, ID)
    assert {p.prediction_id for p in settled} == {"write_read_ratio", "train_read_ratio"}
    assert all(p.answer is not None for p in settled)
    shown = all_text(at)
    assert translate("en", "predict.outcome") in shown
    assert "times as long as" in shown
    for chart in at.get("plotly_chart"):
        assert chart.proto.alt
        assert json.loads(chart.proto.spec)["data"]
    assert len(at.get("plotly_chart")) == 2
    assert len(at.dataframe) >= 2, "every figure has its table"


def test_the_settings_reach_the_engine_and_the_link(lab, client: FakeClient) -> None:
    at = predict(lab(PAGE, lang="en", ti_start="2", ti_length="32"))
    at = finish(start(at, ID))
    assert client.submitted == [three_ways("The sun is a", 32)]
    bad = lab(PAGE, lang="en", ti_length="33", ti_start="9")
    assert len([w for w in bad.warning if "ti_" in w.value]) == 2
    assert not bad.exception


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_stored_run_is_drawn_without_an_engine(lab, client: FakeClient, store, lang: str) -> None:
    store.save_run(
        serve(three_ways("Once upon a time", 64)), {"write": "a *b*", "read": "c"}, ID, store.learner(LEARNER)
    )
    client.down = True
    at = lab(PAGE, lang=lang)
    assert not at.exception
    shown = all_text(at)
    assert bool(CJK.search(shown)) == (lang == "zh")
    assert "Once upon a timea *b*" in [code.value for code in at.code]
    assert translate(lang, "training_inference.compare_note") in shown
    assert translate(lang, "quiz.from_your_run") in shown


def test_a_run_without_its_training_step_is_not_half_drawn(lab, store) -> None:
    run = serve(three_ways("Once upon a time", 64))
    run.header.probes = {}
    store.save_run(run, {}, ID, store.learner(LEARNER))
    at = lab(PAGE, lang="en")
    assert not at.exception
    assert translate("en", "training_inference.no_run") in [i.value for i in at.info]


def test_steps_are_put_in_order(lab, store) -> None:
    item = next(i for i in lesson(ID).quiz if i.kind == "order")
    at = lab(PAGE, lang="en")
    at.button(key=f"check:{item.id}").click().run()
    assert translate("en", "quiz.order_first") in [e.value for e in at.error]
    assert store.answers(LEARNER, ID) == []
    for place, step_id in enumerate(correct_answer(item), start=1):
        at.segmented_control(key=f"quiz:{item.id}:{step_id}").set_value(place)
    at = at.button(key=f"check:{item.id}").click().run()
    assert not at.exception
    assert [a.score for a in store.answers(LEARNER, ID)] == [1.0]
    again = lab(PAGE, lang="en")
    kept = [again.segmented_control(key=f"quiz:{item.id}:{s}").value for s in correct_answer(item)]
    assert kept == [1, 2, 3, 4, 5]


def test_a_trace_stands_beside_its_question(lab) -> None:
    item = next(i for i in lesson(ID).quiz if i.trace)
    at = lab(PAGE, lang="zh")
    assert item.trace["zh"] in [code.value for code in at.code]


def test_the_rows_of_the_timeline_are_called_by_words_of_the_page() -> None:
    run = serve(three_ways("Once upon a time", 16))
    shown = called(run, {"write": "写", "read": "读"})
    assert [r.request_id for r in shown.requests] == ["写", "读"]
    steps = "".join(step.model_dump_json() for step in shown.steps)
    assert '"写"' in steps and '"read"' not in steps
    assert called(shown, {"写": "write", "读": "read"}) == run
