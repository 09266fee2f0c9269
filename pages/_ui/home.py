"""The parts of the home page: the way a lesson works, the course map with progress, the device, the learner's data.

Everything is drawn from the catalogue and the database first; what only the engine knows is added when it answers.
"""

from __future__ import annotations

import streamlit as st

from lessons import learner_code
from lessons.catalog import Lesson, load_lessons
from lessons.store import LessonProgress
from pages._ui import layout, present, session
from pages._ui.badges import badge, escape, note
from pages._ui.i18n import t
from pages._ui.units import byte_count, number

_HOW = (("predict", "psychology_alt"), ("run", "play_circle"), ("look", "visibility"), ("why", "lightbulb"))


def _pages() -> dict[str, st.Page]:
    return st.session_state["_lesson_pages"]


def continue_button(lang: str) -> None:
    """One clear next step: the lesson that was open last, with its settings, or the first one not finished."""
    lessons = [lesson for lesson in load_lessons() if lesson.id in _pages()]
    if not lessons:
        return
    progress = session.store().progress(session.learner())
    begun = [lesson for lesson in lessons if lesson.id in progress and not _finished(lesson, progress[lesson.id])]
    fresh = [lesson for lesson in lessons if lesson.id not in progress]
    place = session.place()
    opened = [lesson for lesson in begun + fresh if place is not None and lesson.id == place["lesson"]]
    latest = max(begun, key=lambda x: progress[x.id].last_utc) if begun else (fresh or lessons)[0]
    target = opened[0] if opened else latest
    label = t("home.continue" if progress or opened else "home.begin", title=target.title[lang])
    if st.button(label, type="primary", icon=":material/arrow_forward:", key="continue"):
        carried = dict(place["settings"]) if opened else {}
        if "lang" in st.query_params:
            carried["lang"] = st.query_params["lang"]
        st.switch_page(_pages()[target.id], query_params=carried)


def _finished(lesson: Lesson, progress: LessonProgress) -> bool:
    return progress.num_runs > 0 and progress.num_items_correct >= len(lesson.quiz)


def how_it_works() -> None:
    """The four moves of every lesson."""
    with st.grid(4, min_column_width=170):
        for index, (name, icon) in enumerate(_HOW, start=1):
            with st.container(border=True, height="stretch"):
                st.markdown(f"**:material/{icon}: {index} · {t(f'common.step_{name}')}**")
                st.markdown(t(f"home.how_{name}"))


def course_map(lang: str) -> None:
    """A card per lesson with what the learner has done in it."""
    progress = session.store().progress(session.learner())
    with st.grid(2, min_column_width=320):
        shown = [lesson for lesson in load_lessons() if lesson.id in _pages()]
        for index, lesson in enumerate(shown, start=1):
            with st.container(border=True, key=f"card_{lesson.id}", height="stretch"):
                st.markdown(f"**{index} · {lesson.title[lang]}**")
                st.markdown(lesson.goal[lang])
                _progress_line(lesson, progress.get(lesson.id, LessonProgress(lesson.id)))
                st.page_link(_pages()[lesson.id], label=t("home.open", title=lesson.title[lang]))


def _progress_line(lesson: Lesson, done: LessonProgress) -> None:
    marks = (
        ("predicted", done.num_predictions > 0),
        ("ran", done.num_runs > 0),
        ("answered", done.num_items_correct >= len(lesson.quiz)),
    )
    shown = [
        f":material/{'check_circle' if is_done else 'radio_button_unchecked'}: {t(f'home.{name}')}"
        for name, is_done in marks
    ]
    note(" · ".join([t("common.lesson_minutes", minutes=lesson.minutes), *shown]))
    share = min(done.num_items_correct / max(len(lesson.quiz), 1), 1.0)
    st.progress(
        (sum(is_done for _, is_done in marks[:2]) + share) / 3,
        text=t("home.items", right=done.num_items_correct, answered=done.num_items_answered),
    )


def device_card(lang: str) -> None:
    """The device and model in use, as the engine reports them; until it answers, its state."""
    st.fragment(_device_card, run_every=None if session.engine_state().ready else 2)(lang)


def _device_card(lang: str) -> None:
    state, about = session.look_at_engine(), session.device()
    if about is None:
        st.markdown(layout.engine_word(state))
        st.markdown(t("home.device_waiting"))
        return
    device, model = about.get("device") or {}, about.get("default_model") or {}
    with st.grid(4, min_column_width=170):
        _fact(t("home.device_name"), escape(str(device.get("name", "–"))), t("home.threads", n=device.get("threads")))
        _fact(
            t("home.model"),
            escape(str(model.get("name", "–"))),
            t(
                "home.model_size",
                n=number((model.get("num_parameters") or 0) / 1e6, lang),
                size=byte_count(model.get("weight_bytes"), lang),
            ),
        )
        for name, unit in (("read_gbps", "GB/s"), ("matmul_tflops", "TFLOP/s")):
            value = device.get(name)
            shown = f"{number(value, lang)} {unit} {badge('measured')}" if value else t("home.not_measured")
            _fact(t(f"home.{name}"), shown, t(f"home.{name}_hint"))


def _fact(label: str, value: str, remark: str) -> None:
    with st.container(border=True, height="stretch"):
        note(label)
        st.markdown(f"**{value}**")
        note(remark)


def badge_legend() -> None:
    """What the three badges promise."""
    for kind in ("measured", "modelled", "spec"):
        st.markdown(f"{badge(kind)} {t(f'home.badge_{kind}')}")


def teaching(lang: str) -> None:
    """For whoever teaches: the guide and the projector view of every lesson, and how the results of a class are had."""
    with st.expander(t("home.teaching"), icon=":material/co_present:"):
        st.markdown(t("home.teaching_text"))
        for lesson in load_lessons():
            if lesson.id in _pages():
                with st.container(horizontal=True, gap="medium"):
                    st.markdown(f"**{lesson.title[lang]}**", width=280)
                    present.link(_pages()[lesson.id])
                    present.link(_pages()[lesson.id], present.NOTES)
        st.markdown(t("home.teaching_results"))
        st.code("python -m lessons export-answers --out class.csv", language="bash")


def my_data(learner: str) -> None:
    """What is stored, and a way to delete it."""
    with st.expander(t("home.data"), icon=":material/shield_person:"):
        st.markdown(t("home.data_text"))
        _code(learner)
        sure = st.checkbox(t("home.data_sure"), key="delete_sure")
        if st.button(t("home.data_delete"), key="delete_data", disabled=not sure, icon=":material/delete:"):
            session.store().reset(learner)
            session.forget()
            st.rerun()


def _code(learner: str) -> None:
    """The learner's code, and a place to type one from another browser."""
    store = session.store()
    st.markdown(t("home.code_text"))
    st.code(learner_code.code_of(store, learner), language=None)
    if learner != session.browser():
        st.button(
            t("home.code_leave"), key="code_leave", icon=":material/undo:", on_click=session.go_on_as, args=(None,)
        )
    with st.form("code", enter_to_submit=True, border=False):
        typed = st.text_input(t("home.code_other"), max_chars=40, placeholder="XXXX-XXXX-XXXX", key="code_typed")
        if st.form_submit_button(t("home.code_go_on"), icon=":material/login:"):
            found = learner_code.owner(store, typed)
            if found is None:
                st.error(t("home.code_unknown"))
            else:
                session.go_on_as(found)
                st.rerun()
