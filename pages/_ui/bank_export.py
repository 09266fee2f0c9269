"""Banks of quiz items for instructors, as files that a learning platform can read.

A file is made when its button is pressed and not before: until then no key has left the server.
"""

from __future__ import annotations

import functools

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.catalog import load_lessons
from lessons.export_bank import to_gift, to_moodle_xml
from pages._ui import links
from pages._ui.badges import note
from pages._ui.i18n import language, t

BANK = links.ChoiceSetting("sm_bank", load_lessons()[0].id, tuple(lesson.id for lesson in load_lessons()))


def draw() -> None:
    """Which bank, and the two formats. Effect: Streamlit elements."""
    with st.expander(t("bank.title"), icon=":material/school:"):
        st.markdown(t("bank.text"))
        links.restore([BANK])
        st.selectbox(t("bank.which"), BANK.choices, format_func=_title, key=BANK.key)
        lesson_id, lang = links.publish([BANK])[BANK.key], language()
        with st.container(horizontal=True):
            st.download_button(
                t("bank.gift"),
                functools.partial(gift, lesson_id, lang),
                f"{lesson_id}.{lang}.gift.txt",
                "text/plain",
                key="bank_gift",
                on_click="ignore",
                icon=":material/download:",
            )
            st.download_button(
                t("bank.moodle"),
                functools.partial(moodle, lesson_id, lang),
                f"{lesson_id}.{lang}.moodle.xml",
                "application/xml",
                key="bank_moodle",
                on_click="ignore",
                icon=":material/download:",
            )
        note(t("bank.note"))


def _title(lesson_id: str) -> str:
    found = find_lesson(lesson_id)
    return f"{found.title[language()]} ({len(found.quiz)})"


def gift(lesson_id: str, lang: str) -> str:
    """The bank of a lesson in one language as GIFT. Pure."""
    return to_gift(find_lesson(lesson_id).quiz, lang, _category(lesson_id, lang))


def moodle(lesson_id: str, lang: str) -> str:
    """The bank of a lesson in one language as Moodle XML. Pure."""
    return to_moodle_xml(find_lesson(lesson_id).quiz, lang, _category(lesson_id, lang))


def _category(lesson_id: str, lang: str) -> str:
    return f"Token by Token/{find_lesson(lesson_id).title[lang]}"
