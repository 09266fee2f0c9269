"""The concept map as an SVG whose boxes are links to the lessons, and the same as a list for those who read.

It decides where boxes and arrows go on a fixed grid and draws only text of the course's own, escaped. Colours come from
the theme, so both modes work; the two hues are those of prefill and decode. The list below says all that the map says.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from lessons.summary.concepts import COLUMNS, ROWS, Concept, ConceptMap, Relation, concept_map
from pages._ui import palette
from pages._ui.i18n import language, t

_WIDE, _HIGH = 164, 58  # a box
_STEP_X, _STEP_Y = 278, 122  # from one box to the next
_EDGE = 10
_SIZE = (2 * _EDGE + (COLUMNS - 1) * _STEP_X + _WIDE, 2 * _EDGE + (ROWS - 1) * _STEP_Y + _HIGH)
_HUES = {"prefill": palette.PREFILL, "decode": palette.DECODE}
_LINE_LETTERS = 14  # a longer name of two words gets two lines

_CSS = """
.map { overflow-x: auto; }
svg { min-width: 540px; width: 100%; max-width: 900px; height: auto; display: block; margin: 0 auto; }
.box { fill: var(--st-secondary-background-color); stroke: var(--st-border-color); stroke-width: 1.5; }
.name { fill: var(--st-text-color); font: 600 17px var(--st-font); text-anchor: middle; dominant-baseline: central; }
.how { fill: var(--st-text-color); font: 14px var(--st-font); text-anchor: middle; dominant-baseline: central;
  paint-order: stroke; stroke: var(--st-background-color); stroke-width: 6px; stroke-linejoin: round; }
.line { stroke: var(--st-text-color); stroke-opacity: 0.55; stroke-width: 1.6; fill: none; }
.head { fill: var(--st-text-color); fill-opacity: 0.7; }
a:hover .box, a:focus .box { stroke: var(--st-primary-color); stroke-width: 3; }
a:focus { outline: none; }
"""
_JS = """
export default function ({ parentElement, data }) {
  parentElement.querySelector(".map").innerHTML = data.svg;
}
"""
_component = st.components.v2.component(
    "token_by_token.concept_map", html='<div class="map">\n</div>', css=_CSS, js=_JS
)


@dataclass(frozen=True)
class _Point:
    x: float
    y: float


def draw(pages: Mapping[str, st.Page]) -> None:
    """The map and, one click away, its list. ``pages``: the lessons there are pages for, by id."""
    lang, found = language(), concept_map()
    links = {lesson_id: f"{page.url_path}?lang={lang}" for lesson_id, page in pages.items()}
    _component(key="concept_map", data={"svg": to_svg(found, lang, links, t("summary.map_alt"))})
    with st.expander(t("summary.map_list"), icon=":material/format_list_bulleted:"):
        for lesson_id, page in pages.items():
            mine = [concept for concept in found.concepts if concept.lesson == lesson_id]
            if mine:
                st.page_link(page)
                st.markdown("\n".join(f"- {line(concept, found, lang)}" for concept in mine))


def line(concept: Concept, found: ConceptMap, lang: str) -> str:
    """A concept in one sentence, with what it leads to. Markdown. Pure."""
    leads = [f"{r.how[lang]} {found.concept(r.end).name[lang]}" for r in found.relations if r.start == concept.id]
    after = f" → {'; '.join(leads) if lang == 'en' else '；'.join(leads)}" if leads else ""
    return (
        f"**{concept.name[lang]}**: {concept.text[lang]}{after}"
        if lang == "en"
        else (f"**{concept.name[lang]}** {concept.text[lang]}{after}")
    )


# ------------------------------------------------------------------------------------------------- SVG
def to_svg(found: ConceptMap, lang: str, links: Mapping[str, str], label: str) -> str:
    """The picture. ``links``: address by lesson id; a concept without one is a plain box. Pure."""
    arrows = "".join(_arrow(relation, found, lang) for relation in found.relations)
    boxes = "".join(_box(concept, lang, links.get(concept.lesson)) for concept in found.concepts)
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE[0]} {_SIZE[1]}" role="group" '
        f'aria-label="{html.escape(label)}">{head}{arrows}{boxes}</svg>'
    )


def _corner(concept: Concept) -> _Point:
    return _Point(_EDGE + concept.at[0] * _STEP_X, _EDGE + concept.at[1] * _STEP_Y)


def _box(concept: Concept, lang: str, link: str | None) -> str:
    corner = _corner(concept)
    hue = _HUES.get(concept.id)
    stripe = f'<rect x="{corner.x}" y="{corner.y}" width="8" height="{_HIGH}" rx="4" fill="{hue}"/>' if hue else ""
    body = (
        f"<title>{html.escape(concept.text[lang])}</title>"
        f'<rect class="box" x="{corner.x}" y="{corner.y}" width="{_WIDE}" height="{_HIGH}" rx="8"/>{stripe}'
        + _name(concept.name[lang], corner.x + _WIDE / 2, corner.y + _HIGH / 2)
    )
    return f'<a href="{html.escape(link)}" target="_self">{body}</a>' if link else f"<g>{body}</g>"


def _name(name: str, x: float, y: float) -> str:
    words = name.split(" ")
    if len(name) <= _LINE_LETTERS or len(words) != 2:
        return f'<text class="name" x="{x}" y="{y}">{html.escape(name)}</text>'
    return "".join(
        f'<text class="name" x="{x}" y="{y + shift}">{html.escape(word)}</text>'
        for word, shift in zip(words, (-11, 11), strict=True)
    )


def _arrow(relation: Relation, found: ConceptMap, lang: str) -> str:
    start, end = _ends(found.concept(relation.start), found.concept(relation.end))
    x, y = (start.x + end.x) / 2, (start.y + end.y) / 2
    if start.y == end.y:
        y -= 11  # beside a level line, not on it
    return (
        f'<path class="line" marker-end="url(#head)" d="M{start.x} {start.y} L{end.x} {end.y}"/>'
        f'<text class="how" x="{x}" y="{y}">{html.escape(relation.how[lang])}</text>'
    )


def _ends(first: Concept, second: Concept) -> tuple[_Point, _Point]:
    """Where the arrow leaves the first box and meets the second. Boxes are neighbours, also across a corner."""
    a, b = _corner(first), _corner(second)
    across = (second.at[0] > first.at[0]) - (second.at[0] < first.at[0])
    down = (second.at[1] > first.at[1]) - (second.at[1] < first.at[1])
    if not down:
        sides = (_WIDE, 0) if across > 0 else (0, _WIDE)
        return _Point(a.x + sides[0], a.y + _HIGH / 2), _Point(b.x + sides[1], b.y + _HIGH / 2)
    lift = (_HIGH, 0) if down > 0 else (0, _HIGH)
    shift = 0.3 * _WIDE * across
    return _Point(a.x + _WIDE / 2 + shift, a.y + lift[0]), _Point(b.x + _WIDE / 2 - shift, b.y + lift[1])
