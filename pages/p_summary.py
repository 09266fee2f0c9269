"""Summary: the concept map, the claims table for any model, one whole run predicted from formulas, and the exam."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.summary import scenarios
from lessons.summary.facts import whole
from pages._ui import (
    bank_export,
    concept_map,
    exam_form,
    explain,
    jobs,
    layout,
    links,
    prediction,
    quiz_form,
    run_panel,
    session,
    summary_views,
)
from pages._ui.i18n import language, t

MODEL = links.ChoiceSetting("sm_model", summary_views.DEFAULT_MODEL, summary_views.MODELS)
REQUESTS = links.IntSetting("sm_requests", 8, scenarios.REQUESTS[0], scenarios.REQUESTS[-1], scenarios.REQUESTS)
PROMPT = links.IntSetting(
    "sm_prompt", 64, scenarios.PROMPT_TOKENS[0], scenarios.PROMPT_TOKENS[-1], scenarios.PROMPT_TOKENS
)
OUTPUT = links.IntSetting(
    "sm_output", 33, scenarios.OUTPUT_TOKENS[0], scenarios.OUTPUT_TOKENS[-1], scenarios.OUTPUT_TOKENS
)
SETTINGS = (MODEL, REQUESTS, PROMPT, OUTPUT)
WORKLOAD = (REQUESTS, PROMPT, OUTPUT)

lang = language()
lesson = find_lesson("summary")
lesson_pages = st.session_state["_lesson_pages"]
layout.lesson_header(lesson, lang)
links.restore(SETTINGS)
links.show_notices(SETTINGS)
explain.before(lesson)
course = summary_views.course_runs()

st.header(t("summary.map"), anchor="map", divider="gray")
st.markdown(t("summary.map_text"))
concept_map.draw(lesson_pages)

st.header(t("summary.claims"), anchor="claims", divider="gray")
st.markdown(t("summary.claims_text"))
st.selectbox(
    t("summary.model"),
    options=MODEL.choices,
    format_func=lambda name: summary_views.model_name(name, course),
    key=MODEL.key,
    help=t("summary.model_help"),
    width=420,
)
model = summary_views.picked(links.publish([MODEL])[MODEL.key], course)
summary_views.claims(model, course, lesson_pages)

layout.step_header("predict")
explain.section(lesson, "before_run")
summary_views.given(course)
for setting, name in zip(WORKLOAD, ("requests", "prompt", "output"), strict=True):
    st.segmented_control(t(f"summary.{name}"), options=setting.choices, key=setting.key, required=True)
settings = links.publish(SETTINGS)
sizes = [settings[setting.key] for setting in WORKLOAD]
mark = prediction.fingerprint({"sizes": sizes})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part("run", scenarios.whole_run(*sizes, lang=lang))]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = whole(runs)
except FactsError:
    found = None

layout.step_header("look")
if found is None:
    layout.no_run(t("summary.no_run"))
    layout.later_steps("compare", "why")
else:
    if [found.num_requests, found.prompt_tokens, found.output_tokens] != sizes:
        st.info(
            t("summary.other_run", n=found.num_requests, prompt=found.prompt_tokens, output=found.output_tokens),
            icon=":material/history:",
        )
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    summary_views.the_run(found)
    layout.step_header("compare")
    summary_views.comparison(found)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if found is not None else {})

st.header(t("exam.title"), anchor="exam", divider="gray")
exam_form.exam(course, lesson_pages)
bank_export.draw()
