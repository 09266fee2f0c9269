"""Metrics and the throughput-latency curve: one request alone, full batches, then five loads sized by them."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.metrics import scenarios
from lessons.metrics.sweep import places as places_of
from pages._ui import claims_table, explain, jobs, layout, links, metrics_views, prediction, quiz_form, session, study
from pages._ui.badges import note
from pages._ui.i18n import language, t
from pages._ui.units import number

PLACES = links.IntSetting("me_places", scenarios.DEFAULT_PLACES, 4, 16, scenarios.PLACES)
SLO_TTFT = links.IntSetting("me_ttft", 300, 100, 2000, (150, 200, 300, 500, 1000, 2000))  # % of a request alone
SLO_TPOT = links.IntSetting("me_tpot", 200, 100, 1000, (120, 150, 200, 300, 500, 1000))

lang = language()
lesson = find_lesson("metrics")
layout.lesson_header(lesson, lang)
links.restore([PLACES, SLO_TTFT, SLO_TPOT])
links.show_notices([PLACES, SLO_TTFT, SLO_TPOT])
explain.before(lesson)

layout.step_header("predict")
st.segmented_control(
    t("metrics.places"), options=PLACES.choices, key=PLACES.key, required=True, help=t("metrics.places_help")
)
places = links.publish([PLACES])[PLACES.key]
mark = prediction.fingerprint({"places": places})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    asked = {"places": places, "dtype": "float32", "lang": lang, "seed": scenarios.SEED}
    first = [
        jobs.Part("alone", scenarios.alone(places, lang=lang)),
        jobs.Part("burst", scenarios.burst(places, lang=lang)),
    ]
    return first + [jobs.Part(role, None, asked) for role in scenarios.SHARES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


def times(percent: int) -> str:
    return t("metrics.slo_times", times=number(percent / 100, lang))


layout.step_header("run")
st.markdown(t("metrics.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, metrics_views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
complete = metrics_views.complete(runs)

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("metrics.no_run"))
    layout.later_steps("compare", "why")
else:
    shown = places_of(runs["burst"])
    if shown != places:
        st.info(t("metrics.other_places", places=shown), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    metrics_views.warn_if_disturbed(runs)
    metrics_views.one_request(runs)
    metrics_views.curve(runs)
    metrics_views.over_load(runs)
    left, right = st.columns(2)
    with left:
        st.select_slider(
            t("metrics.slo_ttft"), SLO_TTFT.choices, key=SLO_TTFT.key, format_func=times, help=t("metrics.slo_help")
        )
    with right:
        st.select_slider(
            t("metrics.slo_tpot"), SLO_TPOT.choices, key=SLO_TPOT.key, format_func=times, help=t("metrics.slo_help")
        )
    chosen = links.publish([PLACES, SLO_TTFT, SLO_TPOT])
    metrics_views.objective(runs, chosen[SLO_TTFT.key], chosen[SLO_TPOT.key])
    layout.step_header("compare")
    metrics_views.comparison(runs)
    claims_table.draw(lesson.id, runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
