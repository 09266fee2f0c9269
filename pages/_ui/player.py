"""The timeline player on a page: one Run, or up to five on one clock, played in the browser.

The page sends the data once; everything that moves moves in the browser, never by rerunning the page. Below the picture
stands the same content as a table and a text, for a screen reader, for print, and for anyone who would rather read.
What is drawn and said is ``engine.lab.player``'s; here it is only mounted.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine.lab.player import MOUNT, script, stylesheet
from engine.lab.player.payload import Pieces, partial_run, timeline_payload
from engine.lab.player.twin import timeline_summary, timeline_table
from engine.lab.records import Run
from lessons import recorded
from pages._ui.i18n import translate

__all__ = ["partial_run", "timeline_player"]

_component = st.components.v2.component("token_by_token.timeline", html=MOUNT, css=stylesheet(), js=script())


def timeline_player(
    runs: Sequence[tuple[str, Run]],
    *,
    lang: str,
    key: str,
    texts: Sequence[Pieces | None] | None = None,
    live: bool = False,
    autoplay: bool = True,
) -> None:
    """Draw the player for one labelled Run or up to five, and under it their table and summary.

    ``texts`` stands beside ``runs``: for each the text pieces per request (one per output token), or None. With
    ``live`` the Runs may grow from call to call under the same ``key``: the playhead follows the newest step until the
    learner moves it, and keeps its place when the Run is complete. ``autoplay`` plays once when the player comes into
    view; a reader who asked for reduced motion gets the finished picture instead.

    Effect: elements on the page. Raises: ValueError for no Run or more than five.
    """
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
            st.caption(translate(lang, "player.table_caption", label=label))
            st.dataframe(timeline_table(run, lang), hide_index=True, key=f"{key}_{run.run_id}_{lang}_table")
