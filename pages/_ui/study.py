"""A study: many short parts under one button, with progress over all of them, Stop, and points as they come.

It stands on ``run_panel`` and ``jobs`` and decides only when a picture is drawn. The progress bar looks twice a second;
the picture of the Runs so far is drawn once per finished part, while the device is idle between two of them, because
drawing on the machine that is being measured would show in the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from engine.lab.records import Run
from lessons.catalog import Lesson
from pages._ui import jobs, run_panel
from pages._ui.i18n import t


def panel(
    lesson: Lesson,
    make_parts: Callable[[], Sequence[jobs.Part]],
    mark: str,
    blocked: str | None,
    on_done: Callable[[jobs.Job], None],
    draw: Callable[[Mapping[str, Run]], None],
) -> bool:
    """Draw the run step of a study; the arguments are those of ``run_panel.panel``. Returns whether it is going on.

    ``draw`` shows the Runs there are so far, by label: once for each part that has finished.
    """
    job = jobs.current(lesson.id)
    if job is not None and job.active:
        st.session_state[_drawn_key(lesson.id)] = _place(job)
    run_panel.panel(lesson, make_parts, mark, blocked, on_done, body=_progress)
    job = jobs.current(lesson.id)
    if job is None or not job.active:
        return False
    runs = jobs.finished(job)
    if runs:
        draw(runs)
    return True


def _progress(view: jobs.View) -> None:
    """How far the whole study is. Effect: reruns the page when a part has finished since it was drawn."""
    job, status = view.job, view.status
    if st.session_state.get(_drawn_key(job.lesson_id)) != _place(job):
        st.rerun()
    within = status.fraction if status is not None and status.state == "running" else 0.0
    name = run_panel.part_name(job.lesson_id, job.label)
    text = t("study.part", index=job.index + 1, count=len(job.parts), name=name)
    if status is not None and status.state == "queued":
        text = f"{text} · {t('run.queued', position=status.position)}"
    st.progress(min((job.index + within) / len(job.parts), 1.0), text=text)


def _place(job: jobs.Job) -> tuple[str, int]:
    return (job.run_ids[0] if job.run_ids else "", job.index)


def _drawn_key(lesson_id: str) -> str:
    return f"_study_drawn:{lesson_id}"
