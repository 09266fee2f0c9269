"""The last lesson: map, claims table for any model, one run predicted as a whole, the exam, and banks as files."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from streamlit.testing.v1 import AppTest

from lessons import recorded
from lessons.catalog import load_lessons
from lessons.exam import SOURCE_QUESTIONS, draw
from lessons.quiz import correct_answer, public_id
from lessons.summary.concepts import concept_map
from lessons.summary.table import OWNERS
from pages._ui import bank_export
from pages._ui.concept_map import line, to_svg
from pages._ui.i18n import translate
from pages._ui.prose import mend
from pages._ui.units import number
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_summary.py"


def claims_frame(at: AppTest):
    return next(table.value for table in at.table if len(table.value) == 18)


def run_once(lab, **query: str) -> AppTest:
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "summary"))


# ------------------------------------------------------------------ the claims table
def test_the_table_has_all_claims_and_names_the_lessons_that_measure_them(lab) -> None:
    for lang in ("en", "zh"):
        at = lab(PAGE, lang=lang)
        assert not at.exception
        frame = claims_frame(at)
        assert [cell.split("**")[1] for cell in frame.iloc[:, 0]] == list(OWNERS)
        assert set(frame.iloc[:, 3]) == {translate(lang, "summary.not_yet")}
        words = [translate(lang, f"summary.verdict_{v}") for v in ("holds", "holds_when", "does_not_hold")]
        assert all(any(cell.endswith(f"{word}]") for word in words) for cell in frame.iloc[:, 0])
        assert any(translate(lang, "common.badge_modelled") in str(name) for name in frame.columns)
        assert mend(translate(lang, "summary.missing")) in all_text(at)


def test_another_model_gives_another_table(lab) -> None:
    at = lab(PAGE, lang="en")
    mha = claims_frame(at)
    at.selectbox(key="sm_model").set_value("llama-3-8b").run()
    gqa = claims_frame(at)
    assert "1.07 GB / 4.29 GB / 17.2 GB" in set(mha.iloc[:, 2])
    assert "268 MB / 1.07 GB / 4.29 GB" in set(gqa.iloc[:, 2])
    assert at.query_params["sm_model"] == "llama-3-8b"
    shown = all_text(at)
    assert "32 query heads share 8 KV heads" in shown
    here = lab(PAGE, lang="en", sm_model="here")
    assert not here.exception
    assert list(claims_frame(here).iloc[:, 2]) != list(gqa.iloc[:, 2])


def test_a_run_of_a_lesson_fills_its_rows(lab, store) -> None:
    at = finish(start(predict(lab("p_prefill_decode.py", lang="en")), "prefill_decode"))
    at = lab(PAGE, lang="en")
    frame = claims_frame(at)
    filled = [
        cell.split("**")[1] for cell, here in zip(frame.iloc[:, 0], frame.iloc[:, 3], strict=True) if here != "not yet"
    ]
    assert filled == ["C1", "C2", "C3"]
    run = store.latest_runs(LEARNER, "prefill_decode")["run"]
    assert run.run_id in all_text(at).replace("\\", "")


# ------------------------------------------------------------------ one run as a whole
def test_the_whole_run(lab, client: FakeClient, store) -> None:
    at = run_once(lab, sm_requests="4", sm_output="17")
    assert not at.exception and not at.error
    (scenario,) = client.submitted
    assert (len(scenario.requests), scenario.requests[0].max_tokens, scenario.requests[0].num_prompt_tokens) == (
        4,
        17,
        64,
    )
    settled = store.predictions(LEARNER, "summary")
    assert {p.prediction_id for p in settled} == {"kv_peak_mb", "total_s"} and all(p.answer for p in settled)
    (chart,) = at.get("plotly_chart")
    assert len(chart.proto.alt) > 20 and len(at.dataframe) >= 1
    cells = [str(cell) for table in at.table for cell in table.value.to_numpy().ravel()]
    assert any(translate("en", "common.badge_measured") in cell for cell in cells)
    assert translate("en", "quiz.from_your_run") in all_text(at)
    again = lab(PAGE, lang="zh")
    assert translate("zh", "summary.other_run", n=4, prompt=64, output=17) in [i.value for i in again.info]


# ------------------------------------------------------------------ the exam
def begin(at: AppTest) -> AppTest:
    return at.button(key="exam_begin").click().run()


def fill(at: AppTest, question, attempt: int, right: bool) -> None:
    item, key = question.item, f"exam:{attempt}:{question.item.id}"
    if item.kind == "number":
        at.text_input(key=key).set_value(str(item.answer if right else item.answer + 10 * item.tolerance + 7))
    elif item.kind == "choice":
        wrong = public_id(item, next(o for o in item.options if not o.correct))
        at.radio(key=key).set_value(correct_answer(item) if right else wrong)
    elif item.kind == "several":
        for option in item.options:
            if option.correct == right:
                at.checkbox(key=f"{key}:{public_id(item, option)}").check()
    else:
        order = correct_answer(item) if right else correct_answer(item)[::-1]
        for place, step in enumerate(order, start=1):
            at.segmented_control(key=f"{key}:{step}").set_value(place)


def submit(at: AppTest) -> AppTest:
    return next(b for b in at.button if b.label == translate("en", "exam.submit")).click().run()


def test_an_exam_from_beginning_to_end(lab, store) -> None:
    at = begin(lab(PAGE, lang="en"))
    assert not at.exception
    sheet = draw(f"{LEARNER}/exam/1", {})
    assert set(SOURCE_QUESTIONS) <= {q.item.id for q in sheet}
    for index, question in enumerate(sheet):
        fill(at, question, 1, right=index % 2 == 0)
    at = submit(at)
    assert not at.exception
    answers = store.answers(LEARNER)
    assert {a.item_id for a in answers} == {q.item.id for q in sheet}
    scores = {a.item_id: a.score for a in answers}
    assert all(scores[q.item.id] == 1 for q in sheet[::2]) and all(scores[q.item.id] < 1 for q in sheet[1::2])
    by_lesson = {q.item.id: q.lesson_id for q in sheet}
    assert all(a.lesson_id == by_lesson[a.item_id] for a in answers)
    assert len([e for e in at.expander if str(e.label).startswith("**")]) == len(sheet)
    assert sheet[1].item.prompt["en"].split("\n")[0] in "\n".join(e.label for e in at.expander)
    assert translate("en", "quiz.right") in [s.value for s in at.success]
    nothing_right = [q for q in sheet[1::2] if scores[q.item.id] == 0]
    verdicts = [e.value for e in at.error]
    assert verdicts.count(translate("en", "quiz.wrong_final")) == len(nothing_right)
    in_the_lesson = [q for q in nothing_right if q.lesson_id == "summary"]  # the same answers in its quiz, further up
    assert verdicts.count(translate("en", "quiz.wrong")) == len(in_the_lesson)
    shown = all_text(at)
    for question in sheet[1::2]:
        for right in rights(question.item):
            assert right in shown, f"{question.item.id}: there is no second try, so the answer is told"


def rights(item) -> list[str]:
    """What says which answer was right, for an item that was answered wrongly."""
    if item.kind == "number":
        return [f"**{item.answer:g} {item.unit['en']}**", mend(item.explanation["en"])]
    if item.kind == "order":
        places = (f"{place}. {mend(step.text['en'])}" for place, step in enumerate(item.steps, start=1))
        return ["\n".join(places), mend(item.explanation["en"])]
    return [mend(part) for o in item.options if o.correct for part in (o.text["en"], o.feedback["en"])]


def test_the_result_is_there_after_a_reload_and_another_exam_is_another(lab, store) -> None:
    at = submit(begin(lab(PAGE, lang="en")))
    assert translate("en", "exam.empty") in [w.value for w in at.warning]
    first = next(q for q in draw(f"{LEARNER}/exam/1", {}) if q.item.kind == "choice")
    fill(at, first, 1, right=True)
    at = submit(at)
    assert [(a.item_id, a.score) for a in store.answers(LEARNER)] == [(first.item.id, 1.0)]
    again = lab(PAGE, lang="zh")
    assert not again.exception
    assert len([e for e in again.expander if str(e.label).startswith("**")]) == len(draw(f"{LEARNER}/exam/1", {}))
    assert translate("zh", "exam.not_answered") in all_text(again)
    at = lab(PAGE, lang="en")
    at = at.button(key="exam_again").click().run()
    assert not at.exception
    asked = {str(w.key).split(":")[2] for w in [*at.radio, *at.text_input] if str(w.key).startswith("exam:2:")}
    assert asked and asked <= {q.item.id for q in draw(f"{LEARNER}/exam/2", {})}


def test_an_open_exam_survives_a_reload_and_shows_no_key(lab) -> None:
    begin(lab(PAGE, lang="en"))
    at = lab(PAGE, lang="en")
    sheet = draw(f"{LEARNER}/exam/1", {})
    shown = all_text(at)
    for question in sheet:
        if question.item.kind in ("choice", "several"):
            assert not any(option.feedback["en"] in shown for option in question.item.options)
        else:
            assert question.item.explanation["en"] not in shown
    labels = [w.label for w in (*at.radio, *at.text_input)]
    assert not [label for label in labels if "**" in label], "a screen reader is given a label as it is typed"
    offered = {str(value) for radio in at.radio for value in radio.options}
    assert offered.isdisjoint(option.id for q in sheet if q.item.kind == "choice" for option in q.item.options)


def test_questions_from_the_learners_runs_stay_the_same_while_the_exam_is_open(lab, store) -> None:
    run_once(lab, sm_requests="4", sm_output="17")
    begin(lab(PAGE, lang="en"))
    first = {
        str(w.key) for w in lab(PAGE, lang="en").text_input if "gen" in str(w.key) and str(w.key).startswith("exam:")
    }
    assert first
    finish(start(lab(PAGE, lang="en", sm_requests="8"), "summary"))
    then = {
        str(w.key) for w in lab(PAGE, lang="en").text_input if "gen" in str(w.key) and str(w.key).startswith("exam:")
    }
    assert then == first


# ------------------------------------------------------------------ the map
def test_the_map_and_its_list_say_the_same_and_lead_to_every_core_lesson() -> None:
    found = concept_map()
    assert {c.lesson for c in found.concepts} == {x.id for x in load_lessons() if x.chapter == "core"}
    links = {x.id: x.id.replace("_", "-") for x in load_lessons()}
    for lang in ("en", "zh"):
        picture = ET.fromstring(to_svg(found, lang, links, "<map>"))
        space = "{http://www.w3.org/2000/svg}"
        assert picture.get("aria-label") == "<map>"
        assert len(picture.findall(f"{space}a")) == len(found.concepts)
        assert {a.get("href") for a in picture.findall(f"{space}a")} == {
            c.lesson.replace("_", "-") for c in found.concepts
        }
        words = " ".join(picture.itertext())
        listed = "\n".join(line(concept, found, lang) for concept in found.concepts)
        for concept in found.concepts:
            assert concept.text[lang] in words and concept.text[lang] in listed
        for relation in found.relations:
            assert relation.how[lang] in words
            assert f"{relation.how[lang]} {found.concept(relation.end).name[lang]}" in listed


def test_a_lesson_without_a_page_is_no_link() -> None:
    picture = to_svg(concept_map(), "en", {"kv_cache": "kv-cache?lang=en"}, "map")
    assert picture.count("<a ") == 3 and picture.count("<g>") == len(concept_map().concepts) - 3


# ------------------------------------------------------------------ banks as files
def test_a_bank_is_offered_as_a_file_and_made_only_on_demand(lab) -> None:
    at = lab(PAGE, lang="en", sm_bank="roofline")
    assert not at.exception
    assert at.selectbox(key="sm_bank").value == "roofline"
    assert "rf.axis" not in all_text(at)
    assert bank_export.gift("roofline", "en").startswith("$CATEGORY: Token by Token/The roofline\n\n::rf.axis::")
    assert len(ET.fromstring(bank_export.moodle("roofline", "zh")).findall("question")) > 8


def test_a_recorded_run_is_predicted_from_the_rates_of_its_own_device(lab, store) -> None:
    device = recorded.runs("summary")["run"].header.device
    for shown, rate in ((False, 20.0), (True, device.read_gbps)):
        store.show_recorded(store.learner(LEARNER), "summary", shown)
        cells = [str(cell) for table in lab(PAGE, lang="en").table for cell in table.value.to_numpy().ravel()]
        assert [cell for cell in cells if "GB/s" in cell] == [
            cell for cell in cells if f"{number(rate, 'en')} GB/s" in cell
        ]
        assert any("GB/s" in cell for cell in cells)
