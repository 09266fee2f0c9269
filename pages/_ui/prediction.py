"""The prediction lock: a learner commits to an answer before the engine gives one, and sees how far off it was.

A prediction belongs to the settings it was made for: changing them before the run voids it. It is kept in the database,
so a reload neither unlocks nor forgets it. The answer is read from the Run by ``lessons.run_facts``, never typed.
Invariant: once locked, the value of an attempt never changes; the first finished run of those settings settles it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from engine.lab.records import Run
from lessons.catalog import Lesson, Prediction, compare
from lessons.run_facts import FactsError, prediction_answers
from lessons.store import StoredPrediction
from pages._ui import present, session
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.prediction_words import allowed, outside, say, verdict, with_unit
from pages._ui.present import hands


def fingerprint(settings: Mapping[str, Any]) -> str:
    """What the prediction was made for, as a short text. Pure."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Lock:
    """The state of the current attempt. ``settled`` means that a run has answered it."""

    attempt: int
    locked: bool
    settled: bool
    ever_settled: bool
    values: dict[str, StoredPrediction]

    @property
    def may_run(self) -> bool:
        """The first run needs a locked prediction; after that the learner may explore freely."""
        return self.locked or self.ever_settled


def read(lesson: Lesson, asked: Sequence[Prediction], mark: str) -> Lock:
    """The lock for the settings with fingerprint ``mark``, from the database."""
    stored = session.store().predictions(session.learner(), lesson.id)
    kept = session.recall(f"locked:{lesson.id}") or {}
    ever_settled = any(p.run_id for p in stored)
    latest = max((p.attempt for p in stored), default=0)
    values = {p.prediction_id: p for p in stored if p.attempt == latest}
    complete = all(p.id in values for p in asked)
    settled = bool(values) and all(p.run_id for p in values.values())
    again = st.session_state.get(f"predict_again:{lesson.id}") == latest
    fits = kept.get("attempt") == latest and kept.get("mark") == mark
    if not values or again or not complete or not (settled or fits):
        return Lock(latest + 1, False, False, ever_settled, {})
    return Lock(latest, True, settled, ever_settled, values)


def panel(lesson: Lesson, asked: Sequence[Prediction], mark: str) -> Lock:
    """Draw the step: the form while it is open, the locked values after that. Returns the lock.

    On the stage the room predicts: nothing is locked, and nothing has to be.
    """
    if present.on_stage():
        hands.ask(lesson, asked)
        return Lock(1, locked=True, settled=False, ever_settled=True, values={})
    lock = read(lesson, asked, mark)
    if lock.locked:
        _locked(lesson, asked, lock)
    else:
        stored = session.store().predictions(session.learner(), lesson.id)
        if stored and not lock.ever_settled:
            st.info(t("predict.void"), icon=":material/lock_open:")
        _form(lesson, asked, lock, mark)
    return lock


def _form(lesson: Lesson, asked: Sequence[Prediction], lock: Lock, mark: str) -> None:
    lang = language()
    with st.form(f"predict_{lesson.id}", enter_to_submit=False):
        st.markdown(t("predict.why"))
        for prediction in asked:
            key = _key(lesson, prediction, lock.attempt)
            if prediction.kind == "number":
                low, high = allowed(prediction)
                # No limits for the browser: there a value outside is a red mark without a word, and never gets here.
                st.number_input(
                    with_unit(prediction.prompt[lang], prediction.unit[lang], lang),
                    value=None,
                    step=1 if prediction.whole else 0.01,
                    key=key,
                    placeholder=t("predict.placeholder", low=low, high=high),
                    help=prediction.hint[lang] if prediction.hint else None,
                )
            else:
                texts = {o.id: o.text[lang] for o in prediction.options}
                st.radio(
                    prediction.prompt[lang],
                    options=list(texts),
                    format_func=texts.__getitem__,
                    index=None,
                    key=key,
                    help=prediction.hint[lang] if prediction.hint else None,
                )
        sent = st.form_submit_button(t("predict.commit"), type="primary", icon=":material/lock:")
    if sent:
        _commit(lesson, asked, lock, mark)


def _commit(lesson: Lesson, asked: Sequence[Prediction], lock: Lock, mark: str) -> None:
    values = {p.id: st.session_state.get(_key(lesson, p, lock.attempt)) for p in asked}
    wrong = [outside(p, values[p.id]) for p in asked if p.kind == "number"]
    for sentence in filter(None, wrong):
        st.error(sentence)
    if any(value is None for value in values.values()):
        st.error(t("predict.incomplete"))
        return
    if any(wrong):
        return
    for prediction_id, value in values.items():
        session.store().save_prediction(session.learner(), lesson.id, prediction_id, value, lock.attempt)
    session.remember(f"locked:{lesson.id}", {"attempt": lock.attempt, "mark": mark})
    st.session_state.pop(f"predict_again:{lesson.id}", None)
    st.rerun()


def _key(lesson: Lesson, prediction: Prediction, attempt: int) -> str:
    return f"predict:{lesson.id}:{prediction.id}:{attempt}"


def _locked(lesson: Lesson, asked: Sequence[Prediction], lock: Lock) -> None:
    lang = language()
    with st.container(border=True, key=f"locked_{lesson.id}"):
        st.markdown(f":material/lock: **{t('predict.locked')}**")
        for prediction in asked:
            value = lock.values[prediction.id].value
            st.markdown(f"{prediction.prompt[lang]}  \n**{say(prediction, value)}**")
        if lock.settled:
            st.button(
                t("predict.again"),
                key=f"predict_again_button:{lesson.id}",
                icon=":material/lock_open:",
                on_click=lambda: st.session_state.update({f"predict_again:{lesson.id}": lock.attempt}),
            )


# ------------------------------------------------------------------------------------------------- after the run
def settle(lesson: Lesson, runs: Mapping[str, Run], asked: Sequence[Prediction], mark: str) -> None:
    """Record what the finished Runs answer to the locked prediction. Idempotent: the first run counts."""
    lock = read(lesson, asked, mark)
    if present.on_stage() or not lock.locked or lock.settled:
        return
    try:
        answers = prediction_answers(lesson.id, dict(runs))
    except FactsError:  # the run ended before it could answer; the prediction stays open
        return
    last = list(runs.values())[-1]
    for prediction_id in lock.values:
        if prediction_id in answers:
            session.store().settle_prediction(
                session.learner(), lesson.id, prediction_id, lock.attempt, last.run_id, answers[prediction_id]
            )


def outcome(lesson: Lesson) -> None:
    """Each settled prediction of the latest attempt beside what the run gave."""
    if present.on_stage():
        hands.outcome(lesson)
        return
    stored = session.store().predictions(session.learner(), lesson.id)
    settled = [p for p in stored if p.run_id is not None]
    if not settled:
        return
    latest = settled[-1].attempt
    with st.container(border=True, key=f"outcome_{lesson.id}"):
        st.markdown(f":material/fact_check: **{t('predict.outcome')}**")
        run = session.store().run(settled[-1].run_id)
        for kept in (p for p in settled if p.attempt == latest):
            prediction = lesson.prediction(kept.prediction_id)
            st.markdown(
                f"{prediction.prompt[language()]}  \n"
                + t("predict.said", said=say(prediction, kept.value), was=say(prediction, kept.answer))
                + f" {badge('measured', run)}  \n**{verdict(compare(kept.value, kept.answer))}**"
            )
        if run is not None:
            provenance(run)
            if run.run_id not in {r.run_id for r in session.store().latest_runs(session.learner(), lesson.id).values()}:
                note(t("predict.first_run"))
