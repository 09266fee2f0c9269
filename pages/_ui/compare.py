"""Measured beside modelled: one table with badges, the error as a factor, every formula one click away.

A row that cannot be modelled because the device's ceilings are not measured yet says so instead of showing a number.
The numbers come from ``engine.lab``; here they are only set side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from engine.lab.records import Run
from pages._ui.badges import badge, provenance
from pages._ui.i18n import language, t
from pages._ui.units import factor


@dataclass(frozen=True)
class Row:
    """One quantity. ``measured`` and ``modelled`` in the same unit; ``shown`` turns either into words."""

    name: str
    measured: float | None
    modelled: float | None
    measured_text: str
    modelled_text: str
    formula: str  # Markdown, with the numbers of this run in it

    @property
    def factor(self) -> float | None:
        """measured ÷ modelled, None where one of them is missing or zero."""
        if not self.measured or not self.modelled:
            return None
        return self.measured / self.modelled


def table(rows: Sequence[Row], *runs: Run, key: str) -> None:
    """Draw the comparison. Effect: Streamlit elements."""
    lang = language()
    mark = badge("measured", runs[0] if len(runs) == 1 else None)
    frame = pd.DataFrame(
        {
            t("compare.quantity"): [r.name for r in rows],
            t("compare.measured"): [f"**{r.measured_text}** {mark}" for r in rows],
            t("compare.modelled"): [
                t("compare.no_model") if r.modelled is None else f"{r.modelled_text} {badge('modelled')}" for r in rows
            ],
            t("compare.factor"): [factor(r.factor, lang) for r in rows],
        }
    )
    with st.container(key=key):
        st.table(frame, hide_index=True, border="horizontal", alt=t("compare.alt"))
        provenance(*runs, modelled=True)
        with st.expander(t("compare.formulas"), icon=":material/function:"):
            st.markdown(t("compare.factor_is"))
            for row in rows:
                st.markdown(f"**{row.name}**  \n{row.formula}")
