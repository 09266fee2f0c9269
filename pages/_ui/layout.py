"""The frame every page shares: language of the document, headings in lesson order, the engine's state in the sidebar.

It draws and never computes. Headings carry language-neutral anchors, so a link to a section works in both languages.
"""

from __future__ import annotations

import json

import streamlit as st

from lessons.catalog import Lesson
from pages._ui import session
from pages._ui.badges import escape
from pages._ui.i18n import t
from pages._ui.units import byte_count, number

STEPS = ("predict", "run", "look", "compare", "why", "quiz")
_HTML_LANG = {"en": "en", "zh": "zh-CN"}


def set_html_language(lang: str) -> None:
    """Tell browsers and screen readers which language the page speaks. Streamlit itself always says English."""
    st.html(
        f"<script>document.documentElement.lang = {json.dumps(_HTML_LANG[lang])}</script>",
        unsafe_allow_javascript=True,
    )


def lesson_header(lesson: Lesson, lang: str) -> None:
    """Title, the goal in one sentence, and what this lesson puts right."""
    st.title(lesson.title[lang], anchor=False)
    st.markdown(f"#### {lesson.goal[lang]}")
    st.caption(t("common.lesson_minutes", minutes=lesson.minutes))


def step_header(step: str) -> None:
    """Heading of one of the fixed steps of a lesson, numbered in their order."""
    st.header(f"{STEPS.index(step) + 1} · {t(f'common.step_{step}')}", anchor=step, divider="gray")


def later_steps(*steps: str) -> None:
    """The headings of steps that come after the run, so that the way ahead is visible before it."""
    for step in steps:
        step_header(step)
        st.caption(t("common.after_run"))


# ------------------------------------------------------------------------------------------------- sidebar
def engine_card() -> None:
    """Engine state, device and model. It looks again on its own: soon while the engine starts, seldom once it runs."""
    state = session.engine_state()
    st.fragment(_engine_card, run_every=10 if state.ready else 1.5)(state.ready)


def _engine_card(was_ready: bool) -> None:
    state = session.engine_state()
    if state.ready != was_ready:
        st.rerun()  # the page's buttons and the pace of this fragment depend on it
    with st.container(border=True, key="engine_card"):
        st.markdown(f"**{t('common.engine')}** · {engine_word(state)}")
        if state.state in ("starting", "loading"):
            if state.fraction is not None:
                st.progress(min(max(state.fraction, 0.0), 1.0), text=stage_word(state.stage))
            elif state.stage:
                st.caption(stage_word(state.stage))
        if state.state == "failed":
            st.error(t("common.engine_failed_why", message=escape(state.message)))
        if state.state == "down":
            st.caption(t("common.engine_down_hint"))
        _device_lines()


def _device_lines() -> None:
    about = session.device()
    if about is None:
        return
    device, model = about.get("device") or {}, about.get("default_model") or {}
    if device:
        st.caption(t("common.device_line", name=escape(device["name"]), threads=device["threads"]))
    if model:
        lang = session.i18n.language()
        st.caption(
            t(
                "common.model_line",
                name=escape(model["name"]),
                parameters=number(model["num_parameters"] / 1e6, lang),
                size=byte_count(model["weight_bytes"], lang),
            )
        )


def engine_word(state: session.EngineState) -> str:
    colour = {"ready": "green", "failed": "red", "down": "red"}.get(state.state, "orange")
    icon = {"ready": "check_circle", "failed": "error", "down": "cloud_off"}.get(state.state, "hourglass_top")
    return f":{colour}[:material/{icon}:] {t(f'common.engine_{state.state}')}"


def stage_word(stage: str) -> str:
    """The engine names its stages by short ids; one we have no word for is shown as it is."""
    try:
        return t(f"common.stage_{stage}")
    except KeyError:
        return escape(stage)


def store_notice(lang: str) -> None:
    """Say it when the learner's records were lost or will be."""
    notice = session.store().notice_in(lang)
    if notice:
        st.warning(escape(notice), icon=":material/database_off:")
