"""Scenarios that depend on Runs made before them, as the loads of a sweep depend on what the device can carry.

It decides who makes such a Scenario: ``later`` of the lesson's own ``scenarios.py``. It runs nothing and keeps nothing.
Invariant: what was asked for is plain JSON, so an experiment can go on after a reload, from its stored Runs alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.catalog import lesson


def later_scenario(lesson_id: str, label: str, asked: Mapping[str, Any], runs: Mapping[str, Run]) -> Scenario:
    """The Scenario of the part ``label`` of an experiment, from the Runs of the parts before it. Pure.

    Raises: FactsError when those Runs do not say what is needed, ScenarioError for a value that is not allowed.
    """
    module = importlib.import_module(f"lessons.{lesson(lesson_id).id}.scenarios")
    return module.later(label, asked, runs)
