"""The run step of a lesson: the button and why it is not yet to be pressed, live progress, stop, and how it ended.

Progress is a fragment that looks twice a second while something runs, and more seldom while many wait before it; it
draws snapshots of the engine's job, so that a rerun, a page switch or a reload loses nothing. Model output is shown as
plain text only, never as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import streamlit as st

from engine.lab.device import OTHERS_LIMIT, STEAL_LIMIT
from engine.lab.scenario import Scenario
from engine.server.client import RunStatus
from pages._ui import jobs, recorded_run, session
from pages._ui.badges import note
from pages._ui.engine_words import said
from pages._ui.i18n import catalogue, language, t
from pages._ui.player import partial_run, timeline_player
from pages._ui.units import percent

FOLLOW_S = 0.5
FOLLOW_FAR_S = 3.0  # for those who wait far back: a class that looked twice a second would take the engine's cores
FAR = 3  # places in the line from which on one is far back
BACKGROUND_FOLLOW_S = 2.0
_TAIL = 70  # characters of each text while several requests run


class Owner(Protocol):
    """Whose experiment it is: a lesson, or another page that runs something. One experiment at a time for an id."""

    @property
    def id(self) -> str: ...


def panel(
    lesson: Owner,
    make_parts: Callable[[], Sequence[jobs.Part]],
    mark: str,
    blocked: str | None,
    on_done: Callable[[jobs.Job], None],
    live: Callable[[jobs.View], None] | None = None,
    body: Callable[[jobs.View], None] | None = None,
) -> None:
    """Draw the step. ``blocked`` is the sentence that keeps the button disabled, None when it may be pressed.

    ``make_parts`` is called when the button is pressed; ``on_done`` once, when every part is stored. ``live`` draws
    what a lesson wants to show of the part at hand while it runs, below the text so far; ``body`` draws the progress
    in place of place in the queue, tokens, text and timeline.
    """
    job = jobs.current(lesson.id)
    active = job is not None and job.active
    reason = t("run.already") if active else blocked or _engine_reason()
    with st.container(horizontal=True, gap="small", key=f"run_buttons_{lesson.id}"):
        pressed = st.button(
            t("run.start"),
            key=f"run_{lesson.id}",
            type="primary",
            icon=":material/play_arrow:",
            disabled=reason is not None,
        )
        if not active:
            recorded_run.button(lesson, make_parts, mark, blocked, on_done)
    if reason is not None and not active:
        can_see = blocked is None and recorded_run.is_offered(lesson)
        note(f":material/info: {t('recorded.without_engine', reason=reason) if can_see else reason}")
    if pressed and reason is None:
        job = jobs.start(lesson.id, make_parts(), mark)
        st.rerun()
    if not active and recorded_run.banner(lesson, make_parts):
        return
    if job is not None and job.active:
        pace_s = st.session_state.setdefault(_pace_key(lesson.id), FOLLOW_S)
        st.fragment(_live, run_every=pace_s)(lesson.id, live, body)
    elif job is not None:
        if job.state == "done" and not st.session_state.get(f"_settled:{job.run_ids[-1]}"):
            st.session_state[f"_settled:{job.run_ids[-1]}"] = True
            on_done(job)
        _ended(lesson, job, make_parts, mark, blocked)


def _engine_reason() -> str | None:
    state = session.engine_state()
    return None if state.ready else t(f"run.engine_{state.state}")


def _live(lesson_id: str, draw: Callable[[jobs.View], None] | None, body: Callable[[jobs.View], None] | None) -> None:
    view = jobs.follow(lesson_id)
    if view is None or not view.job.active:
        st.rerun()  # the whole page has something new to show
    job, status = view.job, view.status
    _keep_pace(lesson_id, status)
    with st.container(border=True, key=f"live_{lesson_id}"):
        if view.waiting_for_engine or status is None:
            st.markdown(f":material/sync_problem: {t('run.no_answer')}")
        elif body is not None:
            body(view)
        elif status.state == "queued":
            st.markdown(f":material/hourglass_top: {_part_name(job)}{t('run.queued', position=status.position)}")
            st.progress(0.0, text=t("run.queued_hint"))
        else:
            done, total = status.num_tokens, max(status.total_tokens, 1)
            st.progress(min(done / total, 1.0), text=_part_name(job) + t("run.tokens", done=done, total=total))
        st.button(
            t("run.stop"),
            key=f"stop_{lesson_id}",
            icon=":material/stop:",
            on_click=jobs.stop,
            args=(lesson_id,),
        )
        if body is None and status is not None and status.state != "queued":
            _timeline(view)
            _texts(status.texts)
            if draw is not None:
                draw(view)


def _keep_pace(lesson_id: str, status: RunStatus | None) -> None:
    """Look often while it runs or soon will, seldom while many are before it. Effect: a change reruns the page."""
    is_far = status is not None and status.state == "queued" and status.position >= FAR
    pace_s, key = FOLLOW_FAR_S if is_far else FOLLOW_S, _pace_key(lesson_id)
    if st.session_state.get(key, FOLLOW_S) != pace_s:
        st.session_state[key] = pace_s
        st.rerun()


def _pace_key(lesson_id: str) -> str:
    return f"_pace:{lesson_id}"


def _part_name(job: jobs.Job) -> str:
    if len(job.parts) == 1:
        return ""
    name = part_name(job.lesson_id, job.label)
    return t("run.part", index=job.index + 1, count=len(job.parts), name=name)


def part_name(lesson_id: str, label: str, lang: str | None = None) -> str:
    """What a part of an experiment is called: the lesson's own name for it, else that of the policy."""
    words = catalogue(lang or language())
    own = f"{lesson_id}.part_{label}"
    return words[own] if own in words else words[f"common.policy_{label}"]


def _texts(texts: dict[str, str]) -> None:
    """What the model has said so far, as plain text."""
    if len(texts) == 1:
        st.code(next(iter(texts.values())) or " ", language=None, wrap_lines=True, height=180)
    elif texts:
        lines = [f"{name} │ {text[-_TAIL:].replace(chr(10), ' ')}" for name, text in texts.items()]
        st.code("\n".join(lines), language=None, height=min(60 + 24 * len(lines), 260))


def _timeline(view: jobs.View) -> None:
    """The run's timeline as it grows, where several requests share it."""
    job, status = view.job, view.status
    if status is None or not view.steps or len(status.texts) < 2:
        return
    scenario = Scenario.parse(job.parts[job.index]["scenario"])
    label = part_name(job.lesson_id, job.label)
    grown = partial_run(scenario, view.steps, status.run_id)
    timeline_player([(label, grown)], lang=language(), key=f"live_{status.run_id}", live=True)


def _ended(lesson: Owner, job: jobs.Job, make_parts: Callable, mark: str, blocked: str | None) -> None:
    if job.state == "done":
        st.success(t("run.done"), icon=":material/check_circle:")
        _tell_disturbance(job)
        if job.mark != mark:
            note(f":material/tune: {t('run.other_settings')}")
        return
    if job.state == "stopped":
        st.info(t("run.stopped"), icon=":material/stop_circle:")
        return
    message = t(f"run.ended_{job.state}", message=said(job.error))
    st.error(message, icon=":material/error:")
    reason = blocked or _engine_reason()
    if st.button(t("run.retry"), key=f"retry_{lesson.id}", icon=":material/replay:", disabled=reason is not None):
        jobs.start(lesson.id, make_parts(), mark)
        st.rerun()


def _tell_disturbance(job: jobs.Job) -> None:
    """One sentence where the machine was busy with something else while it was measured."""
    found = [run.header.disturbance for run in jobs.finished(job).values()]
    noisy = [known for known in found if known is not None and known.is_noisy]
    others = max((known.others_share or 0 for known in noisy), default=0)
    stolen = max((known.steal_share or 0 for known in noisy), default=0)
    if others > OTHERS_LIMIT:
        note(f":material/vibration: {t('run.others_busy', share=percent(others, language()))}")
    elif stolen > STEAL_LIMIT:
        note(f":material/vibration: {t('run.time_stolen', share=percent(stolen, language()))}")


def background(shown_lesson: str | None, titles: dict[str, str]) -> None:
    """Follow the runs of the lessons that are not on the screen, so that leaving a page does not cancel its run."""
    others = [lesson_id for lesson_id in titles if lesson_id != shown_lesson]
    busy = [lesson_id for lesson_id in others if (job := jobs.current(lesson_id)) is not None and job.active]
    if busy:
        st.fragment(_follow_unseen, run_every=BACKGROUND_FOLLOW_S)(busy, titles)


def _follow_unseen(busy: list[str], titles: dict[str, str]) -> None:
    for lesson_id in busy:
        view = jobs.follow(lesson_id)
        if view is None or not view.job.active:
            st.rerun()
        if view.status is None:
            note(t("run.no_answer"))
        elif view.status.state == "queued":
            note(t("common.said_of", name=titles[lesson_id], said=t("run.queued", position=view.status.position)))
        else:
            share = view.status.num_tokens / max(view.status.total_tokens, 1)
            st.progress(min(share, 1.0), text=titles[lesson_id])
