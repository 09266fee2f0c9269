"""The timeline player on a page: one Run, or up to five on one clock, played in the browser.

The page sends the data once; everything that moves moves in the browser, never by rerunning the page. Below the picture
stands the same content as a table and a text, for a screen reader, for print, and for anyone who would rather read.
What is drawn and said is ``engine.lab.player``'s; here it is only mounted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine.lab.player import MOUNT, script, stylesheet
from engine.lab.player.payload import Pieces, partial_run, timeline_payload
from engine.lab.player.twin import timeline_summary, timeline_table
from engine.lab.records import RequestRecord, Run, StepRecord
from lessons import recorded
from pages._ui.badges import note
from pages._ui.i18n import translate
from pages._ui.units import DASH

__all__ = ["called", "partial_run", "timeline_player"]

_component = st.components.v2.component("token_by_token.timeline", html=MOUNT, css=stylesheet(), js=script())


def timeline_player(
    runs: Sequence[tuple[str, Run]],
    *,
    lang: str,
    key: str,
    texts: Sequence[Pieces | None] | None = None,
    live: bool = False,
    autoplay: bool = True,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draw the player for one labelled Run or up to five, and under it their table and summary.

    ``texts`` stands beside ``runs``: for each the text pieces per request (one per output token), or None. With
    ``live`` the Runs may grow from call to call under the same ``key``: the playhead follows the newest step until the
    learner moves it, and keeps its place when the Run is complete. ``autoplay`` plays once when the player comes into
    view; a reader who asked for reduced motion gets the finished picture instead. ``names`` are what requests are
    called in the language of the page, where their ids are words.

    Effect: elements on the page. Raises: ValueError for no Run or more than five.
    """
    if names:
        runs = [(label, called(run, names)) for label, run in runs]
        texts = [said and {names.get(who, who): pieces for who, pieces in said.items()} for said in texts or ()]
    data = timeline_payload(runs, lang, texts=texts, live=live, autoplay=autoplay)
    for (_, run), sent in zip(runs, data["runs"], strict=True):
        if recorded.is_recorded(run.run_id):  # called so everywhere, never "measured"
            sent["badge"] = translate(lang, "common.badge_recorded", date=recorded.origin(run).date)
    _component(key=key, data=data)
    if live:  # the table would be sent again with every step; it comes with the finished Run
        return
    box = st.expander(translate(lang, "player.twin_title"), key=f"{key}_twin", on_change="rerun")
    if not box.open:
        return
    with box:
        st.markdown(timeline_summary(runs, lang))
        for label, run in runs:
            note(translate(lang, "player.table_caption", label=label))
            st.dataframe(
                timeline_table(run, lang), hide_index=True, placeholder=DASH, key=f"{key}_{run.run_id}_{lang}_table"
            )


def called(run: Run, names: Mapping[str, str]) -> Run:
    """The Run with other names for its requests, to look at only. Pure."""

    def said(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: names.get(one, one) if key == "request_id" else said(one) for key, one in value.items()}
        if isinstance(value, list):  # of records, or of the ids of those who came or went
            return [names.get(one, one) if isinstance(one, str) else said(one) for one in value]
        return value

    steps = [StepRecord.model_validate(said(step.model_dump())) for step in run.steps]
    return Run(
        header=run.header,
        steps=steps,
        requests=[RequestRecord.model_validate(said(one.model_dump())) for one in run.requests],
    )
