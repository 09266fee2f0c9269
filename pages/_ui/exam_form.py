"""The exam on the screen: begin, one sheet with one submit, marks with a remark on every answer, begin another one.

What is asked and what it is worth is decided by ``lessons.exam``; the browser gets public views only. The sheet is kept
by its seed and the ids of the Runs it was made from, so it survives a reload and can be graded again; answers not yet
submitted do not. Every graded answer also counts in the lesson it comes from. A fragment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.lab.records import Run
from lessons.catalog import lesson as find_lesson
from lessons.exam import SUMMARY, Mark, Question, Result, draw, mark_sheet
from lessons.quiz import public_view
from pages._ui import quiz_form, quiz_key, session
from pages._ui.badges import badge, escape, note
from pages._ui.i18n import language, t
from pages._ui.prose import mend
from pages._ui.units import number

_KEPT = "exam"  # attempt, seed, roles {lesson: {role: run id}}, answers (None while it is open)
WEAK = 0.6  # share of a lesson's points below which it is worth another look

CourseRuns = Mapping[str, Mapping[str, Run]]


def exam(runs: CourseRuns, pages: Mapping[str, st.Page]) -> None:
    """The whole exam step. ``runs``: the learner's latest Runs by lesson, for questions made from them."""
    st.fragment(_exam)(runs, pages)


def _exam(runs: CourseRuns, pages: Mapping[str, st.Page]) -> None:
    kept = session.recall(_KEPT)
    if kept is None:
        st.markdown(t("exam.intro"))
        st.button(t("exam.begin"), key="exam_begin", type="primary", on_click=_begin, args=(runs,))
        return
    sheet = _sheet(kept, runs)
    if kept["answers"] is None:
        _open_sheet(kept, sheet)
        return
    result = mark_sheet(sheet, kept["answers"])
    _report(result, pages)
    st.button(t("exam.again"), key="exam_again", icon=":material/replay:", on_click=_begin, args=(runs,))
    for index, mark in enumerate(result.marks, start=1):
        _marked(index, mark, kept["answers"].get(mark.question.item.id))


def _begin(runs: CourseRuns) -> None:
    """Draw a new exam from the Runs there are now. Effect: it is kept as open."""
    kept = session.recall(_KEPT) or {}
    attempt = int(kept.get("attempt", 0)) + 1
    roles = {lesson_id: {role: run.run_id for role, run in mine.items()} for lesson_id, mine in runs.items()}
    seed = f"{session.learner()}/exam/{attempt}"
    session.remember(_KEPT, {"attempt": attempt, "seed": seed, "roles": roles, "answers": None})


def _sheet(kept: Mapping[str, Any], runs: CourseRuns) -> tuple[Question, ...]:
    """The exam as it was drawn. Questions whose Runs are no longer stored are left out."""
    cached = st.session_state.get("_exam_sheet")
    if cached is None or cached[0] != kept["seed"]:
        there = {run.run_id: run for mine in runs.values() for run in mine.values()}
        used: dict[str, dict[str, Run]] = {}
        for lesson_id, roles in kept["roles"].items():
            found = {role: there.get(run_id) or session.store().run(run_id) for role, run_id in roles.items()}
            used[lesson_id] = {role: run for role, run in found.items() if run is not None}
        cached = st.session_state["_exam_sheet"] = (kept["seed"], draw(kept["seed"], used))
    return cached[1]


# ------------------------------------------------------------------------------------------------- the open sheet
def _open_sheet(kept: Mapping[str, Any], sheet: tuple[Question, ...]) -> None:
    st.markdown(t("exam.open", n=len(sheet)))
    given: dict[str, Any] = {}
    with st.form(f"exam_{kept['attempt']}", enter_to_submit=False):
        for index, question in enumerate(sheet, start=1):
            item = question.item
            with st.container(key=f"exam_item_{index}"):
                _origin(question)
                view = public_view(item, language(), kept["seed"])
                given[item.id] = quiz_form.field(view, index, f"exam:{kept['attempt']}:{item.id}", None)
        sent = st.form_submit_button(t("exam.submit"), type="primary", icon=":material/assignment_turned_in:")
    if sent and not _given(given):
        st.warning(t("exam.empty"), icon=":material/edit_off:")
    elif sent:
        _submit(kept, sheet, given)
        st.rerun()


def _origin(question: Question) -> None:
    """Where a question comes from: its lesson, the learner's own Run, the source lesson."""
    parts = [find_lesson(question.lesson_id).title[language()]]
    if question.source:
        parts.append(t("exam.from_source"))
    if question.item.run_ids:
        shown = ", ".join(escape(run_id) for run_id in question.item.run_ids[:2])
        first = session.store().run(question.item.run_ids[0])
        parts.append(f"{badge('measured', first)} {t('exam.from_run', run=shown)}")
    note(" · ".join(parts))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in which something stands. Pure."""
    return {item_id: value for item_id, value in fields.items() if value not in (None, "", [])}


def _submit(kept: Mapping[str, Any], sheet: tuple[Question, ...], fields: Mapping[str, Any]) -> None:
    """Grade the sheet. Effect: answers and marks are stored, each with the lesson it belongs to."""
    answers = _given(fields)
    result = mark_sheet(sheet, answers)
    store, learner = session.store(), session.learner()
    for mark in result.marks:
        item_id = mark.question.item.id
        if mark.answered:
            store.save_answer(learner, mark.question.lesson_id, item_id, answers[item_id], mark.grade.score)
    done = {"score": result.score, "right": result.num_right, "questions": len(result.marks)}
    store.log_event(learner, "exam", f"exam-{kept['attempt']}", done)
    session.remember(_KEPT, {**kept, "answers": answers, **done})


# ------------------------------------------------------------------------------------------------- the result
def _report(result: Result, pages: Mapping[str, st.Page]) -> None:
    lang = language()
    points = number(round(result.score * len(result.marks), 2), lang)
    open_ones = sum(not mark.answered for mark in result.marks)
    st.progress(
        result.score,
        text=t("exam.score", points=points, total=len(result.marks), percent=round(100 * result.score)),
    )
    if open_ones:
        note(t("exam.left_open", n=open_ones))
    lines = []
    for lesson_id, (got, count) in result.by_lesson.items():
        icon = "check_circle" if got >= WEAK * count else "replay"
        title = find_lesson(lesson_id).title[lang]
        points = f"{got:.2f}".rstrip("0").rstrip(".")
        lines.append(f"- :material/{icon}: {t('exam.lesson_score', lesson=title, got=points, n=count)}")
    st.markdown("\n".join(lines))
    weak = [lesson_id for lesson_id, (got, count) in result.by_lesson.items() if got < WEAK * count]
    weak = [lesson_id for lesson_id in weak if lesson_id in pages and lesson_id != SUMMARY]  # this is its page
    if weak:
        st.markdown(t("exam.repeat"))
        for lesson_id in weak:
            st.page_link(pages[lesson_id])


def _marked(index: int, mark: Mark, answer: Any) -> None:
    """One question with what was answered and what is to be said about it."""
    item, lang = mark.question.item, language()
    icon = "check_circle" if mark.grade.correct else "cancel" if mark.answered else "help"
    first = mend(item.prompt[lang]).split("\n")[0]
    wrong = mark.answered and not mark.grade.correct
    with st.expander(f"**{index}.** {first}", icon=f":material/{icon}:", expanded=wrong, key=f"exam_mark_{index}"):
        _origin(mark.question)
        if "\n" in item.prompt[lang].strip():
            st.markdown(mend(item.prompt[lang]))
        if item.trace:
            st.code(item.trace[lang], language=None)
        if mark.answered and item.kind == "number":
            st.markdown(t("exam.your_number", value=escape(str(answer)), unit=item.unit[lang]))
        if mark.answered:
            quiz_form.show_grade(mark.grade, final=True)
        elif answer is None:
            st.markdown(t("exam.not_answered"))
        else:
            st.markdown(t("exam.not_readable", value=escape(str(answer))))
        _key(mark)


def _key(mark: Mark) -> None:
    """What would have been right. Several options say so themselves: each is chosen, or marked as missed."""
    item = mark.question.item
    if mark.grade.correct or (mark.answered and item.kind == "several"):
        return
    st.markdown(f"**{t(f'exam.key_{item.kind}')}**")
    quiz_key.show(item)
