"""Runs with a long prompt on devices of several tempers, and what its questions should answer, from raw records."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run, StepRecord
from lessons.chunked_prefill.scenarios import CHUNKED, ROLES, WHOLE, WITHOUT, arrival_for, disturbed, without
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def study(others: int = 6, length: int = 384, roles: tuple[str, ...] = ROLES[1:], lang: str = "en", **device) -> Runs:
    """The whole study on a fake device."""
    runs = {WITHOUT: serve(without(others, lang=lang), **device)}
    arrival_s = arrival_for(runs)
    return runs | {role: serve(disturbed(role, others, length, arrival_s, lang=lang), **device) for role in roles}


RUNS = {
    "limited by arithmetic": lambda: study(pass_ms=5, token_ms=2.5),
    "few others, limited by arithmetic": lambda: study(others=3, pass_ms=2, token_ms=2.5),
    "limited by reading": lambda: study(pass_ms=60, token_ms=0.1),
    "a prompt that fits the largest budget": lambda: study(others=3, length=192),
    "no ceilings": lambda: study(ceilings=None),
    "near the roof": lambda: study(pass_ms=27, token_ms=2.3),
    "disturbed": lambda: study(jitter=5),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        roles = (WHOLE, *rng.sample(tuple(CHUNKED), 2)) if seed % 4 else tuple(rng.sample(ROLES[1:], 3))
        device = {"pass_ms": rng.uniform(10, 40), "token_ms": rng.choice([0.2, 1.0, 2.5])}
        found.append(study(rng.choice([3, 6]), rng.choice([192, 384]), roles, **device))
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _run(item, runs: Runs) -> Run:
    """The Run the question is about, and it must be the one its words name."""
    (run,) = [run for run in runs.values() if run.run_id in item.run_ids]
    said = item.prompt["en"]
    if found := re.search(r"with (\d+) tokens a step", said):
        assert run.header.scenario["limits"]["max_batch_tokens"] == int(found[1]) and run is not runs.get(WHOLE)
    else:
        assert "in one go" in said and run.header.scenario["policy"] == "paged"
    return run


def _prompt_steps(run: Run) -> list[StepRecord]:
    long = [r.request_id for r in run.requests if r.num_prompt_tokens > 100]
    return [s for s in run.steps for r in s.scheduled if r.request_id == long[0] and r.phase == "prefill"]


def check_chunk_tokens(item, runs: Runs) -> int:
    run = _run(item, runs)
    step = run.steps[int(re.search(r"step (\d+) held", item.prompt["en"])[1])]
    (chunk,) = [row.num_tokens for row in step.scheduled if row.phase == "prefill"]
    return chunk


def check_chunk_steps(item, runs: Runs) -> int:
    run = _run(item, runs)
    assert f"{len(run.requests) - 1} others" in item.prompt["en"]
    return len(_prompt_steps(run))


def check_between(item, runs: Runs) -> int:
    run = _run(item, runs)
    number, name = re.search(r"between token (\d+) and token \d+ of (d\d+)", item.prompt["en"]).groups()
    stamps = [s.step for s in run.steps if any(o.request_id == name for o in s.outputs)]
    begin, end = stamps[int(number) - 1], stamps[int(number)]
    tokens = sum(row.num_tokens for s in run.steps if begin < s.step <= end for row in s.scheduled)
    shown = sum(int(n) for n in re.findall(r"\w+ (\d+)(?:,|$)", re.sub(r"(?m)^step \d+: ", "", item.trace["en"]), re.M))
    assert shown == tokens
    return tokens


def check_left_out(item, runs: Runs, option) -> bool:
    run = _run(item, runs)
    number, name = re.search(
        r"step (\d+) computed \d+ tokens of the long prompt. What did (d\d+)", item.prompt["en"]
    ).groups()
    got = [row.num_tokens for row in run.steps[int(number)].scheduled if row.request_id == name]
    said = option.text["en"]
    if said.startswith("nothing"):
        return not got
    if said.startswith("one token"):
        return got == [1]
    return "padding" in said and any(row.phase == "padding" for row in run.steps[int(number)].scheduled)


CHECKS = {
    "chunk_tokens": check_chunk_tokens,
    "chunk_steps": check_chunk_steps,
    "between": check_between,
    "left_out": check_left_out,
}
