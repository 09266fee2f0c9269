"""Text in two languages, and filling its ``{placeholders}`` with numbers from a Run.

It decides how a number reads in a sentence (three significant digits, thousands apart) and that no sentence is shown
with a hole in it. It never computes a number. Invariant: a ``Text`` always has both languages, neither empty, and both
use the same placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")

Fact = str | int | float | Mapping[str, str]
"""A value for a placeholder: a number, a string that reads the same in both languages, or one string per language."""

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class TextError(ValueError):
    """A text that lacks a language, or a sentence whose placeholder has no value."""


def placeholders(text: str) -> frozenset[str]:
    """Names between braces in ``text``. Pure."""
    return frozenset(_PLACEHOLDER.findall(text))


def _both_languages(text: dict[Lang, str]) -> dict[Lang, str]:
    missing = [lang for lang in LANGS if not text.get(lang, "").strip()]
    if missing:
        raise ValueError(f"text is missing in {', '.join(missing)}; write it in en and zh")
    if placeholders(text["en"]) != placeholders(text["zh"]):
        odd = placeholders(text["en"]) ^ placeholders(text["zh"])
        raise ValueError(f"placeholders differ between en and zh: {', '.join(sorted(odd))}")
    return text


Text = Annotated[dict[Lang, str], AfterValidator(_both_languages)]


def format_number(value: int | float) -> str:
    """A number as it stands in a sentence: whole numbers exactly, others with three significant digits. Pure.

    >>> format_number(12345), format_number(0.034567), format_number(1234.5), format_number(40.0)
    ('12,345', '0.0346', '1,230', '40.0')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    whole_digits = len(str(int(abs(rounded)))) if abs(rounded) >= 1 else 0
    if whole_digits:
        return f"{rounded:.{3 - whole_digits}f}"
    leading_zeros = len(re.match(r"0\.(0*)", f"{abs(rounded):.12f}").group(1))
    return f"{rounded:.{min(3 + leading_zeros, 9)}f}"


def fill(template: str, facts: Mapping[str, Fact], lang: Lang) -> str:
    """Replace every ``{name}`` of ``template`` by its fact. Pure. Raises: TextError naming a fact that is absent."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in facts:
            raise TextError(f"no value for {{{name}}}; have {', '.join(sorted(facts)) or 'none'}")
        fact = facts[name]
        if isinstance(fact, Mapping):
            return fact[lang]
        return fact if isinstance(fact, str) else format_number(fact)

    return _PLACEHOLDER.sub(value, template)


def fill_text(text: Mapping[str, str], facts: Mapping[str, Fact]) -> dict[Lang, str]:
    """``fill`` for both languages. Pure. Raises: TextError."""
    return {lang: fill(text[lang], facts, lang) for lang in LANGS}


def format_seconds(seconds: float) -> str:
    """A duration with its unit: milliseconds below one second. Pure.

    >>> format_seconds(1.6384), format_seconds(0.0044)
    ('1.64 s', '4.40 ms')
    """
    return f"{format_number(float(seconds))} s" if seconds >= 1 else f"{format_number(seconds * 1e3)} ms"


def format_bytes(num_bytes: float) -> str:
    """Bytes in the decimal unit that leaves one to three digits before the point. Pure.

    >>> format_bytes(538_060_032), format_bytes(46_080), format_bytes(14e9)
    ('538 MB', '46.1 kB', '14.0 GB')
    """
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if float(f"{value:.3g}") < 1000:
            break
        value, unit = value / 1000, larger
    return f"{format_number(int(value) if unit == 'B' else value)} {unit}"
