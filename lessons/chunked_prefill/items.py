"""Questions about the learner's own Runs with a long prompt. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from engine.lab.stalls import token_gaps
from lessons.chunked_prefill.points import Point, points, prompt_rows
from lessons.chunked_prefill.scenarios import LONG, WHOLE
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator

Runs = Mapping[str, Run]


def _points(runs: Runs, *, whole: bool) -> list[Point]:
    """The Run in one go, or those in chunks, as far as they are there and finished."""
    found = []
    for role, run in runs.items():
        try:
            found += [point for point in points({role: run}) if (point.role == WHOLE) == whole]
        except FactsError:
            continue
    return found


def chunk_tokens(runs: Runs, rng: random.Random) -> Draft | None:
    """A step with decodes and a chunk: how many tokens of the prompt fit?"""
    cases = [
        (point, step, chunk, decodes)
        for point in _points(runs, whole=False)
        for step, chunk, decodes in prompt_rows(point.run)[:-1]  # the last chunk is what was left of the prompt
        if decodes and chunk + decodes == point.budget
    ]
    if not cases:
        return None
    point, step, chunk, decodes = rng.choice(cases)
    return Draft(
        values={"budget": point.budget, "step": step.step, "decodes": decodes, "length": point.length, "chunk": chunk},
        runs=(point.run,),
        answer=chunk,
        whole=True,
        traps={
            "decodes_forgotten": point.budget,
            "tokens_shared_equally": point.budget // (decodes + 1),
            "whole_prompt_at_once": point.length,
        },
    )


def chunk_steps(runs: Runs, rng: random.Random) -> Draft | None:
    """How many steps the prompt took while all others decoded."""
    cases = []
    for point in _points(runs, whole=False):
        rows = prompt_rows(point.run)
        others = len(point.run.requests) - 1
        if len(rows) > 1 and all(decodes == others for _, _, decodes in rows):
            cases.append((point, len(rows), others))
    if not cases:
        return None
    point, count, others = rng.choice(cases)
    return Draft(
        values={
            "budget": point.budget,
            "others": others,
            "length": point.length,
            "chunk": point.budget - others,
            "count": count,
        },
        runs=(point.run,),
        answer=count,
        whole=True,
        traps={
            "decodes_forgotten": math.ceil(point.length / point.budget),
            "whole_prompt_at_once": 1,
            "last_chunk_forgotten": point.length // (point.budget - others),
        },
    )


def between(runs: Runs, rng: random.Random) -> Draft | None:
    """How many tokens were computed, for everybody, between two tokens of one request."""
    cases = []
    for point in [*_points(runs, whole=True), *_points(runs, whole=False)]:
        for name, gaps in token_gaps(point.run).items():
            of_prompt = [
                gap
                for gap in gaps
                if name != LONG and any(step in gap.steps for step in point.steps) and len(gap.steps) <= 3
            ]
            cases += [(point, gap) for gap in of_prompt]
    if not cases:
        return None
    point, gap = rng.choice(cases)
    prompt = sum(r.num_tokens for s in gap.steps for r in s.scheduled if r.phase == "prefill")
    decodes = gap.num_tokens - prompt
    return Draft(
        values={
            "name": gap.request_id,
            "number": gap.index,
            "next": gap.index + 1,
            "policy": _policy(point),
            "total": gap.num_tokens,
            "prompt": prompt,
            "decodes": decodes,
            "table": {"en": _table(gap.steps, "en"), "zh": _table(gap.steps, "zh")},
        },
        runs=(point.run,),
        answer=gap.num_tokens,
        whole=True,
        traps={"own_token_only": 1, "prompt_only": prompt, "decodes_only": decodes},
    )


def _policy(point: Point) -> Mapping[str, str]:
    if point.role == WHOLE:
        return {"en": "in one go", "zh": "一口气算完"}
    return {"en": f"with {point.budget} tokens a step", "zh": f"每步 {point.budget} 个 token"}


def _table(steps: tuple, lang: str) -> str:
    """One line per step: who got how many tokens."""
    names, comma = ({}, ", ") if lang == "en" else ({LONG: "长"}, "，")
    lines = []
    for step in steps:
        rows = comma.join(f"{names.get(row.request_id, row.request_id)} {row.num_tokens}" for row in step.scheduled)
        lines.append(f"step {step.step}: {rows}" if lang == "en" else f"第 {step.step} 步：{rows}")
    return "\n".join(lines)


def left_out(runs: Runs, rng: random.Random) -> Draft | None:
    """What a decoding request got in a step that computed a part of the long prompt."""
    cases = []
    for point in [*_points(runs, whole=True), *_points(runs, whole=False)]:
        for step, chunk, decodes in prompt_rows(point.run):
            names = [name for name in _decoding(point.run, step.step) if name != LONG]
            if names and (decodes == 0 or decodes == len(names)):
                cases.append((point, step, chunk, decodes, names))
    wholes = [case for case in cases if case[3] == 0]
    chunked = [case for case in cases if case[3]]
    pool = [group for group in (wholes, chunked) if group]
    if not pool:
        return None
    point, step, chunk, decodes, names = rng.choice(rng.choice(pool))
    name = rng.choice(names)
    got = {"en": "one token, as in every step", "zh": "一个 token，和每一步一样"}
    nothing = {"en": "nothing; the step was for the prompt alone", "zh": "什么也没有，这一步只算提示词"}
    return Draft(
        values={
            "policy": _policy(point),
            "step": step.step,
            "chunk": chunk,
            "name": name,
            "right": got if decodes else nothing,
            "wrong": nothing if decodes else got,
            "reason": _reason(decodes),
            "share": {
                "en": f"{max(chunk // (len(names) + 1), 2)} tokens",
                "zh": f"{max(chunk // (len(names) + 1), 2)} 个 token",
            },
        },
        runs=(point.run,),
        options=("policies_confused", "others_compute_the_prompt", "padding_row"),
    )


def _reason(decodes: int) -> Mapping[str, str]:
    if decodes:
        return {
            "en": "Decodes come first; the prompt gets what is left of the budget.",
            "zh": "解码优先，提示词只分到预算剩下的部分。",
        }
    return {
        "en": "Prompts come first; as long as one is computed no decode is scheduled.",
        "zh": "提示词优先；只要在算提示词，就一个解码也不安排。",
    }


def _decoding(run: Run, step: int) -> list[str]:
    """Requests that had a token before the step and got another one in or after it. Pure."""
    first = {r.request_id: None for r in run.requests}
    last = dict(first)
    for record in run.steps:
        for output in record.outputs:
            if first[output.request_id] is None:
                first[output.request_id] = record.step
            last[output.request_id] = record.step
    return [name for name in first if first[name] is not None and first[name] < step <= last[name]]


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"chunk_tokens": chunk_tokens, "chunk_steps": chunk_steps, "between": between, "left_out": left_out}
)
