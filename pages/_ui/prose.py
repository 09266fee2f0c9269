"""Lesson texts as Markdown that renders as it was meant, also where Chinese punctuation touches a mark of emphasis.

CommonMark does not close ``**`` between a full-width stop and a letter, nor open it between a letter and a quotation
mark: ``**对。**一个`` would show its asterisks. A hair space beside the mark is all it needs. Pure functions.
"""

from __future__ import annotations

import re
import unicodedata

_BOLD = re.compile(r"\*\*([^*\n]+?)\*\*")
_HAIR_SPACE = "\u200a"


def mend(text: str) -> str:
    """``text`` with a hair space wherever bold would otherwise not open or close."""

    def spaced(match: re.Match[str]) -> str:
        inner, whole = match.group(1), match.string
        before = whole[match.start() - 1] if match.start() else " "
        after = whole[match.end()] if match.end() < len(whole) else " "
        left = _HAIR_SPACE if _is_mark(inner[0]) and not _is_open(before) else ""
        right = _HAIR_SPACE if _is_mark(inner[-1]) and not _is_open(after) else ""
        return f"{left}**{inner}**{right}"

    return _BOLD.sub(spaced, text)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def _is_open(character: str) -> bool:
    """Whether emphasis may begin or end beside this character whatever is inside."""
    return character.isspace() or _is_mark(character)
