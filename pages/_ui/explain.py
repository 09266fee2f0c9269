"""The words of a lesson around its pictures: what to know before, why it came out so, and the code that does it.

Texts come from the lesson's folder; their numbers are filled from the learner's own Runs by ``lessons.run_facts``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

import streamlit as st

from engine.lab.records import Run
from lessons.catalog import Lesson
from lessons.run_facts import FactsError, explanation, headline
from pages._ui import against, present
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.prose import mend

ROOT = Path(__file__).resolve().parents[2]
TEXT_WIDTH = 760  # pixels; longer lines are hard to read


def _text_width() -> int | Literal["stretch"]:
    return "stretch" if present.on_stage() else TEXT_WIDTH


def before(lesson: Lesson) -> None:
    """What a learner needs to know to predict, and what people often believe."""
    section(lesson, "before")
    with st.container(width=_text_width()), st.expander(t("common.misconceptions"), icon=":material/psychology_alt:"):
        st.markdown("\n".join(f"- {mend(belief)}" for belief in lesson.misconceptions[language()]))


def section(lesson: Lesson, name: str) -> None:
    """One section of the lesson's text that has no numbers of a Run in it."""
    with st.container(width=_text_width()):
        st.markdown(mend(lesson.text(language(), name)))


def happened(lesson: Lesson, runs: Mapping[str, Run]) -> None:
    """What the Runs showed, in two or three sentences."""
    try:
        sentence = headline(lesson.id, dict(runs), language())
    except FactsError:
        return
    if sentence:
        with st.container(width=_text_width()):
            st.markdown(f"{mend(sentence)} {badge('measured')}")


def why(lesson: Lesson, runs: Mapping[str, Run]) -> None:
    """The explanation with the numbers of these Runs, what to keep of it, and the places in the source."""
    with st.container(width=_text_width()):
        try:
            st.markdown(mend(explanation(lesson.id, dict(runs), language())))
            provenance(*runs.values(), modelled=True)
        except FactsError:  # a run that was cut short may lack what the text is about
            st.info(t("common.no_explanation"), icon=":material/info:")
    against.panel(lesson)
    with st.container(width=_text_width()):
        st.subheader(t("common.in_short"), anchor=False)
        st.markdown(mend(lesson.text(language(), "summary")))
    code(lesson)


def code(lesson: Lesson) -> None:
    """The places in the source that do what the lesson explains, each readable on the spot."""
    with st.expander(t("common.code"), icon=":material/code:"):
        for link in lesson.code:
            st.markdown(f"{link.label[language()]}  \n`{link.symbol}`")
            found = source(link.symbol)
            if found is not None:
                text, line = found
                note(t("common.code_line", line=line))
                st.code(text, language="python", wrap_lines=True)


@lru_cache(maxsize=256)
def source(symbol: str) -> tuple[str, int] | None:
    """The text of the function or class a code link names, and its first line; None when it is not there."""
    path, _, dotted = symbol.partition("::")
    try:
        text = (ROOT / path).read_text(encoding="utf-8")
        node: ast.AST = ast.parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    for name in dotted.split("."):
        inner = (n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == name)
        node = next(inner, None)
        if node is None:
            return None
    return ast.get_source_segment(text, node, padded=True), node.lineno
