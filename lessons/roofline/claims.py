"""What becomes of the source lesson's claims about ridge points and prefill (C4, C5, C6) when they are checked."""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.records import Run
from lessons.claims import Finding
from lessons.facts_error import FactsError
from lessons.roofline.facts import SHORT_PROMPT, catalogue_facts, facts


def findings(runs: Mapping[str, Run]) -> dict[str, Finding]:
    """By claim id. The catalogue alone derives them; the Runs of the study add this device's own numbers. Pure."""
    try:
        values = facts(runs)
    except FactsError:
        values = catalogue_facts()
    measured = "ridge" in values
    ten_is_enough = measured and values.get("cross_model", SHORT_PROMPT + 1) <= SHORT_PROMPT
    return {
        "C4": Finding("holds_when", values, measured),
        "C5": Finding("does_not_hold", values, measured),
        "C6": Finding("holds_when" if ten_is_enough else "does_not_hold", values, "cross_model" in values),
    }
