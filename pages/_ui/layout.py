"""The frame every page shares: language of the document, headings in lesson order, the engine's state in the sidebar.

It draws and never computes. Headings carry language-neutral anchors, so a link to a section works in both languages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

import streamlit as st

from lessons import recorded
from lessons.catalog import Lesson
from pages._ui import palette, present, session
from pages._ui.badges import escape, note, page_shows
from pages._ui.engine_words import said
from pages._ui.i18n import t
from pages._ui.units import byte_count, number

STEPS = ("predict", "run", "look", "compare", "why", "quiz")
_HTML_LANG = {"en": "en", "zh": "zh-CN"}
# On a phone the badges would leave the words of a comparison one or two characters a line, and the trace of a question
# would break its columns; in the heads of wide tables they go, the lines below the table say the same. What
# may be chosen in a file field stands in its label, in the language of the page.
_STYLE = """
#content { outline: none; }
.st-key-skip { position: absolute; z-index: 1; }
.st-key-skip a:not(:focus) { position: absolute; left: -99rem; }
.st-key-skip a { padding: 0.4rem 0.8rem; border-radius: 0.4rem; background: Canvas; color: LinkText; }
:is([data-testid=stMain], [data-testid=stPageLink-NavLink], [data-testid=stDataFrame] canvas):focus-visible
  { outline: 3px solid currentColor !important; outline-offset: -3px; }
[class*='st-key-lead'] p { font-size: 1.25rem; font-weight: 600; line-height: 1.45; }
@media (min-width: 641px) { [data-testid=stLayoutWrapper]:has(> [class*='st-key-narrow_']) { display: none; } }
@media (max-width: 640px) {
  [data-testid=stTable] :is(td, th) { padding: 0.3rem 0.3rem !important; }
  :is([class*='_compare'], [class*='st-key-pg_phases'], .st-key-pg_figures, .st-key-claims_table,
    .st-key-ceilings_table) :is(td, th):first-child { min-width: 5.5rem; }
  :is(.st-key-ceilings_table th, [class*='_compare'] th:last-child) :is(p, div) { white-space: nowrap !important; }
  [data-testid=stTable] .stMarkdownBadge { font-size: 0.7rem !important; padding: 0 0.1rem !important; }
  :is(.st-key-pg_figures, .st-key-claims_table) th .stMarkdownBadge { display: none !important; }
  .st-key-dg_objectives :is(td, th) { min-width: 3.4rem; }
  .st-key-dg_objectives .stMarkdownBadge { white-space: normal !important; }
  :is([data-testid=stForm], [class*='st-key-exam_']) pre code { font-size: 0.65rem !important; }
}
[data-testid=stFileUploaderDropzoneInstructions] { display: none; }
"""
# Streamlit speaks English only. Its hint in a field, "Press Enter to submit form", says what the button beside it says;
# the word on a file field's button is replaced, for a screen reader too: a name has no part that is not visible.
# The English word of the file button shrinks to nothing and is not hidden: a button needs a name of its own.
_CHINESE_STYLE = """
[data-testid=InputInstructions] {{ display: none; }}
[data-testid=stFileUploaderDropzone] button p {{ font-size: 0; }}
[data-testid=stFileUploaderDropzone] button p::after {{ content: "{word}"; font-size: 1rem; }}
"""
_DARK_STYLE = "[data-testid^='stBaseButton-primary']:not(:disabled) { color: #10100f !important; }"
# Code as Streamlit colours it has less than 4.5 to 1 against its ground for some words, in both modes.
_CODE_STYLE = """
pre .token {{ color: {word} !important; }}
pre .token:is(.keyword, .function, .class-name, .builtin, .boolean) {{ color: {blue} !important; }}
pre .token:is(.string, .string-interpolation, .number) {{ color: {green} !important; }}
pre .token:is(.comment, .punctuation, .operator) {{ color: {quiet} !important; }}
"""
_CODE_HUES = {
    "light": {"word": "#31333f", "blue": "#005b8f", "green": "#00603f", "quiet": "#595f69"},
    "dark": {"word": "#edebe8", "blue": "#7fc4f0", "green": "#5fd0a8", "quiet": "#b9b6b0"},
}

_CONTENT = "content"  # where the link leads that leaps over the navigation


# The link that led to a page is gone when the page is drawn: without this the focus would be nowhere, or far down.
_SCRIPT = """
document.documentElement.lang = {lang};
const [page, before] = [{page}, window.tokenByTokenPage];
window.tokenByTokenPage = page;
const focused = document.activeElement;
if (before !== undefined && before !== page && !focused?.closest("[data-testid=stSidebar]"))
  document.getElementById("{content}").focus();
"""


def page_chrome(lang: str, page: str) -> None:
    """Tell the document its language, begin a new page with the focus at its top, and mend what the theme cannot.

    Streamlit always declares English, so a screen reader would read Chinese with an English voice. Its primary buttons
    are white on the accent colour in both modes; the accent that is readable as text on dark is too light for that.
    """
    mode = "dark" if st.context.theme.type == "dark" else "light"
    script = _SCRIPT.format(lang=json.dumps(_HTML_LANG[lang]), page=json.dumps(page), content=_CONTENT)
    st.html(
        f"<span id='{_CONTENT}' tabindex='-1'></span><style>{_STYLE}{_DARK_STYLE if mode == 'dark' else ''}"
        f"{_CODE_STYLE.format(**_CODE_HUES[mode])}"
        f"{_CHINESE_STYLE.format(word=t('common.choose_file')) if lang == 'zh' else ''}</style>"
        f"<script>{{{script}}}</script>",
        unsafe_allow_javascript=True,
    )


def lesson_header(lesson: Lesson, lang: str) -> None:
    """Title, the goal in one sentence, its length. Effect: from here on badges know what Runs the page shows."""
    shown = session.store().shows_recorded(session.learner(), lesson.id)
    page_shows(recorded.origin(next(iter(recorded.runs(lesson.id).values()))) if shown else None)
    st.title(lesson.title[lang], anchor=False)
    lead(lesson.goal[lang], "goal")
    note(t("common.lesson_minutes", minutes=lesson.minutes))


def lead(text: str, name: str) -> None:
    """One sentence that a page wants read first: larger, but no heading."""
    with st.container(key=f"lead_{name}"):
        st.markdown(text)


def step_header(step: str) -> None:
    """Heading of one of the fixed steps of a lesson, numbered in their order."""
    st.header(f"{STEPS.index(step) + 1} · {t(f'common.step_{step}')}", anchor=step, divider="gray")


def later_steps(*steps: str) -> None:
    """The headings of steps that come after the run, so that the way ahead is visible before it."""
    for step in steps:
        step_header(step)
        note(t("common.after_run"))


def no_run(text: str) -> None:
    """What comes here after the run. On the stage nothing is locked, so a room is told what it can do instead."""
    st.info(t("present.no_run") if present.on_stage() else text, icon=":material/insights:")


# ------------------------------------------------------------------------------------------------- sidebar
_LOGO = """
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 32" role="img" aria-label="{name}">
<circle cx="8" cy="16" r="6.5" fill="{blue}"/><circle cx="24" cy="16" r="6.5" fill="{orange}"/>
<circle cx="40" cy="16" r="5.5" fill="none" stroke="{orange}" stroke-width="2"/>
<text x="56" y="23" font-family="Source Sans, Noto Sans CJK SC, PingFang SC, Microsoft YaHei, sans-serif"
 font-size="21" font-weight="700" fill="{ink}">{name}</text></svg>
"""


# The first two of the logo's tokens. Not one of Streamlit's icons: a browser would fetch that from another server.
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    f'<circle cx="9" cy="16" r="7" fill="{palette.PREFILL}"/>'
    f'<circle cx="24" cy="16" r="7" fill="{palette.DECODE}"/></svg>'
)


def logo() -> None:
    """The product's name above the navigation: a prompt token, a made token, the next one."""
    name, ink = t("common.product"), palette.ink(st.context.theme.type)
    width = 60 + (12 if name.isascii() else 22) * len(name)  # generous: what does not fit is cut
    st.logo(_LOGO.format(width=width, name=name, blue=palette.PREFILL, orange=palette.DECODE, ink=ink), size="large")


def navigation(home: st.Page, lessons: Sequence[Lesson], pages: Mapping[str, st.Page], *others: st.Page) -> None:
    """The pages as links, chapter by chapter, that carry the language: one opened in a new tab speaks it too.

    Drawn here and not by ``st.navigation``: its list has elements between ``ul`` and ``li`` that break a screen reader.
    """
    with st.container(key="skip"):
        st.html(f"<a href='#{_CONTENT}'>{t('common.skip')}</a>")
    carried = {"lang": st.query_params["lang"]} if "lang" in st.query_params else None
    st.page_link(home, query_params=carried)
    for chapter, together in groupby(lessons, key=lambda lesson: lesson.chapter):
        note(f"**{t(f'common.nav_{chapter}')}**")
        for lesson in together:
            st.page_link(pages[lesson.id], query_params=carried, help=None)
    note(f"**{t('common.nav_others')}**")
    for page in others:
        st.page_link(page, query_params=carried, help=None)
    st.divider()


def next_page(shown: str, lessons: Sequence[Lesson], pages: Mapping[str, st.Page], last: st.Page) -> None:
    """The way on, where a lesson ends: without it, who has no mouse goes back through the whole navigation."""
    ids = [lesson.id for lesson in lessons]
    after = ids.index(shown) + 1
    target = pages[ids[after]] if after < len(ids) else last
    carried = {"lang": st.query_params["lang"]} if "lang" in st.query_params else None
    with st.container(key="next_page"):
        st.page_link(
            target,
            label=t("common.next_page", title=target.title),
            icon=":material/arrow_forward:",
            query_params=carried,
            help=None,
        )


def engine_card() -> None:
    """Engine state, device and model. It looks again on its own: soon while the engine starts, seldom once it runs."""
    st.fragment(_engine_card, run_every=5 if session.engine_state().ready else 1.5)()


def _engine_card() -> None:
    state = session.look_at_engine()
    if state.ready != session.engine_state().ready:
        session.see_engine()
        st.rerun()  # the page's buttons and the pace of this fragment depend on it
    with st.container(border=True, key="engine_card"):
        st.markdown(f"**{t('common.engine')}** · {engine_word(state)}")
        if state.state in ("starting", "loading"):
            if state.fraction is not None:
                st.progress(min(max(state.fraction, 0.0), 1.0), text=stage_word(state.stage))
            elif state.stage:
                note(stage_word(state.stage))
        if state.ready and state.stage == "calibrate":
            note(stage_word(state.stage))
        if state.state == "failed":
            st.error(t("common.engine_failed_why", message=said(state.message)))
        if state.state == "down":
            note(t("common.engine_down_hint"))
        _device_lines()


def _device_lines() -> None:
    about = session.device()
    if about is None:
        return
    device, model = about.get("device") or {}, about.get("default_model") or {}
    if device:
        note(t("common.device_line", name=escape(device["name"]), threads=device["threads"]))
    if model:
        lang = session.i18n.language()
        note(
            t(
                "common.model_line",
                name=escape(model["name"]),
                parameters=number(model["num_parameters"] / 1e6, lang),
                size=byte_count(model["weight_bytes"], lang),
            )
        )


def engine_word(state: session.EngineState) -> str:
    colour = {"ready": "green", "failed": "red", "down": "red"}.get(state.state, "orange")
    icon = {"ready": "check_circle", "failed": "error", "down": "cloud_off"}.get(state.state, "hourglass_top")
    return f":{colour}[:material/{icon}:] {t(f'common.engine_{state.state}')}"


def stage_word(stage: str) -> str:
    """The engine names its stages by short ids; one we have no word for is shown as it is."""
    try:
        return t(f"common.stage_{stage}")
    except KeyError:
        return escape(stage)


def store_notice(lang: str) -> None:
    """Say it when the learner's records were lost or will be."""
    notice = session.store().notice_in(lang)
    if notice:
        st.warning(escape(notice), icon=":material/database_off:")
