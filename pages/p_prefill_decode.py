"""Prefill and decode: one request, alone on the device; why its first token and every later one cost what they cost."""

from lessons import scenarios
from lessons.catalog import lesson as find_lesson
from pages._ui import explain, jobs, layout, prediction, prefill_decode_views, prompt_box, quiz_form, run_panel, session
from pages._ui.i18n import language, t
from pages._ui.views import one_request

lesson = find_lesson("prefill_decode")
layout.lesson_header(lesson, language())
explain.before(lesson)

layout.step_header("predict")
settings = prompt_box.settings()
problem = prompt_box.problem(settings)
mark = prediction.fingerprint(settings)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    length = settings[prompt_box.LENGTH.key] or None
    prompt, output = settings[prompt_box.PROMPT.key], settings[prompt_box.OUTPUT.key]
    return [jobs.Part("run", scenarios.prefill_decode(prompt, length, output))]


def settle(job: jobs.Job) -> None:
    runs = session.store().latest_runs(session.learner(), lesson.id)
    prediction.settle(lesson, runs, lesson.predictions, job.mark)


layout.step_header("run")
blocked = problem or (None if lock.may_run else t("run.predict_first"))
run_panel.panel(lesson, make_parts, mark, blocked, settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
run = runs.get("run")
view = one_request(run) if run is not None else None

layout.step_header("look")
if run is None or view is None:
    layout.no_run(t("prefill_decode.no_run"))
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    spoken = session.store().texts(run.run_id)
    prefill_decode_views.draw(run, view, spoken.texts.get(view.request_id, ""), spoken.pieces.get(view.request_id, []))
    layout.step_header("compare")
    prefill_decode_views.comparison(run, view)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if view is not None else {})
