"""What a load sweep says about latency and throughput, as values for the lesson's sentences.

It decides which notes hold: whether throughput has levelled off, where the knee is, whether a plain queue explains the
waiting, how much of the growth is waiting and how much slower steps. What is said of one request comes from the Run in
which it was alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.metrics import (
    duration_s,
    inter_token_gaps,
    percentile,
    request_metrics,
    step_kind,
    step_spread,
    token_times,
)
from engine.lab.records import RequestRecord, Run
from lessons.facts_error import FactsError
from lessons.metrics.scenarios import OUTPUT_TOKENS, PROMPT_TOKENS, capacity_rps
from lessons.metrics.sweep import (
    Load,
    knee,
    loads,
    mean_gap_s,
    modelled_queue_s,
    places,
    service_s,
    slowest_start,
)
from lessons.text import Fact

LEVELS_OFF = 1.2  # throughput of the last load over the one before, below which it has levelled off
AGREE = 1.5  # measured and modelled wait that differ by less than this factor agree
LEAST_WAIT_S = 0.005  # a mean wait below this is no queue
UNEVEN = 1.3  # gaps in steps with a newcomer's prompt over those without, from which on they are called uneven
NOISY = 0.5
ALIKE = 1.5  # median times of like steps in two of the Runs that differ by more mean a disturbed machine
FEWEST_STEPS = 5  # like steps needed before a median of their times is quoted

Runs = Mapping[str, Run]


def lone(runs: Runs) -> tuple[Run, RequestRecord]:
    """The Run with one request, and its record. Raises: FactsError when it is missing or unfinished."""
    run = runs.get("alone")
    if run is None or not run.requests or request_metrics(run.requests[0]).tpot_s is None:
        raise FactsError("there is no finished run of a request alone yet; run the whole study")
    return run, run.requests[0]


def sweep(runs: Runs) -> list[Load]:
    """All loads. Raises: FactsError when there are too few for a curve."""
    found = loads(runs)
    if knee(found) is None:
        raise FactsError(f"there are {len(found)} finished loads; run the whole study")
    return found


def facts(runs: Runs) -> dict[str, Fact]:
    found = sweep(runs)
    capacity = capacity_rps(runs)
    low, high = found[0], found[-1]
    best = knee(found)
    values: dict[str, Fact] = {
        "num_loads": len(found),
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "places": places(high.run),
        "capacity_rps": capacity,
        "capacity_tps": capacity * OUTPUT_TOKENS,
        "low_offered": low.offered_rps,
        "high_offered": high.offered_rps,
        "load_ratio": high.offered_rps / low.offered_rps,
        "high_percent": 100 * high.offered_rps / capacity,
        "low_ttft_ms": 1e3 * low.ttft_s,
        "high_ttft_ms": 1e3 * high.ttft_s,
        "ttft_growth": high.ttft_s / low.ttft_s,
        "low_tpot_ms": 1e3 * low.tpot_s,
        "high_tpot_ms": 1e3 * high.tpot_s,
        "tpot_growth": high.tpot_s / low.tpot_s,
        "low_tps": low.tokens_per_s,
        "high_tps": high.tokens_per_s,
        "before_offered": found[-2].offered_rps,
        "before_tps": found[-2].tokens_per_s,
        "knee_offered": best.offered_rps,
        "knee_percent": 100 * best.offered_rps / capacity,
        "knee_tps": best.tokens_per_s,
        "knee_e2e_ms": 1e3 * best.e2e_s,
        "high_e2e_ms": 1e3 * high.e2e_s,
        "past_knee_tps": high.tokens_per_s / best.tokens_per_s,
        "past_knee_e2e": high.e2e_s / best.e2e_s,
    }
    return (
        values
        | _lone_facts(runs)
        | _queue_facts(runs, high)
        | _little_facts(found)
        | _gap_facts(high)
        | _like_facts(runs)
    )


def _lone_facts(runs: Runs) -> dict[str, Fact]:
    run, record = lone(runs)
    metrics = request_metrics(record)
    gap_s = mean_gap_s(run, record.request_id)
    durations = step_spread(run, "decode")
    gaps = inter_token_gaps(run, record.request_id)
    return {
        "alone_ttft_ms": 1e3 * metrics.ttft_s,
        "alone_tpot_ms": 1e3 * gap_s,
        "alone_e2e_ms": 1e3 * metrics.e2e_s,
        "alone_tokens": record.num_output_tokens,
        "alone_gaps": record.num_output_tokens - 1,
        "identity_ms": 1e3 * (metrics.ttft_s + (record.num_output_tokens - 1) * gap_s),
        "spread": durations.relative or 0.0,
        "spread_low_ms": 1e3 * percentile(gaps, 10),
        "spread_high_ms": 1e3 * percentile(gaps, 90),
    }


def _queue_facts(runs: Runs, high: Load) -> dict[str, Fact]:
    """Waiting at the highest load, measured and as a plain queue would have it."""
    held_s = service_s(runs)
    modelled_s = modelled_queue_s(high.run, held_s)
    worst = slowest_start(high.run)
    return {
        "queue_ms": 1e3 * high.queue_s,
        "queue_percent": 100 * high.queue_s / high.ttft_s,
        "queue_model_ms": 1e3 * modelled_s,
        "queue_factor": high.queue_s / modelled_s if modelled_s > 0 else 0.0,
        "held_ms": 1e3 * held_s,
        "worst_request": worst.request_id,
        "worst_ttft_ms": 1e3 * request_metrics(worst).ttft_s,
        "worst_queue_ms": 1e3 * request_metrics(worst).queue_s,
    }


def _little_facts(found: list[Load]) -> dict[str, Fact]:
    """Little's law at a load in the middle: how many requests are there, counted and computed."""
    middle = found[len(found) // 2]
    return {
        "middle_offered": middle.offered_rps,
        "middle_rps": middle.requests_per_s,
        "middle_e2e_ms": 1e3 * middle.e2e_s,
        "in_system": middle.in_system,
        "in_system_little": middle.requests_per_s * middle.e2e_s,
    }


def _gap_facts(high: Load) -> dict[str, Fact]:
    """Gaps at the heaviest load, by what else was in the step that ended them: nothing, or newcomers' prompts."""
    kinds = {step.step: step_kind(step) for step in high.run.steps}
    gaps: dict[str, list[float]] = {"decode": [], "mixed": []}
    for tokens in token_times(high.run).values():
        for token in tokens[1:]:
            gaps[kinds[token.step]].append(token.latency_s)
    if not gaps["decode"] or not gaps["mixed"]:
        return {}
    pure_s, mixed_s = percentile(gaps["decode"], 50), percentile(gaps["mixed"], 50)
    return {
        "gap_pure_ms": 1e3 * pure_s,
        "gap_mixed_ms": 1e3 * mixed_s,
        "gap_ratio": mixed_s / pure_s,
        "gap_longest_ms": 1e3 * max(gaps["decode"] + gaps["mixed"]),
    }


def _like_facts(runs: Runs) -> dict[str, Fact]:
    """Decode steps with equally many requests do the same work in every Run: where their times differ most."""
    medians: dict[int, list[float]] = {}
    for run in runs.values():
        durations: dict[int, list[float]] = {}
        for step in run.steps:
            if step_kind(step) == "decode":
                durations.setdefault(len(step.scheduled), []).append(duration_s(step))
        for rows, times in durations.items():
            if len(times) >= FEWEST_STEPS:
                medians.setdefault(rows, []).append(percentile(times, 50))
    several = {rows: times for rows, times in medians.items() if len(times) > 1}
    if not several:
        return {}
    rows = max(several, key=lambda count: max(several[count]) / min(several[count]))
    low, high = min(several[rows]), max(several[rows])
    requests = {"en": f"{rows} request{'s' if rows > 1 else ''}", "zh": f"{rows} 个请求"}
    return {"like_rows": requests, "like_low_ms": 1e3 * low, "like_high_ms": 1e3 * high, "like_ratio": high / low}


def levels_off(found: list[Load]) -> bool:
    """Whether the last load has hardly more throughput than the one before, though it is clearly larger. Pure."""
    before, last = found[-2], found[-1]
    return last.tokens_per_s < LEVELS_OFF * before.tokens_per_s and last.offered_rps > LEVELS_OFF * before.offered_rps


def disturbed(values: Mapping[str, Fact]) -> bool:
    """Whether like steps of the Runs took so different times that their seconds cannot be compared. Pure."""
    return values.get("like_ratio", 1.0) > ALIKE


def sections(runs: Runs) -> list[str]:
    values, found = facts(runs), sweep(runs)
    shown = ["after", "why", "note_identity"]
    if disturbed(values):
        return [*shown, "note_disturbed", "note_little"]  # what is left out compares seconds of several Runs
    if values["spread"] > NOISY:
        shown.append("note_noisy")
    best = knee(found)
    shown.append("note_knee_end" if best is found[-1] else "note_knee_start" if best is found[0] else "note_knee")
    shown.append("note_levels_off" if levels_off(found) else "note_still_rising")
    if found[-1].queue_s > LEAST_WAIT_S and values["queue_model_ms"] > 1e3 * LEAST_WAIT_S:
        agrees = 1 / AGREE < values["queue_factor"] < AGREE
        shown.append("note_queue_agrees" if agrees else "note_queue_differs")
    else:
        shown.append("note_no_queue")
    if values.get("gap_ratio", 0.0) > UNEVEN:
        shown.append("note_gaps")
    return [*shown, "note_little"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    values = facts(runs)
    return {"ttft_growth": values["ttft_growth"], "tpot_growth": values["tpot_growth"]}
