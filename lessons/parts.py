"""The parts of a lesson's experiment: scenarios that run one after the other, each with its role in the lesson.

It decides what identifies an experiment, and who knows a lesson's standard one: ``default_parts`` of its
``scenarios.py``, which must ask for the same as its page does with untouched settings. It runs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.lab.scenario import Scenario
from lessons.catalog import lesson
from lessons.stored import experiment_of
from lessons.text import Lang


@dataclass(frozen=True)
class Part:
    """One scenario of an experiment. ``label`` is the role of its Run in the lesson (a policy, or ``run``).

    ``scenario`` is None where it depends on the Runs of the parts before it; it is then made from ``asked``
    (plain JSON) when its turn comes (``lessons.later``).
    """

    label: str
    scenario: Scenario | None
    asked: Mapping[str, Any] | None = None

    def plain(self) -> dict[str, Any]:
        """The part as JSON can hold it. Pure."""
        scenario = None if self.scenario is None else self.scenario.model_dump(mode="json")
        return {"label": self.label, "scenario": scenario, "asked": dict(self.asked or {})}


def default_parts(lesson_id: str, lang: Lang = "en") -> list[Part]:
    """The experiment of the lesson's page with untouched settings, in ``lang``. Raises: LessonError, ScenarioError."""
    module = importlib.import_module(f"lessons.{lesson(lesson_id).id}.scenarios")
    return list(module.default_parts(lang))


def fingerprint(plain_parts: Sequence[Mapping[str, Any]]) -> str:
    """What the Runs of one experiment share in the database, from ``Part.plain`` of each part. Pure."""
    return experiment_of([part["scenario"] or {"label": part["label"], **part["asked"]} for part in plain_parts])
