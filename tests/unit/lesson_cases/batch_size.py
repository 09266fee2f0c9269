"""Runs of the batching study on devices of several tempers, and what its questions should answer, from raw records."""

from __future__ import annotations

import math
import random
import re
import statistics

from engine.lab.records import Run
from lessons.batch_size.scenarios import ROLES, scenario
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def study(dtype: str = "float32", context: int = 16, roles: tuple[str, ...] = ROLES, **device) -> Runs:
    """The whole study on a fake device; see ``lesson_runs.serve`` for what it can be told."""
    return {role: serve(scenario(role, dtype, context), **device) for role in roles}


# A reading of the weights takes 25.3 ms at 21.3 GB/s; the arithmetic of one request 2.3 ms at 0.118 TFLOP/s.
RUNS = {
    "near the roof": lambda: study(pass_ms=25, token_ms=2),
    "far below": lambda: study(pass_ms=60, token_ms=8),
    "above the roof": lambda: study(pass_ms=12, token_ms=0.4),
    "nothing grows": lambda: study(pass_ms=40, token_ms=0.05),
    "gains to the end": lambda: study(pass_ms=90, token_ms=1),
    "dear rows": lambda: study(pass_ms=5, token_ms=20),
    "disturbed": lambda: study(jitter=4),
    "no ceilings": lambda: study(ceilings=None),
    "a far ridge": lambda: study(context=128, ceilings=(2.0, 3.0)),
    "without padding": lambda: study(roles=("batch_1", "batch_8", "batch_32")),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        dtype = rng.choice(["float32", "bfloat16"])
        runs = study(dtype, pass_ms=rng.uniform(4, 60), token_ms=rng.choice([0.2, 1, 3, 12]))
        found.append(runs if seed % 4 else {role: run for role, run in runs.items() if rng.random() < 0.7})
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _steps(run: Run, size: int) -> list:
    full = [s for s in run.steps if len(s.scheduled) == size]
    return [s for s in full if all(row.phase == "decode" for row in s.scheduled)]


def _seconds(run: Run, size: int) -> float:
    return statistics.median(s.t_end_s - s.t_begin_s for s in _steps(run, size))


def _sizes(words: str) -> list[int]:
    return [int(n or 1) for n in re.findall(r"(?:one request|(\d+) requests)", words)]


def _two(item, runs: Runs) -> tuple[int, float, int, float]:
    few, many = _sizes(item.prompt["en"])
    return few, _seconds(runs[f"batch_{few}"], few), many, _seconds(runs[f"batch_{many}"], many)


def check_gain(item, runs: Runs) -> float:
    few, few_s, many, many_s = _two(item, runs)
    return (many / many_s) / (few / few_s)


def check_own_part(item, runs: Runs) -> float:
    few, few_s, many, many_s = _two(item, runs)
    return 1e3 * (many_s - few_s) / (many - few)


def check_utilization(item, runs: Runs) -> float:
    (size,) = _sizes(item.prompt["en"])
    run = runs[f"batch_{size}"]
    work = statistics.median(s.work.flops for s in _steps(run, size))
    return 100 * work / _seconds(run, size) / (run.header.device.matmul_tflops * 1e12)


def check_kv_blocks(item, runs: Runs) -> float:
    """Counts blocks by replaying who took and who gave back, not from the states of the pool."""
    (size,) = _sizes(item.prompt["en"])
    run, held, most = runs[f"batch_{size}"], 0, 0
    for step in run.steps:
        taken = sum(e.op == "alloc" for e in step.block_events)
        most = max(most, held + taken)
        held += taken - sum(e.op == "release" for e in step.block_events)
    assert held == 0
    prompt, output = (int(n) for n in re.search(r"prompts of (\d+) .* made (\d+) tokens", item.prompt["en"]).groups())
    assert most == size * math.ceil((prompt + output - 1) / run.header.block_size)
    return most


def check_next_throughput(item, runs: Runs, option) -> bool:
    size = int(re.search(r"did (\d+) requests make", item.prompt["en"])[1])
    truth = size / _seconds(runs[f"batch_{size}"], size)
    said = option.text["en"].removesuffix(" tokens/s").replace(",", "")
    return abs(float(said) / truth - 1) < 0.01


CHECKS = {
    "gain": check_gain,
    "utilization": check_utilization,
    "own_part": check_own_part,
    "kv_blocks": check_kv_blocks,
    "next_throughput": check_next_throughput,
}
