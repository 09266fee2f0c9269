"""What the Runs with a long prompt say about the others' gaps and its own TTFT, as values for the lesson's sentences.

It decides which notes hold: what chunks cost the long prompt here, whether the largest budget still cut it, whether the
machine was disturbed, and how near the roofline comes. Counted quantities (steps, tokens) are the same on every device.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.metrics import step_spread
from engine.lab.records import Run
from lessons.chunked_prefill.points import Point, points, usual_gap_s
from lessons.chunked_prefill.scenarios import BUDGETS, LONG, WHOLE, WITHOUT
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes, format_seconds

NOISY = 0.5  # (p90 - p10)/median of like steps from which on the times are spoken of with care
CLEAR = 1.15  # two times nearer than this are not spoken of as different
NEAR = (0.7, 1.5)  # measured over modelled gap within which the roofline explains it

Runs = Mapping[str, Run]


def needed(runs: Runs) -> tuple[Point, list[Point]]:
    """(whole, chunked by budget, largest first). Raises: FactsError when there is too little for a curve."""
    found = {point.role: point for point in points(runs)}
    chunked = [point for role, point in found.items() if role != WHOLE]
    if WHOLE not in found or len(chunked) < len(BUDGETS):
        raise FactsError(f"{len(found)} of {1 + len(BUDGETS)} runs with the long prompt are there; run the whole study")
    if len({(p.length, len(p.run.requests)) for p in found.values()}) > 1:
        raise FactsError("the runs served different requests; run the whole study")
    return found[WHOLE], chunked


def facts(runs: Runs) -> dict[str, Fact]:
    whole, chunked = needed(runs)
    usual_s = usual_gap_s(runs)
    large, small = chunked[0], chunked[-1]
    others = len(whole.run.requests) - 1
    spread = step_spread(runs[WITHOUT], "decode")
    values: dict[str, Fact] = {
        "long": LONG,
        "length": whole.length,
        "others": others,
        "usual_ms": 1e3 * usual_s,
        "whole_gap_ms": 1e3 * whole.worst.seconds,
        "whole_ratio": whole.worst.seconds / usual_s,
        "whole_ttft": format_seconds(whole.ttft_s),
        "whole_tokens": whole.worst.num_tokens,
        "whole_held": _steps(whole.held_steps),
        "large_budget": large.budget,
        "small_budget": small.budget,
        "large_gap_ms": 1e3 * large.worst.seconds,
        "small_gap_ms": 1e3 * small.worst.seconds,
        "small_ratio": small.worst.seconds / usual_s,
        "gap_gain": whole.worst.seconds / small.worst.seconds,
        "small_ttft": format_seconds(small.ttft_s),
        "large_ttft": format_seconds(large.ttft_s),
        "ttft_ratio": small.ttft_s / whole.ttft_s,
        "small_tokens": small.worst.num_tokens,
        "small_chunk": small.budget - others,
        "small_steps": small.num_chunks,
        "large_steps": large.num_chunks,
        "large_tokens": large.most_tokens,
        "whole_reads": format_bytes(whole.weight_reads),
        "small_reads": format_bytes(small.weight_reads),
        "one_read": format_bytes(small.run.header.model.weight_bytes),
        "held_chunked": _steps(max(point.held_steps for point in chunked)),
        "spread": spread.relative or 0.0,
        "longest_wait_ms": 1e3 * max(point.queue_s for point in (whole, *chunked)),
    }
    gap_model, ttft_model = whole.modelled_gap_s(), small.modelled_ttft_s()
    if gap_model and ttft_model:
        values |= {
            "gap_model_ms": 1e3 * gap_model,
            "gap_factor": whole.worst.seconds / gap_model,
            "ttft_model": format_seconds(ttft_model),
            "ttft_factor": small.ttft_s / ttft_model,
        }
    return values


def _steps(count: int) -> Fact:
    return {"en": f"{count} step{'' if count == 1 else 's'}", "zh": f"{count} 步"}


def sections(runs: Runs) -> list[str]:
    values = facts(runs)
    found = ["after", "why", "note_held"]
    if values["spread"] > NOISY:
        found.append("note_noisy")
    found.append("note_cost" if values["ttft_ratio"] > CLEAR else "note_cost_small")
    if values["large_steps"] == 1:
        found.append("note_uncut")
    if "gap_factor" not in values:
        found.append("note_no_ceilings")
    else:
        low, high = NEAR
        near = low <= values["gap_factor"] <= high
        found.append("note_model_near" if near else "note_model_far")
    return [*found, "note_choose"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    values = facts(runs)
    return {"gap_growth": values["whole_ratio"], "ttft_cost": values["ttft_ratio"]}
