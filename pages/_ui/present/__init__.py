"""The projector view of a lesson, ``?present=1``, and the speaker's notes in a second window, ``?present=notes``.

The stage is the lesson's own page, drawn large and without a frame; the browser shows one of its sections at a time and
moves by keys, a clicker, buttons, or from the notes window. Nothing is drawn twice and a lesson needs no code for it.
What a learner would lock or answer is put to a show of hands and not stored (``pages/_ui/present/hands.py``).
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from pages._ui.i18n import language, t

PARAMETER = "present"
STAGE, NOTES = "1", "notes"
CHART_SCALE = 1.5  # text and height of a figure on the stage, against the lesson's
_FOLDER = Path(__file__).parent
_CSS = (_FOLDER / "bar.css").read_text(encoding="utf-8")
_BAR = '<div class="bar" role="toolbar">\n</div>'  # a line break inside: a one-line string would be taken for a path
_NOTES_BAR = (
    '<div class="bar" role="toolbar">\n<button class="previous" type="button">‹</button><span class="place">–</span>'
    '<button class="next" type="button">›</button><span class="title"></span>'
    '<span class="clock" role="timer">0:00</span>'
    '<button class="restart" type="button"></button></div>'
)
# Sizes hang on the root's: Streamlit and the lab's own components use rem. Chosen so that a line of text is a thirtieth
# of the picture's height, on 1280 x 720 as on 1920 x 1080.
_STAGE_STYLE = """
html { font-size: clamp(18px, 1.75vw, 40px) !important; }
[data-testid=stHeader], [data-testid=stSidebar], [data-testid=stSidebarCollapsedControl],
[data-testid=stExpandSidebarButton], .st-key-top_bar { display: none !important; }
[data-testid=stMainBlockContainer] { padding: 1rem 2.5rem 5rem !important; max-width: none !important; }
[data-present-off] { display: none !important; }
.st-key-present_bar, .st-key-present_style { position: absolute !important; }
"""
_NOTES_STYLE = """
[data-testid=stHeader], [data-testid=stSidebar], .st-key-top_bar { display: none !important; }
[data-testid=stMainBlockContainer] { padding: 1rem 2rem 6rem !important; }
.st-key-present_bar, .st-key-present_style { position: absolute !important; }
[class*=st-key-note_step_] { padding: 0.5rem 0.8rem; border-left: 6px solid transparent; }
[data-present-now] { border-left-color: currentColor; background: color-mix(in srgb, currentColor 8%, transparent); }
"""

_stage = st.components.v2.component(
    "token_by_token.stage", html=_BAR, css=_CSS, js=(_FOLDER / "stage.js").read_text(encoding="utf-8")
)
_notes = st.components.v2.component(
    "token_by_token.notes", html=_NOTES_BAR, css=_CSS, js=(_FOLDER / "notes.js").read_text(encoding="utf-8")
)


def mode() -> str:
    """``1`` on the stage, ``notes`` in the notes window, else empty. An unknown value is no mode."""
    asked = st.query_params.get(PARAMETER, "")
    return asked if asked in (STAGE, NOTES) else ""


def on_stage() -> bool:
    """Whether the page is drawn for a projector."""
    return mode() == STAGE


def link(page: st.Page, to: str = STAGE) -> None:
    """The way onto the stage of a lesson, or to its notes."""
    carried = {PARAMETER: to, **({"lang": st.query_params["lang"]} if "lang" in st.query_params else {})}
    label, icon = ("link", "co_present") if to == STAGE else ("notes", "menu_book")
    st.page_link(page, label=t(f"present.{label}"), icon=f":material/{icon}:", query_params=carried)


def stage(path: str) -> None:
    """Set the stage: style and bar. Call before the page is drawn; ``path`` is its address."""
    _style(_STAGE_STYLE)
    words = {name: t(f"present.{name}") for name in ("previous", "next", "notes", "leave", "before")}
    with st.container(key="present_bar"):
        _stage(key="present_stage", data={"path": path, "lang": language(), "words": words})


def notes_bar(path: str) -> None:
    """Style and bar of the notes window."""
    _style(_NOTES_STYLE)
    words = {name: t(f"present.{name}") for name in ("previous", "next", "restart")}
    with st.container(key="present_bar"):
        _notes(key="present_notes", data={"path": path, "lang": language(), "words": words})


def _style(css: str) -> None:
    with st.container(key="present_style"):
        st.html(f"<style>{css}</style>")
