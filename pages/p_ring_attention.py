"""Ring attention: one prompt over several worker processes, what each keeps, computes and passes on."""

import streamlit as st

from lessons.catalog import lesson as find_lesson
from lessons.facts_error import FactsError
from lessons.ring_attention import scenarios
from lessons.ring_attention.pair import pair_of
from pages._ui import explain, jobs, layout, links, prediction, quiz_form, run_panel, session
from pages._ui import ring_attention_elsewhere as elsewhere
from pages._ui import ring_attention_views as views
from pages._ui.i18n import language, t

LENGTH = links.IntSetting("ra_length", scenarios.LENGTHS[0], 0, 0, scenarios.LENGTHS)
WORKERS = links.IntSetting("ra_workers", scenarios.WORKERS[0], 0, 0, scenarios.WORKERS)
LAYOUT = links.ChoiceSetting("ra_layout", scenarios.LAYOUTS[0], scenarios.LAYOUTS)
KNOBS = (LENGTH, WORKERS, LAYOUT)
DEVICE = links.ChoiceSetting("ra_device", elsewhere.DEFAULT_DEVICE, elsewhere.DEVICES)
MODEL = links.ChoiceSetting("ra_model", elsewhere.DEFAULT_MODEL, elsewhere.MODELS)

lang = language()
lesson = find_lesson("ring_attention")
layout.lesson_header(lesson, lang)
links.restore([*KNOBS, DEVICE, MODEL])
links.show_notices([*KNOBS, DEVICE, MODEL])
explain.before(lesson)

layout.step_header("predict")
for setting in KNOBS:
    name = setting.key.removeprefix("ra_")
    st.segmented_control(
        t(f"ring_attention.{name}"),
        options=setting.choices,
        format_func=lambda value, name=name: views.knob_value(name, value),
        key=setting.key,
        required=True,
        help=t(f"ring_attention.{name}_help"),
    )
chosen = links.publish(KNOBS)
knobs = {name: chosen[f"ra_{name}"] for name in ("length", "workers", "layout")}
views.model_line()
mark = prediction.fingerprint(knobs)
lock = prediction.panel(lesson, lesson.predictions, mark)


def make_parts() -> list[jobs.Part]:
    return [jobs.Part(role, scenarios.scenario(role, **knobs, lang=lang)) for role in scenarios.ROLES]


def settle(job: jobs.Job) -> None:
    prediction.settle(lesson, session.store().latest_runs(session.learner(), lesson.id), lesson.predictions, job.mark)


layout.step_header("run")
st.markdown(t("ring_attention.run_both"))
run_panel.panel(lesson, make_parts, mark, None if lock.may_run else t("run.predict_first"), settle)

runs = session.store().latest_runs(session.learner(), lesson.id)
try:
    found = pair_of(runs)
    shown = {role: runs[role] for role in scenarios.ROLES}
except FactsError:
    found, shown = None, {}

layout.step_header("look")
if found is None:
    layout.no_run(t("ring_attention.no_run"))
    layout.later_steps("compare", "why")
else:
    if (found.length, found.num_workers, found.layout) != tuple(knobs.values()):
        st.info(t("ring_attention.other_settings", length=found.length, n=found.num_workers), icon=":material/history:")
    prediction.outcome(lesson)
    explain.happened(lesson, shown)
    views.rounds(found)
    views.kept(found)
    views.pairs(found)
    views.overlap(found)
    layout.step_header("compare")
    views.comparison(found)
    left, right = st.columns(2)
    with left:
        st.selectbox(
            t("ring_attention.device"), options=DEVICE.choices, format_func=elsewhere.device_name, key=DEVICE.key
        )
    with right:
        st.selectbox(t("ring_attention.model"), options=MODEL.choices, format_func=elsewhere.model_name, key=MODEL.key)
    there = links.publish([*KNOBS, DEVICE, MODEL])
    elsewhere.draw(there[DEVICE.key], there[MODEL.key])
    layout.step_header("why")
    explain.why(lesson, shown)

layout.step_header("quiz")
quiz_form.quiz(lesson, shown)
