"""Cases of the KV cache lesson: pairs of Runs as quiet, busy, unmeasured and differently built machines give them."""

from __future__ import annotations

import re

from engine.lab.records import Run
from lessons.kv_cache.scenarios import BLOCK_SIZES, PARTS, PROMPT_LENGTHS, one_request
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def runs(prompt: int = 32, output: int = 24, block_size: int = 16, **options) -> Runs:
    options = {"jitter": 0.01} | options
    return {part: serve(one_request(prompt, output, block_size, part), **options) for part in PARTS}


def differing() -> Runs:
    found = runs()
    record = found["uncached"].requests[0]
    record.output_token_ids = [*record.output_token_ids[:7], 96, *record.output_token_ids[8:]]
    return found


def multi_head() -> Runs:
    found = runs()
    for run in found.values():
        run.header.model = run.header.model.model_copy(update={"num_kv_heads": run.header.model.num_heads})
    return found


RUNS = {
    "quiet": runs,
    "short": lambda: runs(16, 8, 4),
    "long": lambda: runs(128, 64, 64),
    "large blocks": lambda: runs(16, 8, 64),
    "busy": lambda: runs(jitter=4),
    "no ceilings": lambda: runs(ceilings=None),
    "high ridge": lambda: runs(ceilings=(21.3, 5.0)),
    "far from the model": lambda: runs(pass_ms=200),
    "as the model says": lambda: runs(64, 8, pass_ms=25, token_ms=1.9, jitter=0, ceilings=(21.3, 0.118)),
    "texts differ": differing,
    "multi-head": multi_head,
}


def ITEM_RUNS() -> list[Runs]:
    return [
        runs(prompt, output, block_size)
        for prompt in PROMPT_LENGTHS
        for output in (8, 23, 40)
        for block_size in BLOCK_SIZES
    ] + [multi_head()]


# ------------------------------------------------------------------ the checker: raw records only
def step_of_output(run: Run, number: int):
    return [s for s in run.steps if s.outputs][number - 1]


def check_per_position(item, runs: Runs) -> float:
    layers, kv_heads, dim, size = (
        float(n)
        for n in re.search(
            r"(\d+) layers, .* and (\d+) KV heads of (\d+) numbers, (\S+) bytes", item.prompt["en"]
        ).groups()
    )
    model = runs["cached"].header.model
    assert (layers, kv_heads, dim) == (model.num_layers, model.num_kv_heads, model.head_dim)
    return 2 * layers * kv_heads * dim * size / 1e3


def check_waste(item, runs: Runs) -> float:
    run = runs["cached"]
    last = step_of_output(run, int(re.search(r"output token (\d+)", item.prompt["en"])[1]))
    blocks = sum(e.op == "alloc" for s in run.steps if s.step <= last.step for e in s.block_events)
    return blocks * run.header.block_size - (last.scheduled[0].start + last.scheduled[0].num_tokens)


def check_pass_positions(item, runs: Runs) -> float:
    return step_of_output(runs["uncached"], int(re.search(r"output token (\d+)", item.prompt["en"])[1])).work.tokens


def check_total_positions(item, runs: Runs) -> float:
    run = runs["cached" if "with the cache" in item.prompt["en"] else "uncached"]
    return sum(row.num_tokens for s in run.steps for row in s.scheduled)


def check_next_step(item, runs: Runs, option) -> bool:
    run = runs["cached"]
    shown = [line.split() for line in item.trace["en"].splitlines()[2:5]]
    last = int(shown[-1][0])
    for number, positions, blocks in shown:
        step = run.steps[int(number)]
        assert step.scheduled[0].start + step.scheduled[0].num_tokens == int(positions)
        assert step.blocks.in_use == int(blocks)
    ops = [event.op for event in run.steps[last + 1].block_events]
    assert "release" not in ops
    return option.text["en"].startswith("It takes one more block" if "alloc" in ops else "It takes no block")


CHECKS = {
    "per_position": check_per_position,
    "waste": check_waste,
    "pass_positions": check_pass_positions,
    "total_positions": check_total_positions,
    "next_step": check_next_step,
}
