"""The engine's own sentences in the language of the page: what is wrong, with the value, the allowed range, the remedy.

The engine, its command line and its HTTP API speak English. As gettext does, ``text/en/engine_says.yaml`` holds those
sentences as they are said, with placeholders, and the other languages hold their translations under the same keys. A
sentence is found by its fixed words; a placeholder whose name begins other keys (``allowed``, ``rule``, ...) is
translated by those. What is not in the list stands in English behind a few words that say so. A test holds the list to
the engine's source. It decides only words.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache

from pages._ui.badges import escape
from pages._ui.i18n import catalogue, language, translate

_NS = "engine_says"
_WHOLE = "say"  # the group of whole sentences; ``reason`` and ``detail`` hold one
_GROUPS = {"reason": _WHOLE, "detail": _WHOLE}
_SHAPES = {
    "field": r"[\w.\[\]-]+",
    "invariant": "[a-z_]+",
    "choice": r"[\w.]+",
    "low": r"-?[\d.e+]+",
    "address": r"['\"].*",
}


def said(sentence: str, lang: str | None = None) -> str:
    """A sentence of the engine as Markdown, in the session's language unless another is given."""
    lang = lang or language()
    return escape(sentence) if lang == "en" else _translated(_WHOLE, sentence, lang)


def _translated(group: str, text: str, lang: str) -> str:
    for key, pattern in _patterns(group):
        found = pattern.fullmatch(text)
        if found:
            parts = found.groupdict().items()
            values = {name: _translated(_GROUPS.get(name, name), part, lang) for name, part in parts}
            return translate(lang, f"{_NS}.{key}", **values)
    return escape(text)


@lru_cache
def _patterns(group: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Key and pattern of the English sentences of a group, those with the most fixed words first."""
    own = {k.removeprefix(f"{_NS}."): v for k, v in catalogue("en").items() if k.startswith(f"{_NS}.{group}_")}
    fixed_first = sorted(own, key=lambda key: -sum(len(words) for words, *_ in string.Formatter().parse(own[key])))
    return tuple((key, _pattern(own[key])) for key in fixed_first)


def _pattern(template: str) -> re.Pattern[str]:
    parts: list[str] = []
    names: set[str] = set()
    for words, name, _, _ in string.Formatter().parse(template):
        parts.append(re.escape(words).replace("…", ".*?"))
        if name in names:
            parts.append(f"(?P={name})")
        elif name is not None:
            parts.append(f"(?P<{name}>{_SHAPES.get(name, '.*?')})")
            names.add(name)
    return re.compile("".join(parts), re.DOTALL)
