"""Long contexts: the same requests from one memory, with more and fewer KV heads and with 16, 8 and 4 bits."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.long_context import scenarios
from pages._ui import explain, jobs, layout, links, long_context_views, prediction, quiz_form, session, study
from pages._ui.badges import note
from pages._ui.i18n import language, t

PROMPT = links.TextSetting("lc_prompt", "", scenarios.MAX_CHARACTERS)
MODEL = links.ChoiceSetting("lc_model", "llama-3-8b", long_context_views.MODELS)
CARD = links.ChoiceSetting("lc_card", "h100", long_context_views.CARDS)

lang = language()
lesson = find_lesson("long_context")
layout.lesson_header(lesson, lang)
links.restore([PROMPT, MODEL, CARD])
links.show_notices([PROMPT, MODEL, CARD])
explain.before(lesson)

layout.step_header("predict")
st.text_input(
    t("long_context.prompt"),
    key=PROMPT.key,
    max_chars=scenarios.MAX_CHARACTERS,
    placeholder=scenarios.PROMPTS[lang][0],
    help=t("long_context.prompt_help", most=scenarios.MAX_CHARACTERS),
)
prompt = links.publish([PROMPT])[PROMPT.key].strip() or scenarios.PROMPTS[lang][0]
mark = prediction.fingerprint({"prompt": prompt, "lang": lang})
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return scenarios.parts(prompt, lang)


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("long_context.run_study"))
blocked = None if lock.may_run else t("run.predict_first")
going_on = study.panel(lesson, make_parts, mark, blocked, settle, long_context_views.so_far)

runs = {} if going_on else session.store().latest_runs(session.learner(), lesson.id)
complete = long_context_views.complete(runs)

layout.step_header("look")
if not complete:
    if going_on:
        note(f":material/hourglass_top: {t('study.running')}")
    else:
        layout.no_run(t("long_context.no_run"))
    layout.later_steps("compare", "why")
else:
    prediction.outcome(lesson)
    explain.happened(lesson, runs)
    long_context_views.room(runs)
    long_context_views.errors(runs)
    long_context_views.answers(runs)
    layout.step_header("compare")
    long_context_views.comparison(runs)
    left, right = st.columns(2)
    with left:
        st.selectbox(
            t("long_context.model"),
            options=MODEL.choices,
            format_func=lambda model_id: long_context_views.catalogue.model(model_id).name,
            key=MODEL.key,
        )
    with right:
        st.selectbox(
            t("long_context.card"),
            options=CARD.choices,
            format_func=lambda card_id: long_context_views.catalogue.device(card_id).name,
            key=CARD.key,
        )
    chosen = links.publish([PROMPT, MODEL, CARD])
    long_context_views.elsewhere(chosen[MODEL.key], chosen[CARD.key])
    layout.step_header("why")
    explain.why(lesson, runs)

layout.step_header("quiz")
quiz_form.quiz(lesson, runs if complete else {})
