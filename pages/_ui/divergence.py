"""Where a changed model leaves the one it was made from: its logit errors token by token, and its answer with a mark.

Shared by the lessons on smaller weights and on long contexts. Words come from the lesson's own texts, under the same
keys: ``errors``, ``errors_alt``, ``errors_x``, ``errors_y``, ``parts``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab.probes import QuantizationError
from engine.lab.records import Run
from pages._ui import charts, session, smaller_weights_charts
from pages._ui.badges import note, provenance
from pages._ui.i18n import language, t
from pages._ui.marked_text import marked
from pages._ui.units import number


def errors(
    namespace: str, found: Mapping[str, QuantizationError], parts: Mapping[str, int | None], runs: list[Run], key: str
) -> None:
    """The largest logit error at each token for int8 and int4, and where the texts part. Effect: Streamlit elements.

    ``found`` and ``parts`` by form, ``int8`` and ``int4``; ``runs`` are those the errors were measured with.
    """
    lang = language()
    words = {"x": t(f"{namespace}.errors_x"), "y": t(f"{namespace}.errors_y"), "parts": t(f"{namespace}.parts")}
    series = {name: error.max_errors for name, error in found.items()}
    rows = {words["x"]: list(range(1, len(series["int8"]) + 1))}
    rows |= {name: [round(value, 4) for value in values] for name, values in series.items()}
    most = {name: number(error.max_logit_error, lang) for name, error in found.items()}
    charts.show(
        smaller_weights_charts.errors(series, parts, words),
        key=key,
        title=t(f"{namespace}.errors"),
        alt=t(f"{namespace}.errors_alt", **most),
        table=pd.DataFrame(rows),
        provenance=lambda: provenance(*runs),
    )


def answer(said: str, run: Run, request_id: str, place: int | None) -> None:
    """An answer as plain text under the sentence ``said``, marked from ``place`` on. Effect: Streamlit elements."""
    spoken = session.store().texts(run.run_id)
    pieces = spoken.pieces.get(request_id, [])
    text = "".join(pieces) or spoken.texts.get(request_id, "")  # pieces: special tokens stand in every answer
    if place is not None and place < len(pieces):
        text = marked(pieces, place)
    note(said)
    st.code(text or " ", language=None, wrap_lines=True)
