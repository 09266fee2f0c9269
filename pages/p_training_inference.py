"""Training and inference: one text written token by token, read in one pass, learned from in one step, in one Run."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.training_inference.facts import three_ways
from lessons.training_inference.scenarios import three_ways as scenario
from pages._ui import explain, jobs, layout, prediction, quiz_form, run_panel, session
from pages._ui import training_inference_views as views
from pages._ui.i18n import language, t

lesson = find_lesson("training_inference")
layout.lesson_header(lesson, language())
explain.before(lesson)

layout.step_header("predict")
start, num_tokens = views.settings()
mark = prediction.fingerprint({"start": start, "num_tokens": num_tokens})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part("run", scenario(start, num_tokens))]


def settle(job: jobs.Job) -> None:
    runs = session.store().latest_runs(session.learner(), lesson.id)
    prediction.settle(lesson, runs, lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("training_inference.run_all"))
blocked = None if lock.may_run else t("run.predict_first")
run_panel.panel(lesson, make_parts, mark, blocked, settle, live=views.measuring)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = three_ways(runs)
except FactsError:
    found = None

layout.step_header("look")
if found is None:
    layout.no_run(t("training_inference.no_run"))
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
