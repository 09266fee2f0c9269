"""Chunked prefill: a long prompt arrives among decoders, in one go and with four budgets; gaps against TTFT."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.chunked_prefill import scenarios
from pages._ui import chunked_prefill_views as views
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, session, study
from pages._ui.badges import note
from pages._ui.i18n import language, t

OTHERS = links.IntSetting("cp_others", scenarios.DEFAULT_OTHERS, 3, 12, scenarios.OTHERS)
LENGTH = links.IntSetting("cp_length", scenarios.DEFAULT_LENGTH, 192, 768, scenarios.LENGTHS)
BUDGET = links.IntSetting("cp_budget", 64, 32, 256, scenarios.BUDGETS)

lang = language()
lesson = find_lesson("chunked_prefill")
layout.lesson_header(lesson, lang)
links.restore([OTHERS, LENGTH, BUDGET])
links.show_notices([OTHERS, LENGTH, BUDGET])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("chunked_prefill.length"),
    options=LENGTH.choices,
    key=LENGTH.key,
    required=True,
    help=t("chunked_prefill.length_help"),
)
st.segmented_control(
    t("chunked_prefill.others"),
    options=OTHERS.choices,
    key=OTHERS.key,
    required=True,
    help=t("chunked_prefill.others_help"),
)
settings = links.publish([OTHERS, LENGTH])
others, length = settings[OTHERS.key], settings[LENGTH.key]
mark = prediction.fingerprint({"others": others, "length": length})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    asked = {"others": others, "length": length, "dtype": "float32", "lang": lang}
    first = jobs.Part(scenarios.WITHOUT, scenarios.without(others, lang=lang))
    return [first] + [jobs.Part(role, None, asked) for role in scenarios.ROLES[1:]]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("chunked_prefill.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
complete = views.complete(runs)

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("chunked_prefill.no_run"))
    layout.later_steps("compare", "why")
else:
    shown = views.settings_of(runs)
    if shown != (others, length):
        st.info(t("chunked_prefill.other_settings", others=shown[0], length=shown[1]), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    st.segmented_control(
        t("chunked_prefill.budget"),
        options=BUDGET.choices[::-1],
        key=BUDGET.key,
        required=True,
        help=t("chunked_prefill.budget_help"),
    )
    role = f"budget_{links.publish([OTHERS, LENGTH, BUDGET])[BUDGET.key]}"
    views.player(runs, role)
    views.gaps(runs, role)
    views.trade_off(runs, role)
    layout.step_header("compare")
    views.comparison(runs, role)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
