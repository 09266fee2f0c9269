"""What a prefix cache and guesses saved in a Run, of those that its scenario switched on, for a summary in one object.

It decides only which of the two belong there; the counting is theirs (``prefix_use``, ``draft_use``). Pure, no torch.
"""

from __future__ import annotations

from dataclasses import asdict

from engine.lab.draft_use import draft_use
from engine.lab.prefix_use import prefix_use
from engine.lab.records import Run


def savings(run: Run) -> dict[str, dict[str, float | int | None]]:
    """``prefix_cache`` and ``speculation``, each with its counts and rates; neither where neither was on. Pure."""
    scenario = run.header.scenario
    found: dict[str, dict[str, float | int | None]] = {}
    if (scenario.get("limits") or {}).get("prefix_cache", "none") != "none":
        use = prefix_use(run)
        found["prefix_cache"] = {**asdict(use), "hit_rate": use.hit_rate}
    if scenario.get("speculation"):
        drafts = draft_use(run)
        rates = {"acceptance_rate": drafts.acceptance_rate, "tokens_per_decode_row": drafts.tokens_per_decode_row}
        found["speculation"] = asdict(drafts) | rates
    return found
