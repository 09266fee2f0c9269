"""The exam: drawn from all banks by a seed, with the source's questions in it, marked as a whole."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from lessons.catalog import lesson, load_lessons
from lessons.exam import FROM_RUNS, PER_BANK, SOURCE_QUESTIONS, draw, mark_sheet
from lessons.quiz import correct_answer, public_id, public_view
from tests.unit.lesson_cases import batch_size, roofline, summary
from tests.unit.lesson_runs import batching_runs, prefill_decode_runs

IDS = [found.id for found in load_lessons()]


@pytest.fixture(scope="module")
def runs() -> dict:
    return {
        "prefill_decode": prefill_decode_runs(),
        "batching": batching_runs("abcd"),
        "batch_size": batch_size.study(),
        "roofline": roofline.study(),
        "summary": summary.run(),
    }


def test_every_bank_is_in_it_and_so_are_the_sources_questions() -> None:
    sheet = draw("ann/1", {})
    counts = Counter(question.lesson_id for question in sheet)
    own = {lesson.id: PER_BANK[lesson.chapter] for lesson in load_lessons()}
    assert counts == {i: own[i] + (len(SOURCE_QUESTIONS) if i == "summary" else 0) for i in IDS}
    assert sum(counts.values()) <= 30, "an exam that is taken in one go"
    assert {q.item.id for q in sheet if q.source} == set(SOURCE_QUESTIONS)
    assert len({q.item.id for q in sheet}) == len(sheet)
    assert [q.lesson_id for q in sheet] == sorted((q.lesson_id for q in sheet), key=IDS.index)
    assert len({q.item.kind for q in sheet}) == 4
    for question in sheet:
        assert lesson(question.lesson_id).item(question.item.id) == question.item


def test_the_sources_questions_ask_what_the_source_asks() -> None:
    words = {
        "sm.why_memory_bound": "memory-bound",
        "sm.kv_outgrows": "larger than the weights",
        "sm.static_waste": "static",
    }
    for item_id, phrase in words.items():
        assert phrase in lesson("summary").item(item_id).prompt["en"]


def test_a_seed_fixes_the_exam_and_another_gives_another(runs) -> None:
    assert draw("ann/1", runs) == draw("ann/1", runs)
    sheets = [draw(f"ann/{n}", runs) for n in range(12)]
    assert len({tuple(q.item.id for q in sheet) for sheet in sheets}) == 12
    asked = {q.item.id for sheet in sheets for q in sheet if not q.item.generator}
    assert len(asked) > 3 * sum(PER_BANK[lesson.chapter] for lesson in load_lessons()), "the whole bank gets its turn"


def test_items_from_the_learners_runs_are_in_it(runs) -> None:
    sheet = draw("ann/1", runs)
    made = [q for q in sheet if q.item.generator]
    assert len(made) == FROM_RUNS == len({q.lesson_id for q in made})
    assert all(q.item.run_ids for q in made)
    assert not [q for q in draw("ann/1", {}) if q.item.generator]
    few = draw("ann/1", {"batching": runs["batching"]})
    assert [q.lesson_id for q in few if q.item.generator] == ["batching"]


def test_a_sheet_of_right_answers_has_full_marks(runs) -> None:
    sheet = draw(7, runs)
    result = mark_sheet(sheet, {q.item.id: correct_answer(q.item) for q in sheet})
    assert result.score == 1 and result.num_right == len(sheet)
    assert all(mark.answered and mark.grade.notes for mark in result.marks)
    assert sum(count for _, count in result.by_lesson.values()) == len(sheet)


def test_an_empty_sheet_has_none(runs) -> None:
    sheet = draw(7, runs)
    result = mark_sheet(sheet, {})
    assert result.score == 0 and result.num_right == 0
    assert not any(mark.answered for mark in result.marks)


def test_nonsense_is_marked_as_no_answer_and_a_wrong_answer_as_wrong() -> None:
    sheet = draw(3, {})
    answers = {}
    for question in sheet:
        item = question.item
        if item.kind in ("choice", "several"):
            answers[item.id] = [public_id(item, next(o for o in item.options if not o.correct))]
        else:
            answers[item.id] = "nonsense"
    result = mark_sheet(sheet, answers)
    for mark in result.marks:
        assert mark.answered == (mark.question.item.kind in ("choice", "several"))
        assert not mark.grade.correct


def test_the_score_is_the_mean_and_partial_marks_count() -> None:
    sheet = draw(11, {})
    several = next(q for q in sheet if q.item.id == "sm.static_waste")
    two_of_three = correct_answer(several.item)[:2]
    result = mark_sheet(sheet, {several.item.id: two_of_three})
    assert result.score == pytest.approx(2 / 3 / len(sheet))
    points, count = result.by_lesson["summary"]
    assert points == pytest.approx(2 / 3) and count == PER_BANK["end"] + len(SOURCE_QUESTIONS)


def test_what_the_browser_sees_of_the_exam_has_no_key(runs) -> None:
    for question in draw(5, runs):
        sent = json.dumps(public_view(question.item, "en", "ann"))
        assert "correct" not in sent and "feedback" not in sent and "misconception" not in sent
