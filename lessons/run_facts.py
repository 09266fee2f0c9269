"""From the learner's own Runs to the numbers and sentences of a lesson.

It decides which sentences hold for a Run (a note that does not apply is left out) and fills every placeholder with a
value computed by ``engine.lab.metrics``. It never types a number and never judges a prediction (``catalog.compare``
does). Invariant: ``facts`` provides every placeholder of every section in ``sections``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

from engine.lab.records import Run
from lessons.catalog import lesson
from lessons.facts_error import FactsError
from lessons.text import Fact, Lang, fill

__all__ = ["FactsError", "explanation", "facts", "headline", "prediction_answers", "sections", "text"]

Runs = Mapping[str, Run]


def facts(lesson_id: str, runs: Runs) -> dict[str, Fact]:
    """Values for the placeholders of the lesson's texts. Pure. Raises: FactsError when the Runs cannot provide them.

    ``runs`` by role (see ``lessons``): ``{"run": ...}``, or ``{"static": ..., "chunked": ...}`` where policies are
    compared. A value is a number (shown with three significant digits), a string, or a string per language.
    """
    return _module(lesson_id).facts(runs)


def sections(lesson_id: str, runs: Runs) -> tuple[str, ...]:
    """Ids of the sections that hold for these Runs, in reading order: ``after``, ``why``, notes. Raises: FactsError."""
    return tuple(_module(lesson_id).sections(runs))


def prediction_answers(lesson_id: str, runs: Runs) -> dict[str, float | str]:
    """What the Runs answer to the lesson's predictions, by prediction id. Pure. Raises: FactsError."""
    return _module(lesson_id).prediction_answers(runs)


def text(lesson_id: str, section: str, runs: Runs, lang: Lang) -> str:
    """One section with its placeholders filled. Raises: FactsError, LessonError, TextError."""
    return fill(lesson(lesson_id).text(lang, section), facts(lesson_id, runs), lang)


def headline(lesson_id: str, runs: Runs, lang: Lang) -> str:
    """The section ``after``: what happened, in two or three sentences; empty where it does not apply."""
    return text(lesson_id, "after", runs, lang) if "after" in sections(lesson_id, runs) else ""


def explanation(lesson_id: str, runs: Runs, lang: Lang) -> str:
    """The ``why`` of the lesson, with every note that holds for these Runs. Markdown. Raises: FactsError."""
    values = facts(lesson_id, runs)
    parts = [fill(lesson(lesson_id).text(lang, s), values, lang) for s in sections(lesson_id, runs) if s != "after"]
    return "\n\n".join(parts)


def _module(lesson_id: str) -> ModuleType:
    return importlib.import_module(f"lessons.{lesson(lesson_id).id}.facts")
