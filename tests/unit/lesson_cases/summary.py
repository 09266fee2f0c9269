"""Runs of the last lesson on devices of several tempers, and what its questions should answer, from raw records."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from lessons.summary.scenarios import OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS, whole_run
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def run(num_requests: int = 8, prompt: int = 64, output: int = 33, dtype: str = "float32", **device) -> Runs:
    return {"run": serve(whole_run(num_requests, prompt, output, dtype), **device)}


# A reading of the weights takes 25.3 ms at 21.3 GB/s; a prompt token of SmolLM2-135M 1.9 ms at 0.118 TFLOP/s.
RUNS = {
    "near the formulas": lambda: run(pass_ms=25, token_ms=1.9),
    "far above": lambda: run(pass_ms=90, token_ms=6),
    "faster than allowed": lambda: run(pass_ms=8, token_ms=0.4),
    "alone": lambda: run(1, 16, 65),
    "prompts in several steps": lambda: run(16, 128, 33),
    "disturbed": lambda: run(jitter=4),
    "no ceilings": lambda: run(ceilings=None),
    "few tokens": lambda: run(4, 16, 17, pass_ms=25, token_ms=1.9),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        sizes = rng.choice(REQUESTS), rng.choice(PROMPT_TOKENS), rng.choice(OUTPUT_TOKENS)
        found.append(run(*sizes, rng.choice(["float32", "bfloat16"]), pass_ms=rng.uniform(4, 60)))
    return found


# ------------------------------------------------------------------ the checker: raw records only
def check_identity(item, runs: Runs) -> float:
    name = re.search(r"In your run (\S+) had", item.prompt["en"])[1]
    (record,) = [r for r in runs["run"].requests if r.request_id == name]
    return 1e3 * (record.completion_s - record.arrival_s)


def check_throughput(item, runs: Runs) -> float:
    records = runs["run"].requests
    made = sum(len(r.output_token_ids) for r in records)
    return made / (max(r.completion_s for r in records) - min(r.arrival_s for r in records))


def check_least_step(item, runs: Runs) -> float:
    number = int(re.match(r"Step (\d+) of", item.prompt["en"])[1])
    (step,) = [s for s in runs["run"].steps if s.step == number]
    work = step.work
    moved = work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes
    return 1e3 * moved / (runs["run"].header.device.read_gbps * 1e9)


def check_next_blocks(item, runs: Runs) -> float:
    """Reads the last line of the trace as a learner would, and replays the block events up to that step."""
    lines = [line.split() for line in item.trace["en"].splitlines()[1:]]
    held, steps = 0, runs["run"].steps
    for step in steps:
        held += sum({"alloc": 1, "release": -1}.get(e.op, 0) for e in step.block_events)
        for number, requests, shortest, longest, blocks in lines:
            if int(number) == step.step:
                ends = [row.start + row.num_tokens for row in step.scheduled]
                assert (int(requests), int(shortest), int(longest)) == (len(ends), min(ends), max(ends))
                assert blocks in ("?", str(held))
        if step.step == int(lines[-1][0]):
            return held
    raise AssertionError("the last line is no step of the run")


CHECKS = {
    "identity": check_identity,
    "throughput": check_throughput,
    "least_step": check_least_step,
    "next_blocks": check_next_blocks,
}
