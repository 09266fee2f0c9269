"""The scheduling ladder: one workload under five policies, side by side with their code, and why a request waited."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.scheduling_ladder import scenarios
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, run_panel, session
from pages._ui import scheduling_ladder_views as views
from pages._ui.i18n import language, t

BUDGET = links.IntSetting("sl_budget", 64, 32, 128, scenarios.BUDGETS)
BLOCKS = links.IntSetting("sl_blocks", 23, 23, 46, scenarios.POOLS)
RUNG = links.ChoiceSetting("sl_rung", "orca", scenarios.RUNGS)
REQUEST = links.ChoiceSetting("sl_request", "S3", scenarios.ORDER)

lang = language()
lesson = find_lesson("scheduling_ladder")
layout.lesson_header(lesson, lang)
links.restore([BUDGET, BLOCKS, RUNG, REQUEST])
links.show_notices([BUDGET, BLOCKS, RUNG, REQUEST])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("scheduling_ladder.budget"),
    options=BUDGET.choices,
    key=BUDGET.key,
    required=True,
    help=t("scheduling_ladder.budget_help"),
)
st.segmented_control(
    t("scheduling_ladder.blocks"),
    options=BLOCKS.choices,
    format_func=lambda count: t(f"scheduling_ladder.blocks_{count}"),
    key=BLOCKS.key,
    required=True,
    help=t("scheduling_ladder.blocks_help"),
)
settings = links.publish([BUDGET, BLOCKS])
budget, blocks = settings[BUDGET.key], settings[BLOCKS.key]
mark = prediction.fingerprint({"budget": budget, "blocks": blocks})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(policy, scenarios.rung(policy, budget, blocks, lang=lang)) for policy in scenarios.RUNGS]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("scheduling_ladder.run_all"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
complete = views.complete(runs)

layout.step_header("look")
if not complete:
    layout.no_run(t("scheduling_ladder.no_run"))
    layout.later_steps("compare", "why")
else:
    shown = views.limits_of(runs)
    if shown != (budget, blocks):
        st.info(t("scheduling_ladder.other_settings", budget=shown[0], blocks=shown[1]), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    views.table(runs)
    views.player(runs)
    st.segmented_control(
        t("scheduling_ladder.rung"),
        options=RUNG.choices,
        format_func={policy: views.name_of(policy) for policy in RUNG.choices}.__getitem__,
        key=RUNG.key,
        required=True,
        wrap=True,
    )
    views.rung(runs, st.session_state[RUNG.key])
    st.segmented_control(
        t("scheduling_ladder.request"), options=REQUEST.choices, key=REQUEST.key, required=True, wrap=True
    )
    chosen = links.publish([BUDGET, BLOCKS, RUNG, REQUEST])
    views.waiting(runs, chosen[REQUEST.key])
    layout.step_header("compare")
    views.comparison(runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
