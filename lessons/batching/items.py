"""Questions about the learner's own two runs, static and continuous. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import all_request_metrics, kv_of_request, request_metrics, request_record, step_kind
from engine.lab.records import Run, StepRecord
from engine.lab.replay import BlockMap
from lessons.batching.facts import padding_rows
from lessons.generated import Draft, Generator, tpot_draft
from lessons.reasons import REASON_TEXT, RECORDED, refusals
from lessons.text import Fact, format_seconds

Runs = Mapping[str, Run]
MOSTLY = 0.8  # a recorded reason explains a wait when it covers at least this part of it
LEAST_WAIT_S = 0.005  # a shorter wait is not worth a question
_POLICY: Mapping[str, Fact] = MappingProxyType(
    {"static": {"en": "static", "zh": "静态"}, "chunked": {"en": "continuous", "zh": "连续"}}
)


def _names(runs: Runs) -> list[str]:
    """The runs that are there and finished, by role."""
    return [k for k in ("static", "chunked") if k in runs and all(r.completion_s is not None for r in runs[k].requests)]


# ------------------------------------------------------------------ waiting


def waited(runs: Runs, rng: random.Random) -> Draft | None:
    """Which request waited, how long, and why: one true sentence among false ones."""
    cases = [(name, request_id) for name in _names(runs) for request_id in _explained(runs[name])]
    if not cases:
        return None
    name, request_id = rng.choice(cases)
    run = runs[name]
    metrics = request_metrics(request_record(run, request_id))
    reason = refusals(run, request_id)[0].why
    false_reasons = [why for why in RECORDED if why != reason]
    others = [r.request_id for r in run.requests if not refusals(run, r.request_id)]
    other = rng.choice(others) if others else None
    return Draft(
        values={
            "policy": _POLICY[name],
            "request": request_id,
            "wait": format_seconds(metrics.queue_s),
            "reason": REASON_TEXT[reason],
            "false_reason": REASON_TEXT[rng.choice(false_reasons)],
            "ttft": format_seconds(metrics.ttft_s),
            "e2e": format_seconds(metrics.e2e_s),
            "other": other or "",
        },
        runs=(run,),
        options=("reason_confused", "wait_includes_prefill", "wait_is_e2e", *(("everybody_waits",) if other else ())),
    )


def _explained(run: Run) -> list[str]:
    """Requests whose wait before their first step has one recorded reason that covers nearly all of it."""
    found = []
    for request_id, metrics in all_request_metrics(run).items():
        recorded = refusals(run, request_id)
        if len({w.why for w in recorded}) == 1 and sum(w.seconds for w in recorded) >= MOSTLY * (metrics.queue_s or 0):
            found.append(request_id)
    return found


def enter_step(runs: Runs, rng: random.Random) -> Draft | None:
    """In which step a request that had to wait was first computed."""
    cases = [(name, r.request_id) for name in _names(runs) for r in runs[name].requests]
    cases = [(name, i) for name, i in cases if refusals(runs[name], i)]
    if not cases:
        return None
    name, request_id = rng.choice(cases)
    run = runs[name]
    steps = _steps_of(run, request_id)
    first_token = next(s.step for s in steps if any(o.request_id == request_id for o in s.outputs))
    other = runs.get("chunked" if name == "static" else "static")
    elsewhere = _steps_of(other, request_id) if other else []
    before = [s for s in run.steps if s.step == steps[0].step - 1]
    made_room = any(o.finish_reason for s in before for o in s.outputs)
    refused = next(s.step for s in run.steps if any(r.request_id == request_id for r in s.refused))
    return Draft(
        values={"policy": _POLICY[name], "request": request_id, "step": steps[0].step, "before": steps[0].step - 1},
        runs=(run,),
        answer=steps[0].step,
        whole=True,
        traps={
            "policies_confused": elsewhere[0].step if elsewhere else None,
            "place_free_in_same_step": steps[0].step - 1 if made_room else None,
            "arrival_is_entry": refused,
            "first_token_is_entry": first_token if first_token > steps[0].step else None,
        },
    )


def _steps_of(run: Run, request_id: str) -> list[StepRecord]:
    return [s for s in run.steps if any(row.request_id == request_id for row in s.scheduled)]


# ------------------------------------------------------------------ padding and blocks held for nothing


def padding(runs: Runs, rng: random.Random) -> Draft | None:
    """How many rows a static batch computed for a request that was done."""
    if "static" not in _names(runs):
        return None
    run = runs["static"]
    idle = padding_rows(run)
    if not idle:
        return None
    request_id = rng.choice(sorted(idle))
    record = request_record(run, request_id)
    mates = [r for r in run.requests if r.first_scheduled_s == record.first_scheduled_s]
    next_end = min((r.completion_s for r in mates if r.completion_s > record.completion_s), default=None)
    padded_steps = [
        s for s in run.steps if any(r.request_id == request_id and r.phase == "padding" for r in s.scheduled)
    ]
    until_next = sum(1 for s in padded_steps if next_end is not None and s.t_end_s <= next_end)
    return Draft(
        values={
            "request": request_id,
            "num_output_tokens": record.num_output_tokens,
            "idle": idle[request_id],
            "longest": max(mates, key=lambda r: r.completion_s).request_id,
        },
        runs=(run,),
        answer=idle[request_id],
        whole=True,
        traps={
            "finished_rows_cost_nothing": 0,
            "idle_until_next_finishes": until_next,
            "idle_is_own_length": record.num_output_tokens,
            "idle_whole_batch": idle[request_id] + record.num_output_tokens,
        },
    )


def blocks_held(runs: Runs, rng: random.Random) -> Draft | None:
    """How many KV blocks a finished row of a static batch still held."""
    if "static" not in _names(runs):
        return None
    run = runs["static"]
    idle = sorted(padding_rows(run))
    if not idle:
        return None
    request_id = rng.choice(idle)
    record = request_record(run, request_id)
    last = next(s.step for s in run.steps for o in s.outputs if o.request_id == request_id and o.finish_reason)
    held = _blocks_after(run, last)[request_id]
    filled = kv_of_request(run, request_id)[-1].num_tokens
    size = run.header.block_size
    num_tokens = record.num_prompt_tokens + record.num_output_tokens
    return Draft(
        values={
            "request": request_id,
            "step": last,
            "num_prompt_tokens": record.num_prompt_tokens,
            "num_output_tokens": record.num_output_tokens,
            "block_size": size,
            "held": held,
        },
        runs=(run,),
        answer=held,
        whole=True,
        traps={
            "finished_holds_nothing": 0,
            "only_filled_blocks": math.ceil(filled / size),
            "cache_holds_answer_only": math.ceil(record.num_output_tokens / size),
            "block_begun_not_counted": num_tokens // size,
        },
    )


def _blocks_after(run: Run, step: int) -> dict[str, int]:
    """How many blocks each request holds after a step, from the block events alone."""
    blocks = BlockMap(run.header.num_blocks)
    for record in run.steps:
        if record.step > step:
            break
        for event in record.block_events:
            blocks.apply(event)
    return {request_id: len(table) for request_id, table in blocks.tables.items()}


# ------------------------------------------------------------------ steps and gaps


def chunk(runs: Runs, rng: random.Random) -> Draft | None:
    """A step in which one prompt was computed beside others' decode: how long was the prompt's chunk?"""
    if "chunked" not in _names(runs):
        return None
    run = runs["chunked"]
    cases = []
    for step in run.steps:
        prompts = [row for row in step.scheduled if row.phase == "prefill"]
        if step_kind(step) == "mixed" and len(prompts) == 1:
            cases.append((step, prompts[0]))
    if not cases:
        return None
    step, row = rng.choice(cases)
    num_decodes = len(step.scheduled) - 1
    prompt = request_record(run, row.request_id).num_prompt_tokens
    return Draft(
        values={
            "step": step.step,
            "num_tokens": step.work.tokens,
            "num_decodes": num_decodes,
            "request": row.request_id,
            "chunk": row.num_tokens,
        },
        runs=(run,),
        answer=row.num_tokens,
        whole=True,
        traps={
            "decodes_forgotten": step.work.tokens,
            "tokens_shared_equally": step.work.tokens // (num_decodes + 1),
            "whole_prompt_at_once": prompt,
        },
    )


def tpot(runs: Runs, rng: random.Random) -> Draft | None:
    """The TPOT of a random request under a random policy."""
    cases = [(k, r.request_id) for k in _names(runs) for r in runs[k].requests if r.num_output_tokens > 2]
    if not cases:
        return None
    name, request_id = rng.choice(cases)
    return tpot_draft(runs[name], request_id, {"policy": _POLICY[name], "request": request_id})


def ttft_split(runs: Runs, rng: random.Random) -> Draft | None:
    """How much of a request's TTFT was waiting, and how much computing its prompt."""
    cases = [(k, r) for k in _names(runs) for r in runs[k].requests if r.first_scheduled_s - r.arrival_s > LEAST_WAIT_S]
    if not cases:
        return None
    name, record = rng.choice(cases)
    metrics = request_metrics(record)
    wait_ms, ttft_ms = 1e3 * metrics.queue_s, 1e3 * metrics.ttft_s
    return Draft(
        values={
            "policy": _POLICY[name],
            "request": record.request_id,
            "arrival_ms": f"{1e3 * record.arrival_s:.1f}",
            "first_step_ms": f"{1e3 * record.first_scheduled_s:.1f}",
            "first_token_ms": f"{1e3 * record.first_token_s:.1f}",
            "wait_ms": f"{wait_ms:.1f}",
        },
        runs=(runs[name],),
        answer=wait_ms,
        tolerance=max(0.1, min(0.2 + 0.005 * wait_ms, 0.4 * (ttft_ms - wait_ms))),
        traps={
            "wait_includes_prefill": ttft_ms,
            "wait_is_prefill": ttft_ms - wait_ms,
            "arrival_is_zero": 1e3 * record.first_scheduled_s,
        },
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "waited": waited,
        "enter_step": enter_step,
        "padding": padding,
        "blocks_held": blocks_held,
        "chunk": chunk,
        "ttft_split": ttft_split,
        "tpot": tpot,
    }
)
