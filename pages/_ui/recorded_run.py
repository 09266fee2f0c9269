"""The recorded Runs of a lesson in place of an own run: the button, what it shows, and the way back.

It works without the engine: the locked prediction is settled, the pictures drawn, the quiz made from the Runs that ship
with the lesson. Every lesson gets it through ``run_panel``. It decides nothing about Runs; ``lessons.shown`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from lessons import recorded
from lessons.catalog import Lesson
from lessons.parts import Part, fingerprint
from pages._ui import jobs, session
from pages._ui.badges import escape
from pages._ui.i18n import language, t


def button(
    lesson: Lesson,
    make_parts: Callable[[], Sequence[Part]],
    mark: str,
    blocked: str | None,
    on_done: Callable[[jobs.Job], None],
) -> None:
    """The button that shows the recorded Runs, where a lesson has some and does not show them yet.

    Effect: when pressed, the lesson shows them; they settle the prediction if it was made for the same experiment.
    """
    if not is_offered(lesson):
        return
    pressed = st.button(
        t("recorded.show"),
        key=f"show_recorded_{lesson.id}",
        icon=":material/history:",
        disabled=blocked is not None,
        help=t("recorded.show_help"),
    )
    if pressed and blocked is None:
        session.store().show_recorded(session.learner(), lesson.id, True)
        asked = fingerprint([part.plain() for part in make_parts()])
        if asked in recorded.experiments(lesson.id):
            run_ids = [run.run_id for run in recorded.runs(lesson.id).values()]
            on_done(jobs.Job(lesson.id, [], mark, run_ids=run_ids, state="done"))
        st.rerun()


def is_offered(lesson: Lesson) -> bool:
    """Whether the lesson has recorded Runs and does not show them yet."""
    return recorded.exists(lesson.id) and not session.store().shows_recorded(session.learner(), lesson.id)


def banner(lesson: Lesson, make_parts: Callable[[], Sequence[Part]]) -> bool:
    """Say that the lesson shows recorded Runs, from where and when, and offer the own ones. Returns whether it does."""
    store, learner = session.store(), session.learner()
    if not store.shows_recorded(learner, lesson.id):
        return False
    origin = recorded.origin(next(iter(recorded.runs(lesson.id).values())))
    text = t("recorded.banner", device=escape(origin.device), threads=origin.threads, date=origin.date)
    asked = fingerprint([part.plain() for part in make_parts()])
    gap = "" if language() == "zh" else " "
    if asked not in recorded.experiments(lesson.id):
        text += gap + t("recorded.other_settings")
    elif asked != recorded.experiment(lesson.id):
        text += gap + t("recorded.other_language")
    st.info(text, icon=":material/history:")
    if store.own_runs(learner, lesson.id):
        st.button(
            t("recorded.back"),
            key=f"hide_recorded_{lesson.id}",
            icon=":material/undo:",
            on_click=store.show_recorded,
            args=(learner, lesson.id, False),
        )
    return True
