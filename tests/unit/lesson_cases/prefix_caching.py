"""Cases of the prefix caching lesson: trees that fit the pool, trees that do not, prompts with nothing in common."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.prefix_caching.scenarios import BLOCK_SIZES, PARTS, POOL_POSITIONS, REPORTS, archive
from tests.fakes import VOCAB
from tests.unit.lesson_runs import fake_prompt, serve

Runs = dict[str, Run]
INSTRUCTION, REPORT, QUESTION = 50, 90, 16  # tokens of each part, about as a tokenizer gives


def like_the_texts(scenario: Scenario) -> Scenario:
    """The scenario with made-up tokens that are equal where its texts are."""
    data = scenario.model_dump(mode="json")
    for spec in data["requests"]:
        report, number = spec["request_id"]
        parts = [("instruction", INSTRUCTION), (f"report {report}", REPORT), (f"question {number}", QUESTION)]
        ids = [random.Random(f"{name}{i}").randrange(4, VOCAB) for name, length in parts for i in range(length)]
        spec.update(prompt=None, prompt_token_ids=ids)
    return Scenario.parse(data)


def unlike(scenario: Scenario) -> Scenario:
    """The scenario with prompts of which no two begin alike."""
    data = scenario.model_dump(mode="json")
    for spec, asked in zip(data["requests"], scenario.requests, strict=True):
        spec.update(prompt=None, prompt_token_ids=fake_prompt(asked)[:120])
    return Scenario.parse(data)


def runs(reports: int = 4, pool: int = POOL_POSITIONS[0], block_size: int = 16, make=like_the_texts, **options) -> Runs:
    options = {"jitter": 0.01, "token_ms": 2.0} | options
    return {part: serve(make(archive(part, reports, pool, block_size)), **options) for part in PARTS}


def differing() -> Runs:
    found = runs()
    record = found["radix"].requests[2]
    record.output_token_ids = [96, *record.output_token_ids[1:]]
    return found


RUNS = {
    "as offered": runs,
    "ample": lambda: runs(pool=POOL_POSITIONS[-1]),
    "many reports": lambda: runs(6),
    "large blocks": lambda: runs(block_size=32),
    "nothing in common": lambda: runs(make=unlike),
    "busy": lambda: runs(jitter=4),
    "no ceilings": lambda: runs(ceilings=None),
    "reading rules": lambda: runs(token_ms=0.01),
    "texts differ": differing,
}


def ITEM_RUNS() -> list[Runs]:
    sizes = [(reports, pool, size) for reports in REPORTS for pool in POOL_POSITIONS[:2] for size in BLOCK_SIZES]
    return [runs(*chosen) for chosen in sizes] + [runs(3), runs(5)]


# ------------------------------------------------------------------ the checker: raw records only
def run_of(item, runs: Runs) -> Run:
    words = {"hash chain": "hash", "radix tree": "radix", "order of the cache": "aware"}
    return runs[next(part for phrase, part in words.items() if phrase in item.prompt["en"])]


def check_prefilled(item, runs: Runs) -> float:
    run, name = run_of(item, runs), item.prompt["en"].split()[0]
    return sum(
        row.num_tokens for s in run.steps for row in s.scheduled if row.request_id == name and row.phase == "prefill"
    )


def check_hit_rate(item, runs: Runs) -> float:
    run = run_of(item, runs)
    computed = sum(row.num_tokens for s in run.steps for row in s.scheduled if row.phase == "prefill")
    return 100 - 100 * computed / sum(r.num_prompt_tokens for r in run.requests)


def check_kept(item, runs: Runs) -> float:
    run, last = run_of(item, runs), int(re.search(r"After step (\d+)", item.prompt["en"])[1])
    published, users = set(), {}
    for step in run.steps[: last + 1]:
        for event in step.block_events:
            match event.op:
                case "publish":
                    published.add(event.block_id)
                case "evict":
                    published.discard(event.block_id)
                case "release":
                    users[event.block_id] -= 1
                case _:
                    users[event.block_id] = users.get(event.block_id, 0) + 1
    return sum(not users.get(block) for block in published)


def check_who_next(item, runs: Runs, option) -> bool:
    step = int(re.search(r"step (\d+)", item.trace["en"])[1])
    return runs["aware"].steps[step].admitted == [option.text["en"]]


CHECKS = {
    "prefilled": check_prefilled,
    "hit_rate": check_hit_rate,
    "kept": check_kept,
    "who_next": check_who_next,
}
