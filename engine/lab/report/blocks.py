"""What a report is made of, and the one way from there to HTML.

It decides nothing about content. Invariant: whatever a person, a model or a file wrote stays text: the template escapes
it, and the player's data is JSON in which no ``<`` is left, so that no prompt can end the script it stands in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from engine.lab.player import MOUNT, script, stylesheet
from engine.lab.words import shared_texts

Badge = Literal["measured", "modelled", "spec"]
HTML_LANG = {"en": "en", "zh": "zh-CN"}
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Cell:
    """A text with its provenance beside it."""

    text: str
    badge: Badge | None = None


Value = str | Cell


@dataclass(frozen=True)
class Text:
    """A paragraph; ``strong`` for the one that shall be read first."""

    text: Value
    strong: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    rows: Sequence[tuple[str, Value]]


@dataclass(frozen=True)
class Table:
    """``caption`` names it for those who cannot see it. ``folded``: behind a line that opens it."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    folded: bool = False
    numeric_from: int = 1  # columns from here on are set right


@dataclass(frozen=True)
class Code:
    """Text to be copied, behind a line that opens it."""

    title: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """The player with its data (``timeline_payload``). One for a page."""

    payload: dict[str, Any]

    @property
    def json(self) -> str:
        """For a ``script`` element: ``<`` is written as an escape, which JSON reads back as the same text."""
        return json.dumps(self.payload, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


Block = Text | Facts | Table | Code | Timeline


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """``lead`` stands under the title, ``foot`` at the end in small print."""

    lang: str
    title: str
    lead: str
    sections: Sequence[Section]
    foot: str = ""
    badges: Sequence[Badge] = field(default=("measured", "modelled"))  # those explained in the legend


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(content: Page) -> str:
    """The whole file. Pure."""
    words = {k.removeprefix("report."): v for k, v in shared_texts(content.lang).items() if k.startswith("report.")}
    has_player = any(isinstance(block, Timeline) for section in content.sections for block in section.blocks)
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=content,
            words=words,
            html_lang=HTML_LANG[content.lang],
            style=(_FOLDER / "page.css").read_text(encoding="utf-8") + (stylesheet() if has_player else ""),
            script=script() if has_player else "",
            mount=MOUNT,
            kind=lambda block: type(block).__name__,
            as_cell=lambda value: Cell(value) if isinstance(value, str) else value,
        )
    )
