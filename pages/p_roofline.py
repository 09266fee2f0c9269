"""The roofline: prompts of four lengths and decode with 1 to 16 requests, each a point under this device's roof."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.roofline import scenarios
from lessons.run_facts import FactsError, facts
from pages._ui import (
    ceilings_card,
    claims_table,
    explain,
    jobs,
    layout,
    links,
    prediction,
    quiz_form,
    roofline_views,
    session,
    study,
)
from pages._ui.badges import note
from pages._ui.i18n import language, t

DTYPE = links.ChoiceSetting("rf_dtype", "float32", ("float32", "bfloat16"))
DEVICE = links.ChoiceSetting("rf_device", roofline_views.DEFAULT_DEVICE, roofline_views.OFFERED)

lang = language()
lesson = find_lesson("roofline")
layout.lesson_header(lesson, lang)
links.restore([DTYPE, DEVICE])
links.show_notices([DTYPE, DEVICE])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("roofline.dtype"), options=DTYPE.choices, key=DTYPE.key, required=True, help=t("roofline.dtype_help")
)
dtype = links.publish([DTYPE])[DTYPE.key]
mark = prediction.fingerprint({"dtype": dtype})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, dtype, lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("roofline.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, roofline_views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
try:
    facts(lesson.id, runs)
    complete = True
except FactsError:
    complete = False

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("roofline.no_run"))
    layout.later_steps("compare", "why")
else:
    header = next(iter(runs.values())).header
    if header.dtype != dtype:
        st.info(t("roofline.other_dtype", dtype=header.dtype), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    roofline_views.this_device(runs)
    ceilings_card.draw(session.device(), header.device, header.dtype)
    st.selectbox(
        t("roofline.device"),
        options=DEVICE.choices,
        format_func=roofline_views.device_name,
        key=DEVICE.key,
        help=t("roofline.device_help"),
    )
    roofline_views.another_device(runs, links.publish([DTYPE, DEVICE])[DEVICE.key])
    roofline_views.all_ridges(runs)
    layout.step_header("compare")
    roofline_views.comparison(runs)
    claims_table.draw(lesson.id, runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
