"""Words on the screen: a catalogue per language, looked up at the moment of drawing.

``text/<lang>/<namespace>.yaml`` holds the strings, beside those shared with reports (``engine.lab.words``);
``t("namespace.key", name=value)`` gives the one of the session's language. Nothing is looked up at import and no
process-wide locale is set, because all learners share one process.
A key that is missing is a defect: it raises, and the tests hold both languages to the same keys and placeholders.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import streamlit as st

from engine.lab.words import LANGUAGES, read_texts, shared_texts
from pages._ui.prose import mend

DEFAULT_LANGUAGE = "en"
NAMES = MappingProxyType({"en": "English", "zh": "中文"})
TEXT_DIR = Path(__file__).parent / "text"
_STATE_KEY = "_language"


@lru_cache(maxsize=len(LANGUAGES))
def catalogue(lang: str) -> MappingProxyType[str, str]:
    """All strings of one language by ``namespace.key``. Pure but for reading the files once."""
    return MappingProxyType({**shared_texts(lang), **read_texts(TEXT_DIR, lang)})


def translate(lang: str, key: str, /, **values: object) -> str:
    """The string of ``key`` in ``lang`` with its ``{placeholders}`` filled and its bold so that it renders.

    Raises: KeyError for an unknown key.
    """
    text = catalogue(lang)[key]
    return mend(text.format(**values) if values else text)


def t(key: str, /, **values: object) -> str:
    """The string of ``key`` in the language of this session."""
    return translate(language(), key, **values)


def language() -> str:
    """Language of this session; the default outside of one."""
    lang = st.session_state.get(_STATE_KEY, DEFAULT_LANGUAGE)
    return lang if lang in LANGUAGES else DEFAULT_LANGUAGE


def set_language(lang: str) -> None:
    """Effect: every later ``t`` of this session answers in ``lang``. An unknown language is ignored."""
    if lang in LANGUAGES:
        st.session_state[_STATE_KEY] = lang


def match_locale(locale: str | None) -> str | None:
    """The language that serves a browser locale such as ``zh-CN``, or None. Pure."""
    head = (locale or "").replace("_", "-").split("-")[0].lower()
    return head if head in LANGUAGES else None
