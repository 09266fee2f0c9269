"""Smaller weights: the same prompts with weights of 16, 8 and 4 bits; what the bytes gain and the rounding costs."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.smaller_weights import scenarios
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, session, smaller_weights_views, study
from pages._ui.badges import note
from pages._ui.i18n import language, t

TEXT = links.IntSetting("sw_text", 0, 0, len(scenarios.PROMPTS["en"]) - 1)

lang = language()
lesson = find_lesson("smaller_weights")
layout.lesson_header(lesson, lang)
links.restore([TEXT])
links.show_notices([TEXT])
explain.before(lesson)

layout.step_header("predict")
st.radio(
    t("smaller_weights.text"),
    options=range(len(scenarios.PROMPTS[lang])),
    format_func=lambda index: scenarios.PROMPTS[lang][index],
    key=TEXT.key,
    help=t("smaller_weights.text_help", tokens=scenarios.PROMPT_TOKENS),
)
text = links.publish([TEXT])[TEXT.key]
mark = prediction.fingerprint({"text": text, "lang": lang})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, text, lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("smaller_weights.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, smaller_weights_views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
complete = smaller_weights_views.complete(runs)

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("smaller_weights.no_run"))
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    smaller_weights_views.bars(runs)
    smaller_weights_views.under_the_roof(runs)
    smaller_weights_views.errors(runs)
    smaller_weights_views.answers(runs)
    layout.step_header("compare")
    smaller_weights_views.comparison(runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
