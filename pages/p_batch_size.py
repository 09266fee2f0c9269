"""Batching: the same decode with 1 to 32 requests at once, what it gains, where it stops paying, and what it costs."""

import streamlit as st

from lessons.batch_size import scenarios
from lessons.catalog import lesson as find_lesson
from lessons.run_facts import FactsError, facts
from pages._ui import (
    batch_size_elsewhere,
    batch_size_views,
    claims_table,
    explain,
    jobs,
    layout,
    links,
    prediction,
    quiz_form,
    session,
    study,
)
from pages._ui.badges import note
from pages._ui.i18n import language, t

CONTEXT = links.IntSetting("bs_context", scenarios.CONTEXTS[0], *scenarios.CONTEXTS, choices=scenarios.CONTEXTS)
DEVICE = links.ChoiceSetting("bs_device", batch_size_elsewhere.DEFAULT_DEVICE, batch_size_elsewhere.DEVICES)
MODEL = links.ChoiceSetting("bs_model", batch_size_elsewhere.DEFAULT_MODEL, batch_size_elsewhere.MODELS)

lang = language()
lesson = find_lesson("batch_size")
layout.lesson_header(lesson, lang)
links.restore([CONTEXT, DEVICE, MODEL])
links.show_notices([CONTEXT, DEVICE, MODEL])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("batch_size.context"),
    options=CONTEXT.choices,
    format_func=lambda tokens: t("batch_size.context_value", n=tokens),
    key=CONTEXT.key,
    required=True,
    help=t("batch_size.context_help"),
)
context = links.publish([CONTEXT])[CONTEXT.key]
mark = prediction.fingerprint({"context": context})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, context=context, lang=lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("batch_size.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, batch_size_views.so_far)

stored = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
runs = {role: stored[role] for role in scenarios.ROLES if role in stored}
try:
    shown = facts(lesson.id, runs)["context"]
    complete = True
except FactsError:
    complete = False

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("batch_size.no_run"))
    layout.later_steps("compare", "why")
else:
    if shown != context:
        st.info(t("batch_size.other_context", n=shown), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    batch_size_views.gains(runs)
    batch_size_views.used(runs)
    st.subheader(t("batch_size.price"), anchor=False)
    batch_size_views.price(runs)
    layout.step_header("compare")
    batch_size_views.comparison(runs)
    left, right = st.columns(2)
    with left:
        st.selectbox(
            t("batch_size.device"),
            options=DEVICE.choices,
            format_func=batch_size_elsewhere.device_name,
            key=DEVICE.key,
            help=t("batch_size.device_help"),
        )
    with right:
        st.selectbox(
            t("batch_size.model"), options=MODEL.choices, format_func=batch_size_elsewhere.model_name, key=MODEL.key
        )
    chosen = links.publish([CONTEXT, DEVICE, MODEL])
    batch_size_elsewhere.draw(chosen[DEVICE.key], chosen[MODEL.key])
    claims_table.draw(lesson.id, runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
