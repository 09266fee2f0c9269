"""What the two Runs of one workload, static and continuous, say against each other."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping

from engine.lab.metrics import (
    all_request_metrics,
    duration_s,
    makespan_s,
    num_rows,
    run_metrics,
    step_kind,
)
from engine.lab.records import Run, StepRecord
from lessons.facts_error import FactsError
from lessons.reasons import REASON_TEXT, main_reason
from lessons.scenarios import preset_of
from lessons.text import Fact, format_seconds

ALIKE = 1.25  # median durations of like steps in the two runs that differ by more mean a disturbed machine
SMALL_GAIN = 1.25  # total time, static over continuous, below which the gain is not called large
CLEAR = 1.1  # two numbers nearer than this are not spoken of as different
FEWEST_STEPS = 5  # like steps needed before a median of their durations is quoted


def both(runs: Mapping[str, Run]) -> tuple[Run, Run]:
    """(static, continuous). Raises: FactsError when one is missing, unfinished or of another workload."""
    missing = [name for name in ("static", "chunked") if name not in runs]
    if missing:
        raise FactsError(f"there is no {' and no '.join(missing)} run yet; run both policies first")
    static, chunked = runs["static"], runs["chunked"]
    if {r.request_id for r in static.requests} != {r.request_id for r in chunked.requests}:
        raise FactsError("the two runs served different requests; run both policies on one workload")
    for run in (static, chunked):
        for record in run.requests:
            if record.first_token_s is None or record.completion_s is None or record.finish_reason == "abort":
                raise FactsError(f"request {record.request_id} did not finish; run both policies again")
    return static, chunked


def padding_rows(run: Run) -> Counter[str]:
    """How many rows were computed for each request after it had finished."""
    return Counter(row.request_id for step in run.steps for row in step.scheduled if row.phase == "padding")


def steps_with(run: Run, *phases: str) -> list[StepRecord]:
    return [step for step in run.steps if any(row.phase in phases for row in step.scheduled)]


def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    static, chunked = both(runs)
    ours, theirs = run_metrics(chunked), run_metrics(static)
    found: dict[str, Fact] = {
        "num_requests": theirs.num_requests,
        "max_requests": int(static.header.scenario["limits"]["max_requests"]),
        "token_counts": _token_counts(theirs.num_output_tokens, ours.num_output_tokens),
        "static": format_seconds(makespan_s(static)),
        "continuous": format_seconds(makespan_s(chunked)),
        "times_sooner": makespan_s(static) / makespan_s(chunked),
        "step_ratio": len(static.steps) / len(chunked.steps),
        "throughput_static": theirs.output_tokens_per_s,
        "throughput_continuous": ours.output_tokens_per_s,
        "mean_e2e_static": format_seconds(theirs.e2e_s.mean),
        "mean_e2e_continuous": format_seconds(ours.e2e_s.mean),
        "mean_e2e_ratio": theirs.e2e_s.mean / ours.e2e_s.mean,
    }
    for more in (_row_facts(static, chunked), _wait_facts(static, chunked), _like_steps(static, chunked)):
        found |= more
    return found | _step_time_facts(chunked)


def sections(runs: Mapping[str, Run]) -> list[str]:
    static, chunked = both(runs)
    values = facts(runs)
    found = ["after", "why"]
    if preset_of(static.header.scenario) == "abcd" and values["idle_b"] > 0:
        found.append("note_abcd")
    if not values["padding_tokens"]:
        found.append("note_no_padding")
    if "waiter" in values:
        found.append("note_waiting")
    if "late_one" in values:
        found.append("note_still_waiting")
    if is_disturbed(values):
        return [*found, "note_noisy"]  # what follows compares seconds
    if "rows_few" in values:
        dear = values["step_time_ratio"] - 1 > 0.5 * (values["rows_ratio"] - 1)
        found.append("note_step_time_dear" if dear else "note_step_time")
    pace = values["step_ratio"] / values["times_sooner"]
    if max(pace, 1 / pace) > CLEAR and _is_busy(static) and _is_busy(chunked):
        found.append("note_same_pace")
    if values["mean_e2e_ratio"] > CLEAR:
        found.append("note_gain_small" if values["times_sooner"] < SMALL_GAIN else "note_gain_large")
    return found


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    """Answers to the predictions that are asked for the Runs' preset."""
    static, _ = both(runs)
    values = facts(runs)
    answers: dict[str, float | str] = {"times_sooner": values["times_sooner"]}
    if preset_of(static.header.scenario) == "abcd":
        answers["idle_steps_b"] = values["idle_b"]
    else:
        answers["padding_percent"] = values["padding_share"]
    return answers


def _token_counts(static: int, chunked: int) -> Fact:
    """The same requests give the same tokens, but for a near tie that rounding may tip; then both counts are said."""
    if static == chunked:
        return {"en": f"the same {static:,} tokens", "zh": f"生成的也都是 {static:,} 个 token"}
    return {
        "en": f"{static:,} and {chunked:,} tokens",
        "zh": f"分别生成了 {static:,} 和 {chunked:,} 个 token",
    }


def _row_facts(static: Run, chunked: Run) -> dict[str, Fact]:
    """Rows: one request's share of one decode step."""
    decode_steps = steps_with(static, "decode")
    padding = padding_rows(static)
    useful = sum(1 for step in decode_steps for row in step.scheduled if row.phase == "decode")
    num_rows_all = useful + padding.total()
    full_steps = max(1, math.ceil(useful / int(static.header.scenario["limits"]["max_requests"])))
    continuous = [num_rows(step) for step in steps_with(chunked, "decode")]
    return {
        "static_decode_steps": len(decode_steps),
        "static_rows": num_rows_all,
        "padding_tokens": padding.total(),
        "padding_share": 100 * padding.total() / num_rows_all if num_rows_all else 0.0,
        "full_steps": full_steps,
        "bound_times": len(decode_steps) / full_steps,
        "rows_static": useful / len(decode_steps) if decode_steps else 0.0,
        "rows_continuous": statistics.fmean(continuous) if continuous else 0.0,
        "idle_a": padding["A"],
        "idle_b": padding["B"],
    }


def _wait_facts(static: Run, chunked: Run) -> dict[str, Fact]:
    """Who waited longest under each policy with a recorded reason, and what the other policy made of it."""
    queue_s = {name: {k: m.queue_s for k, m in all_request_metrics(run).items()} for name, run in
               (("static", static), ("chunked", chunked))}  # fmt: skip
    found: dict[str, Fact] = {}
    longest = max(queue_s["static"], key=lambda k: queue_s["static"][k])
    reason = main_reason(static, longest)
    if reason is not None:
        found |= {
            "waiter": longest,
            "wait_static": format_seconds(queue_s["static"][longest]),
            "wait_continuous": format_seconds(queue_s["chunked"][longest]),
            "waiter_reason": REASON_TEXT[reason],
        }
    longest = max(queue_s["chunked"], key=lambda k: queue_s["chunked"][k])
    reason = main_reason(chunked, longest)
    if reason == "request_limit":
        found |= {
            "late_one": longest,
            "late_wait": format_seconds(queue_s["chunked"][longest]),
            "late_reason": REASON_TEXT[reason],
        }
    return found


def is_disturbed(values: Mapping[str, Fact]) -> bool:
    """Whether like steps of the two runs took clearly different times, so that their seconds cannot be compared."""
    ratio = values.get("like_ratio", 1.0)
    return max(ratio, 1 / ratio) > ALIKE


def _like_steps(static: Run, chunked: Run) -> dict[str, Fact]:
    """Median duration of pure decode steps with equally many rows, padding included, in either run."""
    of_static, of_chunked = _durations_by_rows(static), _durations_by_rows(chunked)
    common = [rows for rows in of_static if rows in of_chunked]
    if not common:
        return {}
    rows = max(common)
    return {
        "like_rows": _requests(rows),
        "like_static_ms": 1e3 * of_static[rows],
        "like_continuous_ms": 1e3 * of_chunked[rows],
        "like_ratio": of_static[rows] / of_chunked[rows],
    }


def _durations_by_rows(run: Run) -> dict[int, float]:
    """Median seconds of pure decode steps by their number of rows, padding included, where there are enough of them."""
    durations: dict[int, list[float]] = {}
    for step in run.steps:
        if step_kind(step) == "decode":
            durations.setdefault(len(step.scheduled), []).append(duration_s(step))
    return {rows: statistics.median(times) for rows, times in durations.items() if len(times) >= FEWEST_STEPS}


def _step_time_facts(run: Run) -> dict[str, Fact]:
    """Median duration of pure decode steps with the fewest and with the most rows, where there are enough of both."""
    enough = _durations_by_rows(run)
    if len(enough) < 2:
        return {}
    few, many = min(enough), max(enough)
    return {
        "rows_few": _requests(few),
        "rows_many": _requests(many),
        "rows_ratio": many // few if many % few == 0 else many / few,
        "step_ms_few": 1e3 * enough[few],
        "step_ms_many": 1e3 * enough[many],
        "step_time_ratio": enough[many] / enough[few],
    }


def _requests(count: int) -> Fact:
    return {"en": f"{count} request{'s' if count > 1 else ''}", "zh": f"{count} 个请求"}


def _is_busy(run: Run) -> bool:
    """Whether the engine was computing nearly all the time, rather than waiting for arrivals."""
    return sum(duration_s(step) for step in run.steps) > 0.9 * makespan_s(run)
