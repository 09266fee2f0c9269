"""The quiz of a lesson: items from its bank and items made from the learner's own Runs, graded on the server.

The browser gets the public view of an item only, never its key. Every answer is stored with its score and shown again
after a reload, with what is right or wrong about each chosen option. The quiz is a fragment of its own: checking an
answer redraws neither charts nor player. What counts as right is decided by ``lessons.quiz``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from engine.lab.records import Run
from lessons.catalog import Lesson
from lessons.generated import items_from_runs
from lessons.quiz import Grade, Item, QuizError, grade, public_view
from lessons.store import StoredAnswer
from pages._ui import lesson_report, present, session
from pages._ui.badges import provenance
from pages._ui.i18n import language, t
from pages._ui.present import hands
from pages._ui.prose import mend

_VERDICT = {"right": (":green", "check_circle"), "wrong": (":red", "cancel"), "missed": (":orange", "help")}
_CHANGED = "_quiz_changed"


def quiz(lesson: Lesson, runs: Mapping[str, Run]) -> None:
    """Draw the quiz step. ``runs`` as ``items_from_runs`` wants them; empty before the first run."""
    generated = items_from_runs(lesson.id, dict(runs), session.learner()) if runs else []
    if present.on_stage():
        hands.quiz(lesson, [*lesson.quiz, *generated], list(runs.values()))
        return
    items = [*lesson.quiz, *generated]
    st.fragment(_quiz)(lesson, items, list(runs.values()))
    lesson_report.button(lesson, runs, items)


def _quiz(lesson: Lesson, items: list[Item], runs: list[Run]) -> None:
    last: dict[str, StoredAnswer] = {}
    best: dict[str, float] = {}
    for answer in session.store().answers(session.learner(), lesson.id):
        last[answer.item_id] = answer
        best[answer.item_id] = max(best.get(answer.item_id, 0.0), answer.score)
    right = sum(best.get(item.id, 0.0) >= 1 for item in items)
    st.progress(right / max(len(items), 1), text=t("quiz.score", right=right, total=len(items)))
    for index, item in enumerate(items, start=1):
        if item.generator is not None and items[index - 2].generator is None:
            st.subheader(t("quiz.from_your_run"), anchor=False)
            provenance(*runs)
        _item(lesson, item, index, last.get(item.id))
    if not runs:
        st.info(t("quiz.run_first"), icon=":material/lock:")
    if st.session_state.pop(_CHANGED, False):
        with contextlib.suppress(
            StreamlitAPIException
        ):  # raised when the whole page is being drawn, not the quiz alone
            st.rerun(scope="fragment")  # the score above and the button's label know nothing of the answer yet


def _item(lesson: Lesson, item: Item, index: int, answered: StoredAnswer | None) -> None:
    view = public_view(item, language(), session.learner())
    key = f"quiz:{item.id}"
    with st.form(f"form:{key}", enter_to_submit=True):
        given = field(view, index, key, None if answered is None else answered.value)
        label = t("quiz.check") if answered is None else t("quiz.check_again")
        # The key keeps it the same button when its label changes; otherwise the click on the old one would be lost.
        if st.form_submit_button(label, key=f"check:{item.id}"):
            answered = _answer(lesson, item, given) or answered
        if answered is not None:
            _feedback(item, answered)


def field(view: dict[str, Any], index: int, key: str, stored: Any) -> Any:
    """The question and its input, filled with the stored answer after a reload.

    The question stands above as text, always in the same size. The input carries it once more as a hidden label, plain
    and without Markdown: Streamlit gives a label to a screen reader letter by letter, asterisks included.
    """
    asked, hint = mend(view["prompt"]), _hint(view)
    parts = [f"**{index}.** {asked}"]
    parts += [f":small[{hint}]"] if hint and hint not in asked else []
    if view["trace"]:  # the piece of a run stands between the question and what is said about the input
        st.markdown(parts[0])
        st.code(view["trace"], language=None, wrap_lines=True)  # a box that scrolls sideways is closed to the keyboard
    shown = parts[1:] if view["trace"] else parts
    if shown:
        st.markdown("  \n".join(shown))
    label = f"{index}. {view['prompt']}"
    if view["kind"] == "number":
        st.session_state.setdefault(key, "" if stored is None else str(stored))
        placeholder = t("quiz.number_placeholder")
        return st.text_input(f"{label} {hint}", key=key, placeholder=placeholder, label_visibility="collapsed")
    if view["kind"] == "order":
        return _order(view["steps"], key, stored)
    texts = {option["id"]: mend(option["text"]) for option in view["options"]}
    if view["kind"] == "choice":
        st.session_state.setdefault(key, stored if stored in texts else None)
        options = {"index": None, "format_func": texts.__getitem__, "label_visibility": "collapsed"}
        return st.radio(label, list(texts), key=key, **options)
    chosen = []
    for option_id, text in texts.items():
        st.session_state.setdefault(f"{key}:{option_id}", option_id in (stored or ()))
        if st.checkbox(text, key=f"{key}:{option_id}"):
            chosen.append(option_id)
    return chosen


def _hint(view: dict[str, Any]) -> str:
    """How to answer, in small print under the question. Pure but for the language."""
    if view["kind"] == "number":
        within = t("quiz.tolerance", tolerance=f"{view['tolerance']:g}") if view["tolerance"] else ""
        return t("quiz.number_unit", unit=view["unit"]) + within
    return {"order": t("quiz.choose_order"), "several": t("quiz.choose_several")}.get(view["kind"], "")


def _order(steps: list[dict[str, str]], key: str, stored: Any) -> list[str] | None:
    """A place for every step. None while a step has none, or two steps have the same."""
    before = stored if isinstance(stored, list) else []
    places: dict[str, int | None] = {}
    for step in steps:
        name = f"{key}:{step['id']}"
        st.session_state.setdefault(name, before.index(step["id"]) + 1 if step["id"] in before else None)
        places[step["id"]] = st.segmented_control(mend(step["text"]), options=range(1, len(steps) + 1), key=name)
    if sorted(place or 0 for place in places.values()) != list(range(1, len(steps) + 1)):
        return None
    return sorted(places, key=lambda step_id: places[step_id])


def _answer(lesson: Lesson, item: Item, given: Any) -> StoredAnswer | None:
    """Grade and store. None when there was nothing to grade; the learner is told why."""
    try:
        result = grade(item, given)
    except QuizError:
        problem = {"number": "quiz.not_a_number", "order": "quiz.order_first"}.get(item.kind, "quiz.choose_first")
        st.error(t(problem))
        return None
    attempt = session.store().save_answer(session.learner(), lesson.id, item.id, given, result.score)
    st.session_state[_CHANGED] = True
    return StoredAnswer(lesson.id, item.id, attempt, given, result.score, "")


def _feedback(item: Item, answered: StoredAnswer) -> None:
    try:
        result: Grade = grade(item, answered.value)
    except QuizError:
        return  # the item has changed since: the old answer says nothing about it
    show_grade(result)


def show_grade(result: Grade, *, final: bool = False) -> None:
    """Right or not, and what is to be said about each chosen and missed part. ``final``: there is no second try."""
    lang = language()
    if result.correct:
        st.success(t("quiz.right"), icon=":material/check_circle:")
    elif result.score:
        st.error(t("quiz.partly", percent=round(result.score * 100)), icon=":material/cancel:")
    else:
        st.error(t("quiz.wrong_final" if final else "quiz.wrong"), icon=":material/cancel:")
    for note in result.notes:
        if note.option is None:  # about the whole answer, and its verdict stands above
            st.markdown(mend(note.text[lang]))
            continue
        colour, icon = _VERDICT[note.verdict]
        head = f"{colour}[:material/{icon}: {t(f'quiz.{note.verdict}_option')}]"
        st.markdown(f"{head} **{note.option[lang]}**  \n{mend(note.text[lang])}")
