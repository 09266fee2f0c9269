"""What a page script may reach: the learner of this browser, their records, and the engine. No torch, no globals.

Resources shared by all sessions (database, engine client) are made once through Streamlit's cache; everything that
belongs to one learner lives in the session or the database. A page never talks to the engine but through here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any

import streamlit as st

from engine.server.client import ENGINE_URL_VARIABLE, EngineClient
from engine.settings import settings
from lessons import learner_code
from lessons.shown import LessonStore
from pages._ui import i18n
from pages._ui.engine_watch import EngineState, EngineWatch
from pages._ui.identity import COOKIE, new_sid, valid_sid

_LEARNER = "_learner"
_BROWSER = "_browser"
_PLACE = "_place"
_LANG_WIDGET = "language_switch"
_SEEN = "_engine_seen"
SCRIPT_NICENESS = 10


# ------------------------------------------------------------------------------------------------- resources
@st.cache_resource(max_entries=2, show_spinner=False)
def _open_store(database_url: str) -> LessonStore:
    return LessonStore(database_url)


@st.cache_resource(max_entries=2, show_spinner=False)
def _open_client(engine_url: str) -> EngineClient:
    return EngineClient(engine_url)


def store() -> LessonStore:
    """The learner database of this process."""
    return _open_store(settings().database_url)


def client() -> EngineClient:
    """The engine client of this process."""
    return _open_client(_engine_url())


def _engine_url() -> str:
    """Set by the supervisor, because the engine's usual port may be taken and another one used after a restart."""
    return os.environ.get(ENGINE_URL_VARIABLE) or settings().engine_url


# ------------------------------------------------------------------------------------------------- learner
def learner() -> str:
    """Id of the learner whose records these are. A browser that keeps no cookies gets one for the session only."""
    if _LEARNER not in st.session_state:
        st.session_state[_LEARNER] = store().learner(learner_code.goes_on_as(store(), browser()))
    return st.session_state[_LEARNER]


def browser() -> str:
    """Id of this browser's own learner, also while it goes on with the records of another one."""
    if _BROWSER not in st.session_state:
        sid = st.context.cookies.get(COOKIE)
        st.session_state[_BROWSER] = store().learner(sid if valid_sid(sid) else new_sid())
    return st.session_state[_BROWSER]


def go_on_as(learner: str | None) -> None:
    """Go on with the records of ``learner``, None: with this browser's own. Effect: the session forgets all else."""
    learner_code.go_on_as(store(), browser(), learner)
    forget()


def remember(key: str, value: Any) -> None:
    """Keep a small JSON value for this learner, across reloads and restarts."""
    store().set_preference(learner(), key, json.dumps(value))


def recall(key: str) -> Any:
    """What ``remember`` kept, or None."""
    raw = store().preference(learner(), key)
    try:
        return None if raw is None else json.loads(raw)
    except ValueError:
        return None


def keep_place(lesson_id: str) -> None:
    """Keep which lesson is open and with which settings, for ``place``. Effect: stored when it has changed."""
    settings = {key: st.query_params[key] for key in st.query_params if key not in ("lang", "present")}
    here = {"lesson": lesson_id, "settings": settings}
    if st.session_state.get(_PLACE) != here:
        st.session_state[_PLACE] = here
        remember("place", here)


def place() -> dict[str, Any] | None:
    """The lesson that was open last (``lesson``) and its ``settings`` as in its link; None for a new learner."""
    kept = recall("place")
    return kept if isinstance(kept, dict) and {"lesson", "settings"} <= kept.keys() else None


# ------------------------------------------------------------------------------------------------- language
def choose_language() -> str:
    """Settle the language of this run: the link, else this session, else the saved choice, else the browser's.

    Effect: later ``t`` calls answer in it, and the address carries it once it was chosen by hand or by a link.
    """
    linked = st.query_params.get("lang")
    if linked in i18n.LANGUAGES:
        i18n.set_language(linked)
        st.session_state["_language_chosen"] = True
    elif "_language" not in st.session_state:
        saved = recall("language")
        i18n.set_language(saved or i18n.match_locale(st.context.locale) or i18n.DEFAULT_LANGUAGE)
        st.session_state["_language_chosen"] = saved is not None
    if linked is not None and linked not in i18n.LANGUAGES:
        st.session_state["_language_nonsense"] = True
        del st.query_params["lang"]
    lang = i18n.language()
    if st.session_state.get("_language_chosen") and st.query_params.get("lang") != lang:
        st.query_params["lang"] = lang
    return lang


def language_switch() -> None:
    """The visible switch. Each language is named in itself."""
    st.session_state[_LANG_WIDGET] = i18n.language()
    st.segmented_control(
        i18n.t("common.language"),
        options=i18n.LANGUAGES,
        format_func=i18n.NAMES.__getitem__,
        key=_LANG_WIDGET,
        required=True,
        label_visibility="collapsed",
        on_change=_switch_language,
    )


def language_notice() -> None:
    """Say it when a link asked for a language there is none of, until the learner chooses one."""
    if st.session_state.get("_language_nonsense"):
        st.warning(i18n.t("common.link_language", allowed=", ".join(i18n.LANGUAGES)), icon=":material/link_off:")


def _switch_language() -> None:
    lang = st.session_state[_LANG_WIDGET]
    i18n.set_language(lang)
    st.session_state["_language_chosen"] = True
    st.session_state["_language_nonsense"] = False
    st.query_params["lang"] = lang
    remember("language", lang)


# ------------------------------------------------------------------------------------------------- engine state
def give_way() -> None:
    """Effect: this thread, which runs a script, comes after the engine where both want a core (Linux; else none).

    A learner does not notice a picture a few milliseconds late; a step of the engine that was held up is in a Run.
    """
    if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(SCRIPT_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


@st.cache_resource(show_spinner=False)
def _watch() -> EngineWatch:
    clients: dict[str, EngineClient] = {}

    def current() -> EngineClient:
        url = _engine_url()
        if url not in clients:
            clients.clear()
            clients[url] = EngineClient(url)
        return clients[url]

    return EngineWatch(current)


def look_at_engine() -> EngineState:
    """How the engine is now. Answers at once: see ``engine_watch``. Effect: the script gives way to it."""
    give_way()
    return _watch().last()


def see_engine() -> EngineState:
    """Look once for a whole run of the page. Effect: ``engine_state`` says the same until the next run."""
    st.session_state[_SEEN] = look_at_engine()
    return st.session_state[_SEEN]


def engine_state() -> EngineState:
    """How the engine was when this run of the page began, so that all parts of a page agree about it."""
    return st.session_state[_SEEN] if _SEEN in st.session_state else see_engine()


def device() -> dict[str, Any] | None:
    """Device, default model and ceilings as the engine describes them; None while it is not there."""
    return _watch().device


def forget() -> None:
    """Effect: this session keeps nothing but its language and which browser it is."""
    keep = {"_language", "_language_chosen", _BROWSER}
    for key in [k for k in st.session_state if k not in keep]:
        del st.session_state[key]
