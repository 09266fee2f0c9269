"""Prefill and decode apart: one workload in one engine and in two processes, what it mends and what is sent."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.disaggregation import scenarios
from lessons.disaggregation.pair import pair_of
from lessons.facts_error import FactsError
from pages._ui import disaggregation_elsewhere as elsewhere
from pages._ui import disaggregation_views as views
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, run_panel, session
from pages._ui.i18n import language, t

LONG = links.IntSetting("dg_long", scenarios.LONGS[0], 0, 0, scenarios.LONGS)
BUDGET = links.IntSetting("dg_budget", scenarios.BUDGETS[0], 0, 0, scenarios.BUDGETS)
LINK = links.IntSetting("dg_link", scenarios.LINKS[0], 0, 0, scenarios.LINKS)
KNOBS = (LONG, BUDGET, LINK)
DEVICE = links.ChoiceSetting("dg_device", elsewhere.DEFAULT_DEVICE, elsewhere.DEVICES)
MODEL = links.ChoiceSetting("dg_model", elsewhere.DEFAULT_MODEL, elsewhere.MODELS)

lang = language()
lesson = find_lesson("disaggregation")
layout.lesson_header(lesson, lang)
links.restore([*KNOBS, DEVICE, MODEL])
links.show_notices([*KNOBS, DEVICE, MODEL])
explain.before(lesson)

layout.step_header("predict")
for setting in KNOBS:
    name = setting.key.removeprefix("dg_")
    st.segmented_control(
        t(f"disaggregation.{name}"),
        options=setting.choices,
        format_func=lambda value, name=name: views.knob_value(name, value),
        key=setting.key,
        required=True,
        help=t(f"disaggregation.{name}_help"),
    )
chosen = links.publish(KNOBS)
knobs = {name: chosen[f"dg_{name}"] for name in ("long", "budget", "link")}
views.model_line()
mark = prediction.fingerprint(knobs)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, **knobs, lang=lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("disaggregation.run_both"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = pair_of(runs)
    shown = {role: runs[role] for role in scenarios.ROLES}
except FactsError:
    found, shown = None, {}

layout.step_header("look")
if found is None:
    layout.no_run(t("disaggregation.no_run"))
    layout.later_steps("compare", "why")
else:
    if (found.long, found.budget, found.link_mb_per_s or 0) != (knobs["long"], knobs["budget"], knobs["link"]):
        st.info(t("disaggregation.other_settings", long=found.long, budget=found.budget), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, shown)
    views.timeline(found)
    views.gaps(found)
    views.intervals(found)
    views.objectives(found)
    layout.step_header("compare")
    views.comparison(found)
    left, right = st.columns(2)
    with left:
        st.selectbox(
            t("disaggregation.device"), options=DEVICE.choices, format_func=elsewhere.device_name, key=DEVICE.key
        )
    with right:
        st.selectbox(t("disaggregation.model"), options=MODEL.choices, format_func=elsewhere.model_name, key=MODEL.key)
    there = links.publish([*KNOBS, DEVICE, MODEL])
    elsewhere.draw(there[DEVICE.key], there[MODEL.key])
    layout.step_header("why")
    explain.why(lesson, shown)

layout.step_header("quiz")
quiz_form.quiz(lesson, shown)
