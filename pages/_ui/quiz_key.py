"""What would have been right, in words: for a room that asks for the answer, and for an exam that has been handed in.

It decides only how a key looks. Whoever calls it has made sure that the answer may be known by now: a lesson's quiz
never does, because there the learner tries again.
"""

from __future__ import annotations

import streamlit as st

from lessons.quiz import Item, correct_answer, grade
from pages._ui.i18n import language, t
from pages._ui.prose import mend

_RIGHT, _WRONG = ":green[:material/check_circle:]", ":red[:material/cancel:]"


def show(item: Item, *, wrong_too: bool = False) -> None:
    """The right option, number or order and why it is right. ``wrong_too``: every option with its remark."""
    lang = language()
    if item.kind in ("choice", "several"):
        shown = [option for option in item.options if option.correct or wrong_too]
        for option in sorted(shown, key=lambda option: not option.correct):
            mark = _RIGHT if option.correct else _WRONG
            st.markdown(f"{mark} **{mend(option.text[lang])}**  \n{mend(option.feedback[lang])}")
        return
    if item.kind == "number":
        within = t("quiz.tolerance", tolerance=f"{item.tolerance:g}") if item.tolerance else ""
        st.markdown(f"{_RIGHT} **{item.answer:g} {item.unit[lang]}**{within}")
    else:
        st.markdown("\n".join(f"{place}. {mend(step.text[lang])}" for place, step in enumerate(item.steps, start=1)))
    for said in grade(item, correct_answer(item)).notes:
        st.markdown(mend(said.text[lang]))
