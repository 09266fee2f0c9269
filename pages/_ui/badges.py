"""Where a number comes from: measured, modelled or spec. A figure without one of these badges is a defect.

measured = read from a Run (device, dtype, run id beside it); modelled = a formula, one click away; spec = a catalogue
entry with its source. A Run that ships with a lesson was measured too, but elsewhere: it is called recorded, with its
device and date. This module only draws the badges; it never computes what they stand beside.
"""

from __future__ import annotations

import streamlit as st

from engine.lab.observed import UNKNOWN
from engine.lab.records import Run
from engine.lab.words import escape_markdown as escape
from lessons import recorded
from pages._ui.i18n import t

_WORD_JOINER = "\u2060"  # has no width
MOST_IDS = 3  # more Runs than this are counted; their ids stand in the table behind the figure
_LOOK = {
    "measured": ("green", ":material/straighten:"),
    "modelled": ("blue", ":material/function:"),
    "spec": ("violet", ":material/menu_book:"),
    "recorded": ("orange", ":material/history:"),
}
_ORIGIN = "_recorded_origin"  # of the Runs on this page, when they are recorded ones


def page_shows(origin: recorded.Origin | None) -> None:
    """Say once, before a page is drawn, whether the Runs it shows are recorded ones. Effect: on ``badge``."""
    st.session_state[_ORIGIN] = origin


def shows_recorded() -> bool:
    """Whether the page being drawn shows recorded Runs."""
    return st.session_state.get(_ORIGIN) is not None


def badge(kind: str, run: Run | None = None) -> str:
    """Markdown of a badge, to stand beside a number. Pure but for the language.

    ``measured`` becomes ``recorded``, with its date, for a recorded ``run``; without one, where the page shows such.
    """
    origin = st.session_state.get(_ORIGIN) if run is None else _recorded_origin(run)
    if kind == "measured" and origin is not None:
        colour, icon = _LOOK["recorded"]
        return f":{colour}-badge[{icon} {t('common.badge_recorded', date=origin.date)}]"
    colour, icon = _LOOK[kind]
    return f":{colour}-badge[{icon} {t(f'common.badge_{kind}')}]"


def _recorded_origin(run: Run) -> recorded.Origin | None:
    return recorded.origin(run) if recorded.is_recorded(run.run_id) else None


def note(text: str) -> None:
    """Small print. Not ``st.caption``: its faded text is too faint for a projector and for the contrast rules."""
    st.markdown("  \n".join(f":small[{line}]" for line in text.split("  \n")))


def provenance(*runs: Run, modelled: bool = False) -> None:
    """The line under a figure: which Runs it was measured from, and that a model stands beside them."""
    runs = tuple(sorted(runs, key=lambda run: run.run_id))  # in the order in which they were made
    places: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        mark = badge("measured", run)
        places.setdefault((mark, run.header.device.name, run.header.dtype), []).append(escape(run.run_id))
    lines = [
        f"{mark} " + t("common.measured_where", device=_no_link(device), dtype=_precision(dtype), run=_listed(run_ids))
        for (mark, device, dtype), run_ids in places.items()
    ]
    if modelled:
        lines.append(f"{badge('modelled')} {t('common.modelled_where')}")
    note("  \n".join(lines))


def _no_link(device: str) -> str:
    """A server's address as words: made a link by Markdown, it would swallow the Chinese text that follows it."""
    return escape(device.replace("://", f":{_WORD_JOINER}//"))


def _precision(dtype: str) -> str:
    """A server need not say what it computes in."""
    return t("common.dtype_unknown") if dtype == UNKNOWN else dtype


def _listed(run_ids: list[str]) -> str:
    if len(run_ids) <= MOST_IDS:
        return ", ".join(run_ids)
    return t("common.measured_runs", first=run_ids[0], last=run_ids[-1], count=len(run_ids))
