"""What becomes of the source lesson's claims about latency and load (C10, C11) when they are checked."""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.records import Run
from lessons.claims import Finding
from lessons.facts_error import FactsError
from lessons.metrics.facts import disturbed, facts, levels_off, sweep
from lessons.text import Fact

SOURCE: Mapping[str, Fact] = {"source_ttft": 100, "source_tpot": 20, "source_tokens": 200}


def findings(runs: Mapping[str, Run]) -> dict[str, Finding]:
    """By claim id. The identity is arithmetic; the curve is what the sweep shows, or did not show. Pure."""
    ttft, tpot, tokens = SOURCE.values()
    values: dict[str, Fact] = {**SOURCE, "source_gaps": tokens - 1, "source_e2e": ttft + (tokens - 1) * tpot}
    try:
        values |= facts(runs)
        shows = levels_off(sweep(runs)) and not disturbed(values)
        measured = True
    except FactsError:
        shows, measured = True, False
    return {
        "C10": Finding("holds", values, measured),
        "C11": Finding("holds" if shows else "holds_when", values, measured),
    }
