"""The claims of the source lesson that a lesson checks: what is said, derived again, measured here, and the verdict.

It draws what ``lessons.claims`` found, as cards: sentences in the cells of a table cannot be read on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from engine.lab.records import Run
from lessons.claims import Claim, claims
from pages._ui.badges import badge
from pages._ui.i18n import language, t
from pages._ui.prose import mend

LOOK = {
    "holds": ("green", "check_circle"),
    "holds_when": ("orange", "rule"),
    "does_not_hold": ("red", "cancel"),
}


def draw(lesson_id: str, runs: Mapping[str, Run]) -> None:
    """All claims of the lesson. Effect: Streamlit elements."""
    st.subheader(t("claims.title"), anchor=False)
    for claim in claims(lesson_id, runs):
        card(claim)


def card(claim: Claim) -> None:
    """One claim with its verdict. Effect: Streamlit elements."""
    lang = language()
    lines = [
        f"**{claim.id} · {t('claims.says')}** {claim.says[lang]}",
        f"{badge('modelled')} {claim.derived[lang]}",
        f"{badge('measured')} {claim.measured[lang]}" if claim.measured else t("claims.not_measured"),
        f"{verdict(claim)} {claim.condition[lang]}",
    ]
    with st.container(border=True, key=f"claim_{claim.id}"):
        st.markdown("\n\n".join(mend(line) for line in lines))


def verdict(claim: Claim) -> str:
    """The verdict in a few words, with its sign. Markdown."""
    colour, icon = LOOK[claim.verdict]
    return f":{colour}[:material/{icon}: **{t(f'claims.{claim.verdict}')}**]"
