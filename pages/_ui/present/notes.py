"""The speaker's notes: the lesson's guide, step by step, following the stage in the other window.

It draws ``lessons.guide`` and nothing else; marking the step the stage is at is done in the browser (``notes.js``).
"""

from __future__ import annotations

import streamlit as st

from lessons import guide as guides
from lessons.catalog import Lesson, LessonError
from pages._ui import present
from pages._ui.badges import escape, note
from pages._ui.i18n import language, t
from pages._ui.prose import mend


def draw(lesson: Lesson, path: str) -> None:
    """The notes window of a lesson. Effect: Streamlit elements."""
    lang = language()
    present.notes_bar(path)
    st.title(lesson.title[lang], anchor=False)
    st.markdown(mend(lesson.goal[lang]))
    try:
        found = guides.guide(lesson.id, lang)
    except LessonError:
        st.info(t("present.no_guide"), icon=":material/menu_book:")
        return
    download(lesson)
    _section("aim", mend(found.aim))
    st.header(guides.TITLES[lang]["steps"], anchor="steps", divider="gray")
    spent = 0
    for step in found.steps:
        with st.container(key=f"note_step_{step.id}"):
            until = t("present.until", start=spent, end=spent + step.minutes)
            st.markdown(f"**{guides.TITLES[lang][step.id]} · {until}**")
            st.markdown(mend(step.text))
        spent += step.minutes
    _section("ask", _bullets(found.ask))
    st.header(guides.TITLES[lang]["misconceptions"], anchor="misconceptions", divider="gray")
    for belief, answer in zip(lesson.misconceptions[lang], found.misconceptions, strict=True):
        with st.container(border=True):
            st.markdown(f":material/psychology_alt: **{escape(belief)}**")
            st.markdown(mend(answer))
    _section("trouble", _bullets(found.trouble))
    note(t("present.keys"))


def download(lesson: Lesson) -> None:
    """The guide as a file."""
    lang = language()
    st.download_button(
        t("present.download"),
        guides.as_markdown(lesson, lang),
        file_name=f"{lesson.id}.guide.{lang}.md",
        mime="text/markdown",
        icon=":material/download:",
        key=f"guide_{lesson.id}",
        on_click="ignore",
    )


def _section(name: str, text: str) -> None:
    st.header(guides.TITLES[language()][name], anchor=name, divider="gray")
    st.markdown(text)


def _bullets(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {mend(item)}" for item in items)
