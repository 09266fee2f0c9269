"""The standard experiment of the lesson; its workloads are in ``lessons.scenarios``."""

from __future__ import annotations

from lessons.parts import Part
from lessons.scenarios import batching
from lessons.text import Lang


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(policy, batching("abcd", policy, lang=lang)) for policy in ("static", "chunked")]
