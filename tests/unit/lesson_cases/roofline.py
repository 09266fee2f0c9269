"""Runs of the roofline study on devices of several tempers, and what its questions should answer, from raw records."""

from __future__ import annotations

import random
import re
import statistics
from functools import cache

import yaml

from engine.lab.records import Run
from lessons.roofline.scenarios import ROLES, scenario
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def study(dtype: str = "float32", roles: tuple[str, ...] = ROLES, **device) -> Runs:
    """The whole study on a fake device; see ``lesson_runs.serve`` for what it can be told."""
    return {role: serve(scenario(role, dtype), **device) for role in roles}


# A reading of the weights takes 25.3 ms at 21.3 GB/s; a prompt token of SmolLM2-135M 1.9 ms at 0.118 TFLOP/s.
RUNS = {
    "near the roof": lambda: study(pass_ms=25, token_ms=1.7),
    "far below": lambda: study(pass_ms=60, token_ms=6),
    "above the roof": lambda: study(pass_ms=12, token_ms=0.6),
    "crossing elsewhere": lambda: study(pass_ms=90, token_ms=0.9),
    "a slow processor": lambda: study(pass_ms=25, token_ms=5, ceilings=(21.3, 0.04)),
    "overhead only": lambda: study(pass_ms=200, token_ms=0.1),
    "dear rows": lambda: study(pass_ms=5, token_ms=20),
    "disturbed": lambda: study(jitter=4),
    "no ceilings": lambda: study(ceilings=None),
    "without the middle": lambda: study(roles=("prefill_512", "decode_1", "decode_16")),
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
def _steps(runs: Runs, words: str) -> list:
    """The steps that an English phrase of a question speaks of."""
    if found := re.search(r"the prefill of (\d+) tokens", words):
        steps = [s for s in runs[f"prefill_{found[1]}"].steps if s.work.tokens == int(found[1])]
        return [s for s in steps if s.scheduled[0].phase == "prefill"]
    found = re.search(r"a decode step for (one request|(\d+) requests)", words)
    size = int(found[2] or 1)
    steps = [s for s in runs[f"decode_{size}"].steps if len(s.scheduled) == size]
    return [s for s in steps if all(row.phase == "decode" for row in s.scheduled)]


def _median(steps: list, of) -> float:
    return statistics.median(of(s) for s in steps)


def _bytes(step) -> int:
    return step.work.weight_bytes + step.work.kv_read_bytes + step.work.kv_write_bytes


def _seconds(steps: list) -> float:
    return _median(steps, lambda s: s.time_ms.forward) / 1e3


def check_intensity(item, runs: Runs) -> float:
    steps = _steps(runs, item.prompt["en"])
    return _median(steps, lambda s: s.work.flops) / _median(steps, _bytes)


def check_rate(item, runs: Runs) -> float:
    steps = _steps(runs, item.prompt["en"])
    return _median(steps, lambda s: s.work.flops) / 1e9 / _seconds(steps)


@cache
def _datasheets() -> list[dict]:
    with open("engine/lab/devices.yaml", encoding="utf-8") as file:
        return yaml.safe_load(file)


def check_elsewhere(item, runs: Runs) -> float:
    prompt = item.prompt["en"]
    name = re.search(r"datasheet of the (.+) says", prompt)[1]
    (device,) = [d for d in _datasheets() if d["name"] == name]
    dtype = next(iter(runs.values())).header.dtype
    rates = device["vector" if dtype == "float32" else "matrix"]
    steps = _steps(runs, prompt)
    moving = _median(steps, _bytes) / (device["bandwidth_gbps"]["value"] * 1e9)
    computing = _median(steps, lambda s: s.work.flops) / (rates[dtype]["value"] * 1e12)
    return 1e3 * max(moving, computing)


def check_crossing(item, runs: Runs) -> float:
    one, longest = _steps(runs, "a decode step for one request"), _steps(runs, "the prefill of 512 tokens")
    return _seconds(one) * 512 / _seconds(longest)


def check_next_batch(item, runs: Runs, option) -> bool:
    size = re.search(r"step with (\d+) requests", item.prompt["en"])[1]
    true_ms = 1e3 * _seconds(_steps(runs, f"a decode step for {size} requests"))
    said = option.text["en"].removesuffix(" ms").replace(",", "")
    return abs(float(said) / true_ms - 1) < 0.01


CHECKS = {
    "intensity": check_intensity,
    "rate": check_rate,
    "elsewhere": check_elsewhere,
    "crossing": check_crossing,
    "next_batch": check_next_batch,
}
