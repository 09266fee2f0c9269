"""On the stage a class predicts and answers by show of hands: counted on the page, stored nowhere.

It draws the prediction, its outcome and the quiz of a lesson for a room. A whole lesson may be shown without a lock,
because whoever presents has the room's answer in sight. The counts live in the session only and end with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from engine.lab.records import Run
from lessons.catalog import Lesson, Prediction, compare
from lessons.quiz import Item, public_view
from lessons.run_facts import FactsError, prediction_answers
from pages._ui import quiz_key, session
from pages._ui.badges import badge, provenance
from pages._ui.i18n import language, t
from pages._ui.prediction_words import outside, say, verdict, with_unit
from pages._ui.prose import mend

MOST_HANDS = 2_000


# ------------------------------------------------------------------------------------------------- the prediction
def ask(lesson: Lesson, asked: Sequence[Prediction]) -> None:
    """Every question of the prediction, with a place for what the room says."""
    lang = language()
    st.markdown(t("present.hands"))
    for prediction in asked:
        with st.container(border=True, key=f"hands_{prediction.id}"):
            st.markdown(f"**{mend(prediction.prompt[lang])}**")
            if prediction.hint:
                st.markdown(mend(prediction.hint[lang]))
            if prediction.kind == "number":
                label = with_unit(t("present.room_says"), prediction.unit[lang], lang)
                said = st.number_input(label, value=None, step=0.01, key=_key(lesson, prediction.id), width=420)
                if wrong := outside(prediction, said):
                    st.error(wrong)
                continue
            for option in prediction.options:
                st.number_input(
                    option.text[lang], 0, MOST_HANDS, step=1, key=_key(lesson, prediction.id, option.id), width=420
                )


def outcome(lesson: Lesson) -> None:
    """What the run gave, beside what the room said."""
    runs = session.store().latest_runs(session.learner(), lesson.id)
    try:
        answers = prediction_answers(lesson.id, runs)
    except FactsError:
        return
    with st.container(border=True, key=f"outcome_{lesson.id}"):
        st.markdown(f":material/fact_check: **{t('present.outcome')}**")
        for prediction in lesson.predictions:
            if prediction.id in answers:
                _reveal(lesson, prediction, answers[prediction.id])
        provenance(*runs.values())


def _reveal(lesson: Lesson, prediction: Prediction, answer: float | str) -> None:
    lines = [mend(prediction.prompt[language()])]
    if prediction.kind == "number":
        said = st.session_state.get(_key(lesson, prediction.id))
        if said is not None:
            lines.append(f"{t('present.room_said', said=say(prediction, said))} · {verdict(compare(said, answer))}")
    else:
        hands = {o.id: st.session_state.get(_key(lesson, prediction.id, o.id)) or 0 for o in prediction.options}
        if any(hands.values()):
            shown = ", ".join(f"{say(prediction, option)}: {count}" for option, count in hands.items())
            lines.append(t("present.room_said", said=shown))
    lines.append(f"**{t('present.run_gave', was=say(prediction, answer))}** {badge('measured')}")
    st.markdown("  \n".join(lines))


def _key(lesson: Lesson, *names: str) -> str:
    return ":".join(("hands", lesson.id, *names))


# ------------------------------------------------------------------------------------------------- the quiz
def quiz(lesson: Lesson, items: Sequence[Item], runs: Sequence[Run]) -> None:
    """One question at a time; the answer and what is to be said about each option only when asked for."""
    st.fragment(_quiz)(lesson, list(items), {run.run_id: run for run in runs})


def _quiz(lesson: Lesson, items: Sequence[Item], runs: Mapping[str, Run]) -> None:
    at, shown = f"_stage_item:{lesson.id}", f"_stage_answer:{lesson.id}"
    index = min(st.session_state.get(at, 0), len(items) - 1)
    item = items[index]

    def go(step: int) -> None:
        st.session_state[at], st.session_state[shown] = index + step, False

    with st.container(horizontal=True, key="stage_quiz_buttons"):
        st.button(t("present.question_before"), key="stage_before", on_click=go, args=(-1,), disabled=index == 0)
        last = index == len(items) - 1
        st.button(t("present.question_after"), key="stage_after", on_click=go, args=(1,), disabled=last)
        if st.button(t("present.answer"), key="stage_answer", type="primary"):
            st.session_state[shown] = True
    view = public_view(item, language(), session.learner())
    st.markdown(f"**{index + 1} / {len(items)} · {mend(view['prompt'])}**")
    if view["trace"]:
        st.code(view["trace"], language=None)
    if item.run_ids:
        provenance(*(runs[run_id] for run_id in item.run_ids if run_id in runs))
    if st.session_state.get(shown):
        quiz_key.show(item, wrong_too=True)
    else:
        choices = view.get("options") or view.get("steps") or ()  # lettered, so that hands can be asked for
        st.markdown("  \n".join(f"**{chr(65 + at)}** · {mend(c['text'])}" for at, c in enumerate(choices)))
