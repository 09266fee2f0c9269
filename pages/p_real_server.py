"""Measure a real server: one to eight requests at once to any OpenAI-compatible address, the same to our engine."""

import streamlit as st

from engine.lab.scenario import ScenarioError
from lessons.catalog import lesson as find_lesson
from lessons.real_server import scenarios
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, real_server_views, session, study
from pages._ui.badges import note
from pages._ui.engine_words import said
from pages._ui.i18n import language, t

URL = links.TextSetting("rs_url", scenarios.DEFAULT_URL, 300)
MODEL = links.TextSetting("rs_model", "", 300)
API = links.ChoiceSetting("rs_api", scenarios.APIS[0], scenarios.APIS)
COMMANDS = """python -m engine serve --port 8000
vllm serve Qwen/Qwen3-0.6B
python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --port 8000
llama-server -m model.gguf --port 8000 -np 8"""

lang = language()
lesson = find_lesson("real_server")
layout.lesson_header(lesson, lang)
links.restore([URL, MODEL, API])
links.show_notices([URL, MODEL, API])
explain.before(lesson)

layout.step_header("predict")
left, right = st.columns([3, 2])
with left:
    st.text_input(t("real_server.url"), key=URL.key, help=t("real_server.url_help"), max_chars=300)
with right:
    st.text_input(
        t("real_server.model"),
        key=MODEL.key,
        placeholder=t("real_server.model_first"),
        help=t("real_server.model_help"),
        max_chars=300,
    )
st.segmented_control(
    t("real_server.api"),
    options=API.choices,
    format_func=lambda api: t(f"real_server.api_{api}"),
    key=API.key,
    required=True,
    help=t("real_server.api_help"),
)
asked = links.publish([URL, MODEL, API])
url, model, api = asked[URL.key], asked[MODEL.key].strip(), asked[API.key]
with st.expander(t("real_server.how_to_start"), icon=":material/terminal:"):
    st.markdown(t("real_server.how_to_start_text"))
    st.code(COMMANDS, language="bash", wrap_lines=True)
wrong = None
try:
    target = scenarios.target(url, model, api)
    mark = prediction.fingerprint({"url": target.url, "model": model, "api": api})
except ScenarioError as error:
    wrong = t("real_server.url_wrong", message=said(str(error)))
    mark = prediction.fingerprint({"url": url, "model": model, "api": api})
    st.error(wrong, icon=":material/error:")
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, url, model or None, api, lang=lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("real_server.run_study"))
blocked = wrong or (None if lock.may_run else t("run.predict_first"))
going_on = study.panel(lesson, make_parts, mark, blocked, settle, real_server_views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
complete = real_server_views.complete(runs)

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        real_server_views.why_incomplete(runs)
        layout.no_run(t("real_server.no_run"))
    real_server_views.files()
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    real_server_views.curve(runs)
    real_server_views.over_size(runs)
    real_server_views.gaps(runs)
    real_server_views.lacks(runs["server_8"])
    real_server_views.files()
    layout.step_header("compare")
    real_server_views.comparison(runs)
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
