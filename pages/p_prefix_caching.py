"""Prefix caching: the same prompts without a cache, with a chain, with a tree, and in the order of the cache."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.prefix_caching.facts import four
from lessons.prefix_caching.scenarios import PARTS, archive
from pages._ui import explain, jobs, layout, prediction, quiz_form, run_panel, session
from pages._ui import prefix_caching_views as views
from pages._ui.i18n import language, t

lang = language()
lesson = find_lesson("prefix_caching")
layout.lesson_header(lesson, lang)
explain.before(lesson)

layout.step_header("predict")
settings = views.settings()
mark = prediction.fingerprint(settings)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(part, archive(part, **settings)) for part in PARTS]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("prefix_caching.run_four"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle, live=views.live)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = four(runs)
except FactsError:
    found = None

layout.step_header("look")
if found is None:
    layout.no_run(t("prefix_caching.no_run"))
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    views.draw(found)
    layout.step_header("compare")
    views.comparison(found)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if found is not None else {})
