"""The standard experiment of the lesson; its workload is in ``lessons.scenarios``."""

from __future__ import annotations

from lessons.parts import Part
from lessons.scenarios import SUGGESTED_PROMPTS, prefill_decode
from lessons.text import Lang


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part("run", prefill_decode(SUGGESTED_PROMPTS[lang][0]))]
