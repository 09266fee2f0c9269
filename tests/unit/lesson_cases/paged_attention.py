"""Cases of the PagedAttention lesson: pools that run out and pools that do not, with and without equal beginnings."""

from __future__ import annotations

import re

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.paged_attention.scenarios import BLOCK_SIZES, PARTS, POOL_POSITIONS, museum
from tests.unit.lesson_runs import fake_prompt, serve

Runs = dict[str, Run]
TALKATIVE = frozenset({1})  # few tokens end an answer, so that it is often as long as it may be
BEGINNING = 40  # tokens that all prompts of ``alike`` have in common


def alike(scenario: Scenario) -> Scenario:
    """The scenario with prompts that begin with the same made-up tokens, as those of one assistant do."""
    data = scenario.model_dump(mode="json")
    head = [5 + i for i in range(BEGINNING)]
    for spec, asked in zip(data["requests"], scenario.requests, strict=True):
        spec.update(prompt=None, chat=False, prompt_token_ids=[*head, *fake_prompt(asked)[:24]])
    return Scenario.parse(data)


def runs(block_size: int = 16, pool: int = 768, limit: int = 128, same: bool = True, **options) -> Runs:
    options = {"jitter": 0.01} | options
    scenarios = {part: museum(part, block_size, pool, limit) for part in PARTS}
    return {part: serve(alike(s) if same else s, **options) for part, s in scenarios.items()}


def differing() -> Runs:
    found = runs()
    record = found["paged"].requests[0]
    record.output_token_ids = [96, *record.output_token_ids[1:]]
    return found


RUNS = {
    "as offered": runs,
    "long answers": lambda: runs(eos=TALKATIVE),
    "nothing in common": lambda: runs(same=False, eos=TALKATIVE),
    "ample": lambda: runs(pool=2_048, limit=64),
    "small blocks": lambda: runs(8),
    "large blocks": lambda: runs(64, 1_024),
    "busy": lambda: runs(jitter=4),
    "no ceilings": lambda: runs(ceilings=None),
    "rows are dear": lambda: runs(pass_ms=0.1, token_ms=20),
    "texts differ": differing,
}


def ITEM_RUNS() -> list[Runs]:
    sizes = [(size, pool, limit) for size in BLOCK_SIZES for pool in POOL_POSITIONS[:2] for limit in (64, 128)]
    return [runs(*chosen, same=same, eos=TALKATIVE) for chosen in sizes for same in (True, False)]


# ------------------------------------------------------------------ the checker: raw records only
def record_of(item, run: Run):
    name = re.search(r"\br\d+\b", item.prompt["en"])[0]
    return next(r for r in run.requests if r.request_id == name)


def check_reserved_blocks(item, runs: Runs) -> float:
    run = runs["orca"]
    name = record_of(item, run).request_id
    first = next(s for s in run.steps if name in s.admitted)
    return sum(e.op == "alloc" and e.request_id == name for e in first.block_events)


def check_never_used(item, runs: Runs) -> float:
    run = runs["orca" if "reserved" in item.prompt["en"] else "paged"]
    record = record_of(item, run)
    end = next(s.step for s in run.steps for o in s.outputs if o.request_id == record.request_id and o.finish_reason)
    held = 0
    for step in run.steps[: end + 1]:
        for event in step.block_events:
            if event.request_id == record.request_id:
                held += {"alloc": 1, "release": 0 if step.step == end else -1}.get(event.op, 0)
    return held * run.header.block_size - (record.num_prompt_tokens + record.num_output_tokens - 1)


def check_where_is(item, runs: Runs) -> float:
    words = re.search(r"In (.+), after step (\d+), the block table of (r\d+) .* position (\d+) lie", item.prompt["en"])
    run = runs["shared" if "third" in words[1] else "paged"]
    table: list[int] = []
    for step in run.steps[: int(words[2]) + 1]:
        for event in step.block_events:
            if event.request_id == words[3] and event.op in ("alloc", "share"):
                table.append(event.block_id)
            elif event.request_id == words[3] and event.op == "release":
                table.remove(event.block_id)
    return table[int(words[4]) // run.header.block_size]


def check_lost(item, runs: Runs) -> float:
    step = int(re.search(r"In step (\d+)", item.prompt["en"])[1])
    run = next(r for r in runs.values() if r.run_id == item.run_ids[0])
    name = record_of(item, run).request_id
    assert name in run.steps[step].preempted
    ends = [row.start + row.num_tokens for s in run.steps[:step] for row in s.scheduled if row.request_id == name]
    return ends[-1]


def check_victim(item, runs: Runs, option) -> bool:
    step = int(re.search(r"step (\d+)", item.trace["en"])[1])
    run = next(r for r in runs.values() if r.run_id == item.run_ids[0])
    return option.text["en"].split(",")[0] in run.steps[step].preempted


CHECKS = {
    "reserved_blocks": check_reserved_blocks,
    "never_used": check_never_used,
    "where_is": check_where_is,
    "lost": check_lost,
    "victim": check_victim,
}
