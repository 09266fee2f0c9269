"""Questions about the learner's own five Runs. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Reason, Run, StepRecord
from engine.lab.replay import BlockMap
from engine.lab.stalls import token_gaps
from lessons.generated import Draft, Generator
from lessons.reasons import REASON_TEXT, RECORDED
from lessons.scheduling_ladder.facts import NAMES
from lessons.scheduling_ladder.rungs import refused_steps
from lessons.scheduling_ladder.scenarios import RUNGS
from lessons.text import Fact

Runs = Mapping[str, Run]


def _finished(runs: Runs) -> dict[str, Run]:
    """The Runs that are there and finished, from the bottom up."""
    return {p: runs[p] for p in RUNGS if p in runs and all(r.completion_s is not None for r in runs[p].requests)}


# ------------------------------------------------------------------ why did it wait?
def refusal(runs: Runs, rng: random.Random) -> Draft | None:
    """Which reason was recorded most for a request before it first ran."""
    cases: dict[Reason, list[tuple[str, str, int, int]]] = {}
    for policy, run in _finished(runs).items():
        for record in run.requests:
            counts = refused_steps(_before_first(run, record.request_id), record.request_id)
            if counts and counts.most_common(1)[0][1] > 0.6 * counts.total():
                why, most = counts.most_common(1)[0]
                cases.setdefault(why, []).append((policy, record.request_id, counts.total(), most))
    if not cases:
        return None
    why = rng.choice(sorted(cases))
    policy, request_id, total, most = rng.choice(cases[why])
    return Draft(
        values={
            "policy": NAMES[policy],
            "request": request_id,
            "total": total,
            "most": most,
            "reason": REASON_TEXT[why],
            **{f"text_{name}": REASON_TEXT[name] for name in RECORDED},
        },
        runs=(runs[policy],),
        options=tuple(f"not_{name}" for name in RECORDED if name != why),
    )


def _before_first(run: Run, request_id: str) -> Run:
    """The Run up to the step that first computed for the request. Pure."""
    place = next(i for i, s in enumerate(run.steps) if any(row.request_id == request_id for row in s.scheduled))
    return run.model_copy(update={"steps": run.steps[:place]})


# ------------------------------------------------------------------ what each rung costs
def left_out(runs: Runs, rng: random.Random) -> Draft | None:
    """How many steps left a decoding request out between two of its tokens."""
    cases = [
        (policy, gap)
        for policy, run in _finished(runs).items()
        for gaps in token_gaps(run).values()
        for gap in gaps
        if gap.num_held_steps and not gap.was_preempted and len(gap.steps) <= 12
    ]
    if not cases:
        return None
    policy, gap = rng.choice(cases)
    return Draft(
        values={
            "policy": NAMES[policy],
            "request": gap.request_id,
            "number": gap.index,
            "next": gap.index + 1,
            "steps": len(gap.steps),
            "held": gap.num_held_steps,
            "table": {"en": _table(gap.steps, "en"), "zh": _table(gap.steps, "zh")},
        },
        runs=(runs[policy],),
        answer=gap.num_held_steps,
        whole=True,
        traps={
            "last_step_counted": len(gap.steps),
            "decode_never_waits": 0,
            "requests_for_steps": len({row.request_id for s in gap.steps[:-1] for row in s.scheduled}),
        },
    )


def _table(steps: tuple[StepRecord, ...], lang: str) -> str:
    """One line per step: who got how many tokens."""
    lines = []
    for step in steps:
        rows = ", ".join(f"{row.request_id} {row.num_tokens}" for row in step.scheduled)
        lines.append(f"step {step.step}: {rows}" if lang == "en" else f"第 {step.step} 步: {rows}")
    return "\n".join(lines)


def reserved(runs: Runs, rng: random.Random) -> Draft | None:
    """How many blocks a request holds right after the step that admitted it, under reservation or on demand."""
    cases = []
    for policy in ("static", "orca", "paged"):
        run = _finished(runs).get(policy)
        if run is None:
            continue
        lengths = {r.request_id: (r.num_prompt_tokens, r.num_output_tokens) for r in run.requests}
        for name, step, held in _held_at_admission(run):
            cases.append((policy, name, step, held, *lengths[name]))
    if not cases:
        return None
    policy, name, step, held, prompt, output = rng.choice(cases)
    size = runs[policy].header.block_size
    whole, now = math.ceil((prompt + output) / size), math.ceil(prompt / size)
    return Draft(
        values={
            "policy": NAMES[policy],
            "request": name,
            "step": step,
            "prompt": prompt,
            "output": output,
            "size": size,
            "held": held,
            "rule": _rule(policy),
        },
        runs=(runs[policy],),
        answer=held,
        whole=True,
        traps={
            "on_demand_everywhere": now if policy != "paged" else None,
            "reservation_everywhere": whole if policy == "paged" else None,
            "cache_holds_answer_only": math.ceil(output / size),
            "block_per_token": prompt + output if policy != "paged" else prompt,
        },
    )


def _rule(policy: str) -> Fact:
    if policy == "paged":
        return {"en": "On demand: blocks for the tokens it has", "zh": "用到才给：只给已有的 token 分块"}
    return {
        "en": "Reservation: blocks for the prompt and the longest answer",
        "zh": "预留：按提示词加最长的回答分块",
    }


def _held_at_admission(run: Run) -> list[tuple[str, int, int]]:
    """(request, step, blocks) after each first admission without a cached prefix. Pure."""
    blocks, seen, found = BlockMap(run.header.num_blocks), set(), []
    for step in run.steps:
        for event in step.block_events:
            blocks.apply(event)
        cached = {row.request_id for row in step.scheduled if row.num_cached_tokens}
        for name in step.admitted:
            if name not in seen and name not in cached and name in blocks.tables:
                found.append((name, step.step, len(blocks.tables[name])))
            seen.add(name)
    return found


# ------------------------------------------------------------------ which rung is this?
def which_rung(runs: Runs, rng: random.Random) -> Draft | None:
    """A piece of a Run that only one of four policies could have made."""
    cases = []
    finished = _finished(runs)
    if "static" in finished:
        cases.append(("static", "padding", _first(finished["static"], _shows_padding, rng)))
    if "paged" in finished:
        cases.append(("paged", "prompts", _first(finished["paged"], _shows_prompts_first, rng)))
    if "chunked" in finished:
        cases.append(("chunked", "recompute", _first(finished["chunked"], _shows_recompute, rng)))
    cases = [case for case in cases if case[2]]
    if not cases:
        return None
    policy, sign, steps = rng.choice(cases)
    return Draft(
        values={
            "right": NAMES[policy],
            "sign": _SIGNS[sign],
            "table": {"en": _phases(steps, "en"), "zh": _phases(steps, "zh")},
            **{name: NAMES[name] for name in ("static", "orca", "paged", "chunked")},
        },
        runs=(runs[policy],),
        options=tuple(f"not_{name}" for name in ("static", "orca", "paged", "chunked") if name != policy),
    )


_SIGNS: Mapping[str, Fact] = MappingProxyType(
    {
        "padding": {
            "en": "A finished request is computed on as padding; only static batching does that.",
            "zh": "做完的请求还作为填充在算，只有静态批处理会这样。",
        },
        "prompts": {
            "en": "A newcomer's prompt has a step of its own, and those that were decoding get nothing: prefill first.",
            "zh": "新来的提示词独占一步，原来在解码的什么也没有：这是预填充优先。",
        },
        "recompute": {
            "en": "Somebody was preempted and is computed again, beside the decodes: memory on demand, decodes first.",
            "zh": "有请求被抢占后在重算，而且和解码同在一步：内存用到才给，解码优先。",
        },
    }
)


def _first(run: Run, shows, rng: random.Random) -> tuple[StepRecord, ...]:
    """Three steps in a row that show it, chosen at random; empty if there are none."""
    found = [run.steps[i : i + 3] for i in range(len(run.steps) - 2) if shows(run, run.steps[i : i + 3])]
    return tuple(rng.choice(found)) if found else ()


def _shows_padding(run: Run, steps: list[StepRecord]) -> bool:
    return any(row.phase == "padding" for row in steps[1].scheduled) and all(len(s.scheduled) > 1 for s in steps)


def _shows_prompts_first(run: Run, steps: list[StepRecord]) -> bool:
    before, own, after = ({row.request_id for row in s.scheduled if row.phase == "decode"} for s in steps)
    prompts = [row.request_id for row in steps[1].scheduled if row.phase == "prefill"]
    return bool(before & after) and not own and bool(prompts) and set(prompts) == set(steps[1].admitted)


def _shows_recompute(run: Run, steps: list[StepRecord]) -> bool:
    return {"recompute", "decode"} <= {row.phase for row in steps[1].scheduled}


def _phases(steps: tuple[StepRecord, ...], lang: str) -> str:
    words = {
        "en": {"prefill": "prompt", "decode": "decode", "padding": "padding", "recompute": "recompute"},
        "zh": {"prefill": "提示词", "decode": "解码", "padding": "填充", "recompute": "重算"},
    }[lang]
    lines = []
    for step in steps:
        rows = ", ".join(f"{row.request_id} {words[row.phase]} {row.num_tokens}" for row in step.scheduled)
        done = ", ".join(o.request_id for o in step.outputs if o.finish_reason)
        end = "" if not done else f"  ({done} done)" if lang == "en" else f"（{done} 做完）"
        lines.append((f"step {step.step}: " if lang == "en" else f"第 {step.step} 步: ") + rows + end)
    return "\n".join(lines)


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"refusal": refusal, "left_out": left_out, "reserved": reserved, "which_rung": which_rung}
)
