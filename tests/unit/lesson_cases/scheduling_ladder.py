"""Runs of the ladder under several limits, and what its questions should answer, from raw records.

A prompt becomes made-up token ids of the asked length, such that questions to one assistant share their first tokens.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.reasons import REASON_TEXT
from lessons.scheduling_ladder.scenarios import BUDGETS, POOLS, QUESTION_PROMPT, RUNGS, rung
from tests.fakes import VOCAB
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]
SHARED = QUESTION_PROMPT - 12


def with_ids(scenario: Scenario, shared: int = SHARED) -> Scenario:
    """The scenario with token ids for prompts: the first ``shared`` of a question are those of its assistant."""
    data = scenario.model_dump(mode="json")
    for spec in data["requests"]:
        name, length = spec["request_id"], spec["num_prompt_tokens"]
        begins = shared if name[0] != "C" else 0
        common, own = random.Random(name[0]), random.Random(name)
        ids = [common.randrange(4, VOCAB) for _ in range(begins)]
        spec["prompt_token_ids"] = ids + [own.randrange(4, VOCAB) for _ in range(length - begins)]
        spec["prompt"] = spec["num_prompt_tokens"] = None
    return Scenario.parse(data)


def climb(budget: int = 64, num_blocks: int = 23, shared: int = SHARED, **device) -> Runs:
    """The whole ladder on a fake device."""
    return {policy: serve(with_ids(rung(policy, budget, num_blocks), shared), **device) for policy in RUNGS}


RUNS = {
    "as it comes": climb,
    "memory in plenty": lambda: climb(num_blocks=46),
    "nothing shared": lambda: climb(shared=0),
    "disturbed": lambda: climb(jitter=5),
}


@functools.cache
def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        whole = climb(rng.choice(BUDGETS), rng.choice((*POOLS, POOLS[0])), rng.choice([SHARED, 48]), pass_ms=10 + seed)
        found.append({p: run for p, run in whole.items() if seed % 3 or rng.random() < 0.7})
    return found


# ------------------------------------------------------------------ the checker: raw records only
_SAID = {
    "static batching": "static",
    "Orca": "orca",
    "paged": "paged",
    "chunked": "chunked",
    "cache-aware": "cache_aware",
}


def _run(item, runs: Runs) -> Run:
    said = re.search(r"your run under (.+?), ", item.prompt["en"])[1]
    run = runs[_SAID[said]]
    assert run.run_id in item.run_ids
    return run


def check_refusal(item, runs: Runs, option) -> bool:
    run = _run(item, runs)
    name = re.search(r", (\w+) waited", item.prompt["en"])[1]
    counts: Counter[str] = Counter()
    for step in run.steps:
        if any(row.request_id == name for row in step.scheduled):
            break
        counts.update(r.why for r in step.refused if r.request_id == name)
    total, most = map(int, re.search(r"in (\d+) steps before .* refusal, (\d+) times", item.prompt["en"]).groups())
    assert (total, most) == (counts.total(), max(counts.values()))
    return option.text["en"] == REASON_TEXT[counts.most_common(1)[0][0]]["en"]


def check_left_out(item, runs: Runs) -> int:
    run = _run(item, runs)
    number, name = re.search(r"between token (\d+) and token \d+ of (\w+)", item.prompt["en"]).groups()
    stamps = [s.step for s in run.steps if any(o.request_id == name for o in s.outputs)]
    begin, end = stamps[int(number) - 1], stamps[int(number)]
    return sum(not any(row.request_id == name for row in s.scheduled) for s in run.steps if begin < s.step <= end)


def check_reserved(item, runs: Runs) -> int:
    run = _run(item, runs)
    name, step = re.search(r", (\w+) was admitted in step (\d+)", item.prompt["en"]).groups()
    mine = [e.op for s in run.steps if s.step <= int(step) for e in s.block_events if e.request_id == name]
    return mine.count("alloc") + mine.count("share") - mine.count("release")


def check_which_rung(item, runs: Runs, option) -> bool:
    (run,) = [run for run in runs.values() if run.run_id in item.run_ids]
    steps = [int(n) for n in re.findall(r"(?m)^step (\d+):", item.trace["en"])]
    for number, line in zip(steps, item.trace["en"].splitlines(), strict=True):
        assert all(f"{row.request_id} " in line for row in run.steps[number].scheduled)
    return _SAID[option.text["en"]] == run.steps[0].policy


CHECKS = {
    "refusal": check_refusal,
    "left_out": check_left_out,
    "reserved": check_reserved,
    "which_rung": check_which_rung,
}
