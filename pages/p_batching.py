"""Static and continuous batching: one workload, both policies one after the other, both Runs on one clock."""

import streamlit as st

from lessons import scenarios
from lessons.catalog import lesson as find_lesson
from pages._ui import batching_views, explain, jobs, layout, links, prediction, quiz_form, run_panel, session
from pages._ui.i18n import language, t

POLICIES = ("static", "chunked")
PRESET = links.ChoiceSetting("bt_workload", "abcd", scenarios.PRESETS)

lang = language()
lesson = find_lesson("batching")
layout.lesson_header(lesson, lang)
links.restore([PRESET])
links.show_notices([PRESET])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("batching.workload"),
    options=scenarios.PRESETS,
    format_func=lambda preset: t(f"batching.preset_{preset}"),
    key=PRESET.key,
    required=True,
    wrap=True,
)
preset = links.publish([PRESET])[PRESET.key]
explain.section(lesson, f"before_{preset}")
asked = [question for question in lesson.predictions if question.asked_for(preset)]
mark = prediction.fingerprint({"preset": preset})
lock = prediction.panel(lesson, asked, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(policy, scenarios.batching(preset, policy, lang=lang)) for policy in POLICIES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), asked, job.mark)


layout.step_header("run")
st.markdown(t("batching.run_both"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
complete = all(policy in runs for policy in POLICIES)
pair = {policy: runs[policy] for policy in POLICIES} if complete else {}

layout.step_header("look")
if not complete:
    layout.no_run(t("batching.no_run"))
    layout.later_steps("compare", "why")
else:
    static, chunked = runs["static"], runs["chunked"]
    shown = scenarios.preset_of(static.header.scenario)
    if shown is not None and shown != preset:
        st.info(t("batching.other_workload", name=t(f"batching.preset_{shown}")), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, pair)
    batching_views.player(static, chunked)
    batching_views.waits(static, chunked)
    layout.step_header("compare")
    batching_views.comparison(static, chunked)
    layout.step_header("why")
    explain.why(lesson, pair)

layout.step_header("quiz")
quiz_form.quiz(lesson, pair)
