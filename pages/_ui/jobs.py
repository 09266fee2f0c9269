"""A lesson's experiment as a job: one or more scenarios that run one after the other on the engine.

The job's state is a small JSON value kept in the session and in the database, so it survives reruns, page switches and
reloads; what runs is the engine's business, and a page only asks how far it is. A finished Run is fetched and stored
before the next part starts. Nothing is drawn here. Invariant: a job that is not active has no run in the engine that
this lab still waits for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import streamlit as st

from engine.lab.records import Run, StepRecord
from engine.lab.scenario import Scenario, ScenarioError
from engine.server.client import EngineRefused, EngineUnavailable, RunStatus
from lessons.facts_error import FactsError
from lessons.later import later_scenario
from lessons.parts import Part, fingerprint
from lessons.stored import experiment_of
from pages._ui import session

__all__ = ["Job", "JobState", "Part", "View", "current", "dismiss", "finished", "follow", "start", "stop"]

JobState = Literal["active", "done", "stopped", "cancelled", "failed", "refused", "busy", "full", "lost", "unreachable"]

_STEPS = "_live_steps"
_CARRYING_ON: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # a learner's tabs, one at a time


@dataclass
class Job:
    """What is kept of an experiment. ``run_ids`` grows as parts are submitted; ``index`` is the part at hand.

    ``experiment`` is what its Runs share in the database.
    """

    lesson_id: str
    parts: list[dict[str, Any]]
    mark: str
    run_ids: list[str] = field(default_factory=list)
    index: int = 0
    state: JobState = "active"
    error: str = ""
    experiment: str = ""

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def label(self) -> str:
        return self.parts[min(self.index, len(self.parts) - 1)]["label"]


@dataclass(frozen=True)
class View:
    """What can be drawn of a job now. ``status`` is None while the engine does not answer."""

    job: Job
    status: RunStatus | None
    waiting_for_engine: bool = False
    steps: Sequence[StepRecord] = ()  # of the part at hand, from its first step on


def current(lesson_id: str) -> Job | None:
    """The lesson's job: of this session, or after a reload the one kept in the database."""
    key = _key(lesson_id)
    if key not in st.session_state:
        kept = session.recall(key)
        st.session_state[key] = Job(**kept) if isinstance(kept, Mapping) else None
    return st.session_state[key]


def start(lesson_id: str, parts: Sequence[Part], mark: str) -> Job:
    """Submit the first part. Effect: the job is kept, also when it is refused, and the lesson shows own Runs."""
    kept = [part.plain() for part in parts]
    job = Job(lesson_id, kept, mark, experiment=fingerprint(kept))
    session.store().show_recorded(session.learner(), lesson_id, False)
    _submit(job)
    return _keep(job)


def stop(lesson_id: str) -> None:
    """Cancel the run at hand. Effect: the engine frees its blocks between two steps; finished parts stay stored."""
    job = current(lesson_id)
    if job is None or not job.active:
        return
    if len(job.run_ids) > job.index:
        with contextlib.suppress(EngineUnavailable, EngineRefused):  # gone already is what was wanted
            session.client().cancel(job.run_ids[job.index])
    job.state = "stopped"
    _keep(job)


def dismiss(lesson_id: str) -> None:
    """Forget a job that is over. Its stored Runs stay."""
    st.session_state[_key(lesson_id)] = None
    session.remember(_key(lesson_id), None)


def follow(lesson_id: str) -> View | None:
    """Ask the engine how far the job is, and carry it on: store a finished part, submit the next one.

    Effect: renews the run's lease; may store Runs and end the job. None when there is no job.
    """
    session.give_way()
    job = current(lesson_id)
    if job is None or not job.active:
        return None if job is None else View(job, None)
    if len(job.run_ids) <= job.index:
        with _CARRYING_ON[session.learner()]:
            job = _as_far_as_any_tab(job)
            if len(job.run_ids) <= job.index:
                _submit(job)
                _keep(job)
        if not job.active:
            return View(job, None)
    try:
        run_id = job.run_ids[job.index]
        steps = _steps(run_id)
        status = session.client().follow(run_id, since=len(steps))
        steps.extend(status.steps)
        if status.state == "done":
            _store(job, run_id)
    except EngineUnavailable as error:
        if error.restarted:
            job.state = "lost"
            return View(_keep(job), None)
        return View(job, None, waiting_for_engine=True)
    except EngineRefused as error:
        job.state, job.error = "failed", error.message
        return View(_keep(job), None)
    if status.state == "done":
        with _CARRYING_ON[session.learner()]:
            ahead = _as_far_as_any_tab(job)
            if ahead is job:
                job.index += 1
                if job.index == len(job.parts):
                    job.state = "done"
                _keep(job)
        return View(ahead, status, steps=tuple(steps))
    if status.state in ("failed", "cancelled"):
        job.state, job.error = status.state, status.error or ""
        _keep(job)
    return View(job, status, steps=tuple(steps))


def _steps(run_id: str) -> list[StepRecord]:
    """Steps of a run this session has had already: they are not sent again. Only one run's steps are kept."""
    kept = st.session_state.get(_STEPS)
    if kept is None or kept[0] != run_id:
        kept = st.session_state[_STEPS] = (run_id, [])
    return kept[1]


def finished(job: Job) -> dict[str, Run]:
    """The stored Runs of the parts that are done, by label."""
    stored = {part["label"]: session.store().run(run_id) for part, run_id in zip(job.parts, job.run_ids, strict=False)}
    return {label: run for label, run in list(stored.items())[: job.index] if run is not None}


def _as_far_as_any_tab(job: Job) -> Job:
    """``job``, or the same one where another tab of this learner has carried it further. Effect: this session takes it.

    Without this, every tab that watches an experiment would submit its next part once more.
    """
    kept = session.recall(_key(job.lesson_id))
    other = Job(**kept) if isinstance(kept, Mapping) else job
    same = other.experiment == job.experiment and other.run_ids[: len(job.run_ids)] == job.run_ids
    if not same or (len(other.run_ids), other.index) <= (len(job.run_ids), job.index):
        return job
    st.session_state[_key(job.lesson_id)] = other
    return other


def _submit(job: Job) -> None:
    part = job.parts[job.index]
    try:
        if part["scenario"] is None:
            made = later_scenario(job.lesson_id, part["label"], part["asked"], finished(job))
            part["scenario"] = made.model_dump(mode="json")
        scenario = Scenario.parse(part["scenario"])
    except (FactsError, ScenarioError) as error:
        job.state, job.error = "failed", str(error)
        return
    try:
        job.run_ids.append(session.client().submit(scenario, session.learner()).run_id)
    except EngineRefused as error:
        states: dict[str, JobState] = {"own_runs": "busy", "queue_full": "full", "shutting_down": "unreachable"}
        job.state, job.error = states.get(error.code, "refused"), error.message
    except EngineUnavailable:
        job.state = "unreachable"


def _store(job: Job, run_id: str) -> None:
    client = session.client()
    run: Run = client.fetch_run(run_id)
    spoken = client.fetch_texts(run_id)
    session.store().save_run(
        run,
        spoken.texts,
        job.lesson_id,
        session.learner(),
        pieces=spoken.pieces,
        role=job.label,
        experiment=job.experiment or experiment_of([part["scenario"] for part in job.parts]),
    )


def _keep(job: Job) -> Job:
    st.session_state[_key(job.lesson_id)] = job
    session.remember(_key(job.lesson_id), vars(job))
    return job


def _key(lesson_id: str) -> str:
    return f"job:{lesson_id}"
