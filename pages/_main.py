"""The frame of the lab: page settings, language, who the learner is, navigation, the engine's state.

It runs before every page and on every rerun, so it must never wait for the engine. Lessons come from the catalogue: a
lesson whose page file exists is in the navigation, under a stable address that is never translated.
"""

from pathlib import Path

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.catalog import load_lessons
from pages._ui import layout, present, run_panel, session
from pages._ui.badges import page_shows
from pages._ui.i18n import t
from pages._ui.present import notes

st.set_page_config(page_title="Token by Token · 逐词", page_icon=layout.FAVICON, layout="wide")
lang = session.choose_language()
session.see_engine()

lessons = [lesson for lesson in load_lessons() if (Path(__file__).parent / f"p_{lesson.id}.py").exists()]
home = st.Page("p_home.py", title=t("common.nav_home"), icon=":material/home:", default=True)
lesson_pages = {
    lesson.id: st.Page(
        f"p_{lesson.id}.py",
        title=f"{index} · {lesson.title[lang]}",  # a number and no icon: icons with two digits there are none
        url_path=lesson.id.replace("_", "-"),
        help=lesson.goal[lang],
    )
    for index, lesson in enumerate(lessons, start=1)
}
playground = st.Page(
    "p_playground.py",
    title=t("playground.title"),
    url_path="playground",
    icon=":material/science:",
    help=t("playground.goal"),
)
page = st.navigation([home, *lesson_pages.values(), playground], position="hidden")
layout.page_chrome(lang, page.url_path)
shown = next((lesson_id for lesson_id, p in lesson_pages.items() if p.url_path == page.url_path), None)
experiments = {lesson.id: lesson.title[lang] for lesson in lessons}  # what may be running, by id
if page.url_path != playground.url_path:
    experiments |= {name: t("playground.title") for name in ("playground", "what_if")}

asked = present.mode() if shown is not None else ""
if not asked:
    layout.logo()
    with st.sidebar:
        layout.navigation(home, lessons, lesson_pages, playground)
        layout.engine_card()
        run_panel.background(shown, experiments)

with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", key="top_bar"):
    if shown is not None:
        present.link(page)
    session.language_switch()
with st.container():  # always there: what comes and goes must not move, and so rebuild, the form somebody is filling in
    session.language_notice()
    layout.store_notice(lang)
st.session_state["_lesson_pages"] = lesson_pages
page_shows(None)
if asked == present.NOTES:
    notes.draw(find_lesson(shown), page.url_path)
else:
    if asked == present.STAGE:
        present.stage(page.url_path)
    page.run()
    if shown is not None and not asked:
        layout.next_page(shown, lessons, lesson_pages, playground)
        session.keep_place(shown)
