"""What the five Runs of one workload say against each other, as values for the lesson's sentences.

It decides which notes hold: a rung that pays nothing under the chosen limits is said to pay nothing. What is counted
(steps, tokens, blocks, refusals) is the same on every device; what is timed is spoken of with its Run.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.metrics import all_request_metrics, step_spread
from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.reasons import REASON_TEXT, main_reason
from lessons.scheduling_ladder.rungs import Rung, recomputed_tokens, refused_steps, rungs
from lessons.scheduling_ladder.scenarios import PREVIOUS, RUNGS
from lessons.text import Fact, format_seconds

NOISY = 0.5  # (p90 - p10)/median of like steps from which on the times are spoken of with care

Runs = Mapping[str, Run]


def ladder(runs: Runs) -> dict[str, Rung]:
    """All five rungs. Raises: FactsError when one is missing or served other requests."""
    found = rungs(runs)
    missing = [policy for policy in RUNGS if policy not in found]
    if missing:
        raise FactsError(f"there is no run of {', '.join(missing)} yet; run the whole ladder")
    limits = [rung.run.header.scenario["limits"] for rung in found.values()]
    asked = [{r.request_id: r.num_prompt_tokens for r in rung.run.requests} for rung in found.values()]
    if any(other != limits[0] for other in limits) or any(other != asked[0] for other in asked):
        raise FactsError("the runs served different requests or limits; run the whole ladder")
    return found


def facts(runs: Runs) -> dict[str, Fact]:
    found = ladder(runs)
    static, top = found["static"], found["cache_aware"]
    limits = static.run.header.scenario["limits"]
    values: dict[str, Fact] = {
        "num_requests": len(static.run.requests),
        "places": int(limits["max_requests"]),
        "budget": int(limits["max_batch_tokens"]),
        "blocks": int(limits["num_blocks"]),
        "gain": top.tokens_per_s / static.tokens_per_s,
        "spread": max(step_spread(rung.run, "decode").relative or 0.0 for rung in found.values()),
    }
    for policy, rung in found.items():
        name = "aware" if policy == "cache_aware" else policy
        values |= {
            f"{name}_tps": rung.tokens_per_s,
            f"{name}_span": format_seconds(rung.makespan_s),
            f"{name}_steps": rung.num_steps,
            f"{name}_gap": format_seconds(rung.worst.seconds),
            f"{name}_held": rung.held_steps,
            f"{name}_empty": rung.mean_empty_blocks,
            f"{name}_most": rung.most_at_once,
            f"{name}_cached": rung.cached_tokens,
            f"{name}_computed": rung.computed_tokens,
        }
    values |= {
        "static_padding": static.padding_tokens,
        "static_midway": static.admitted_midway,
        "orca_midway": found["orca"].admitted_midway,
        "orca_no_blocks": found["orca"].refusals()["no_blocks"],
    }
    return values | _preemption_facts(found) | _wait_facts(found)


def _preemption_facts(found: Mapping[str, Rung]) -> dict[str, Fact]:
    """The rung with the most preemptions, and what they cost; empty where nobody was preempted."""
    worst = max(found.values(), key=lambda rung: rung.num_preemptions)
    if not worst.num_preemptions:
        return {}
    names = [r.request_id for r in worst.run.requests if r.num_preemptions]
    count = worst.num_preemptions
    return {
        "victims": ", ".join(names),
        "victim_policy": NAMES[worst.policy],
        "victim_times": {"en": "once" if count == 1 else f"{count} times in all", "zh": f"{count} 次"},
        "recomputed": recomputed_tokens(worst.run),
    }


NAMES: Mapping[str, Mapping[str, str]] = {
    "static": {"en": "static batching", "zh": "静态批处理"},
    "orca": {"en": "Orca", "zh": "Orca"},
    "paged": {"en": "paged", "zh": "分页"},
    "chunked": {"en": "chunked", "zh": "分块"},
    "cache_aware": {"en": "cache-aware", "zh": "缓存优先"},
}


def _wait_facts(found: Mapping[str, Rung]) -> dict[str, Fact]:
    """Who waited longest on the bottom rung, and what the top rung made of the same request."""
    static, top = found["static"].run, found["cache_aware"].run
    queues = {name: m.queue_s or 0.0 for name, m in all_request_metrics(static).items()}
    waiter = max(queues, key=lambda name: queues[name])
    reason = main_reason(static, waiter)
    if reason is None:
        return {}
    again = main_reason(top, waiter)
    nothing = {"en": "nothing was recorded, it was never refused", "zh": "没有记录，它从未被拒绝"}
    return {
        "waiter": waiter,
        "wait_static": format_seconds(queues[waiter]),
        "wait_steps": refused_steps(static, waiter).total(),
        "wait_reason": REASON_TEXT[reason],
        "wait_top": format_seconds(all_request_metrics(top)[waiter].queue_s or 0.0),
        "wait_top_reason": nothing if again is None else REASON_TEXT[again],
    }


def sections(runs: Runs) -> list[str]:
    values, found = facts(runs), ladder(runs)
    shown = ["after", "why"]
    if values["spread"] > NOISY:
        shown.append("note_noisy")
    shown.append("note_static")
    shown.append("note_orca" if values["orca_no_blocks"] else "note_orca_roomy")
    shown.append("note_paged" if found["paged"].most_at_once > found["orca"].most_at_once else "note_paged_roomy")
    shown.append("note_chunked")
    if "victims" in values:
        shown.append("note_preempted")
    more = found["cache_aware"].cached_tokens > found["chunked"].cached_tokens
    shown.append("note_cache" if more else "note_cache_nothing")
    if "waiter" in values:
        shown.append("note_waited")
    return shown


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    found = ladder(runs)
    gains = {policy: found[policy].tokens_per_s / found[below].tokens_per_s for policy, below in PREVIOUS.items()}
    return {"ladder_gain": facts(runs)["gain"], "best_rung": max(gains, key=lambda policy: gains[policy])}
