"""PagedAttention: one pool served with blocks reserved, on demand and shared; block tables, waste, preemption."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.paged_attention.facts import three
from lessons.paged_attention.scenarios import PARTS, museum
from pages._ui import explain, jobs, layout, paged_attention_compare, prediction, quiz_form, run_panel, session
from pages._ui import paged_attention_views as views
from pages._ui.i18n import language, t

lang = language()
lesson = find_lesson("paged_attention")
layout.lesson_header(lesson, lang)
explain.before(lesson)

layout.step_header("predict")
settings = views.settings()
views.prompt_line()
mark = prediction.fingerprint(settings)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(part, museum(part, **settings, lang=lang)) for part in PARTS]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("paged_attention.run_three"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle, live=views.live)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = three(runs)
except FactsError:
    found = None

layout.step_header("look")
if found is None:
    layout.no_run(t("paged_attention.no_run"))
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    views.draw(found)
    layout.step_header("compare")
    paged_attention_compare.comparison(found)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if found is not None else {})
