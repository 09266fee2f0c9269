"""The KV cache: one request with it and without it, its blocks as they fill, and what it takes for other models."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.kv_cache.facts import pair
from lessons.kv_cache.scenarios import PARTS, one_request
from pages._ui import claims_table, explain, jobs, kv_calculator, layout, prediction, quiz_form, run_panel, session
from pages._ui import kv_cache_views as views
from pages._ui.i18n import language, t

lesson = find_lesson("kv_cache")
layout.lesson_header(lesson, language())
explain.before(lesson)

layout.step_header("predict")
settings = views.settings()
views.model_line()
mark = prediction.fingerprint(settings)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    sizes = (settings["prompt"], settings["output"], settings["block_size"])
    return [jobs.Part(part, one_request(*sizes, part)) for part in PARTS]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("kv_cache.run_both"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle, live=views.live)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = pair(runs)
except FactsError:
    found = None

layout.step_header("look")
if found is None:
    layout.no_run(t("kv_cache.no_run"))
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    views.draw(found)
layout.step_header("compare")
if found is not None:
    views.comparison(found)
kv_calculator.draw(found.cached.run.header.model if found else None)
claims_table.draw(lesson.id, runs if found else {})
if found is None:
    layout.later_steps("why")
else:
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if found is not None else {})
