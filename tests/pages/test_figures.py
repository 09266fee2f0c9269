"""Every figure of every page: a name for who cannot see it, where its numbers come from, and the numbers as a table.

The walk finds pages by their files, opens each with the Runs recorded for its lesson, and looks at what is drawn: a
page that is added is covered without a word here. A chart drawn past ``charts.show`` is looked for in the sources.
"""

from __future__ import annotations

import ast
import re

import pytest
from streamlit.testing.v1 import AppTest

from lessons import recorded
from lessons.catalog import load_lessons
from lessons.store import Store
from pages._ui.i18n import translate
from tests.pages.conftest import MAIN
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import PAGES

FIGURES = ("plotly_chart", "bidi_component")
LESSONS = {lesson.id for lesson in load_lessons()}
NEVER = {"line_chart", "area_chart", "bar_chart", "scatter_chart", "map", "pyplot", "altair_chart", "vega_lite_chart",
         "graphviz_chart", "pydeck_chart", "bokeh_chart", "image", "iframe"}  # fmt: skip


def nodes(at: AppTest) -> list:
    """All elements and blocks of the page itself, from top to bottom."""
    return list(at.main)


def figures(at: AppTest) -> list[tuple[object, list]]:
    """Each figure with what follows it, up to the next figure or the next heading."""
    found: list[tuple[object, list]] = []
    for node in nodes(at):
        if is_figure(node):
            found.append((node, []))
        elif found and node.type in ("subheader", "header", "title"):
            found.append((None, []))
        elif found:
            found[-1][1].append(node)
    return [(figure, following) for figure, following in found if figure is not None]


def is_figure(node) -> bool:
    return node.type in FIGURES or (node.type == "html" and 'role="img"' in node.proto.body)


def wrong(figure, following: list, lang: str = "en") -> list[str]:
    """What a figure lacks of its three companions."""
    lacks = []
    if figure.type == "plotly_chart" and len(figure.proto.alt) <= 20:
        lacks.append("alternative text")
    if figure.type == "html" and not re.search(r'role="img" aria-label="[^"]{20,}"', figure.proto.body):
        lacks.append("alternative text")
    badges = [f"{re.escape(translate(lang, f'common.badge_{kind}'))}]" for kind in ("measured", "modelled", "spec")]
    badges.append(f"{translate(lang, 'common.badge_recorded', date='.+')}]")
    said = "\n".join(node.value for node in following if node.type == "markdown")
    has_numbers = getattr(figure.proto, "component_name", "") != "token_by_token.concept_map"
    if has_numbers and not any(re.search(badge, said) for badge in badges):
        lacks.append("provenance")
    words = [node for node in following if node.type in ("dataframe", "arrow_data_frame", "expandable", "expander")]
    if not words:
        lacks.append("table")
    return lacks


def studied_page(lab, store: Store, page: str) -> AppTest:
    """The page with its lesson's recorded Runs; where there are none, after a study played through it."""
    lesson_id = page.removeprefix("p_").removesuffix(".py")
    if recorded.exists(lesson_id):
        store.show_recorded(store.learner(LEARNER), lesson_id, True)
        at = lab(page, lang="en")
    else:
        at = lab(page, lang="en")
        if any(str(b.key) == f"run_{lesson_id}" for b in at.button):
            at = finish(start(predict(at) if lesson_id in LESSONS else at, lesson_id), most=60)
    assert not at.exception and not at.error
    return at


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_without_its_name_its_source_and_its_table(lab, store: Store, page: str) -> None:
    at = studied_page(lab, store, page)
    found = figures(at)
    defects = [(getattr(f.proto, "alt", f.type)[:80], wrong(f, following)) for f, following in found]
    assert [defect for defect in defects if defect[1]] == []
    assert found or page.removeprefix("p_").removesuffix(".py") not in LESSONS, "a lesson without a picture"


PAGE = """
import plotly.graph_objects as go
import streamlit as st

st.plotly_chart(go.Figure(), key="a"{alt})
st.markdown("{said}")
{table}
st.subheader("The next one")
st.plotly_chart(go.Figure(), key="b", alt="A second picture, with everything")
st.markdown(":green-badge[{badge}] on a machine")
st.dataframe({{"x": [1]}})
"""
ALT, TABLE = ', alt="Two bars, the second twice as long"', 'st.dataframe({"x": [1]})'


@pytest.mark.parametrize(
    ("alt", "said", "table", "lacks"),
    [
        (ALT, "badge", TABLE, []),
        ("", "badge", TABLE, ["alternative text"]),
        (', alt="Bars"', "badge", TABLE, ["alternative text"]),
        (ALT, "It was fast.", TABLE, ["provenance"]),
        (ALT, "badge", "", ["table"]),
        ("", "", "", ["alternative text", "provenance", "table"]),
    ],
)
def test_what_is_missing_is_seen_and_the_next_figure_does_not_lend_it(alt, said, table, lacks) -> None:
    badge = translate("en", "common.badge_measured")
    said = f":green-badge[:material/straighten: {badge}] on a machine" if said == "badge" else said
    at = AppTest.from_string(PAGE.format(alt=alt, said=said, table=table, badge=badge)).run()
    assert not at.exception
    assert [wrong(figure, following) for figure, following in figures(at)] == [lacks, []]


def test_nothing_is_drawn_past_the_helpers_that_ask_for_all_three() -> None:
    for path in MAIN.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = node.func.attr
            if ast.unparse(node.func).startswith("st.") and name in NEVER:
                pytest.fail(f"{path.name}:{node.lineno} draws with st.{name}: use charts.show")
            if ast.unparse(node.func) == "st.plotly_chart" and path.name != "charts.py":
                pytest.fail(f"{path.name}:{node.lineno} draws a chart of its own: use charts.show")
