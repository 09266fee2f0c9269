"""Runs of one shared engine and of two workers on machines of several tempers, and a checker from raw records."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from lessons.disaggregation.scenarios import BUDGETS, LINKS, LONGS, ROLES, scenario
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def both(split: dict | None = None, long: int = 256, budget: int = 1024, link: int = 0, **shared) -> Runs:
    """The shared engine as ``shared`` says, the workers as ``split`` says (as the shared one where it says nothing)."""
    options = {"shared": shared, "disaggregated": shared | (split or {})}
    return {role: serve(scenario(role, long, budget, link), **options[role]) for role in ROLES}


RUNS = {
    "half the threads": lambda: both({"token_ms": 2.2, "pass_ms": 30}, token_ms=1.1),
    "in pieces": lambda: both({"token_ms": 2.2}, budget=128, token_ms=1.1),
    "prefill gains": lambda: both({"token_ms": 1.0, "pass_ms": 25}, pass_ms=60, token_ms=2.5),
    "slow link": lambda: both(link=20, token_ms=0.2),
    "same goodput": lambda: both(pass_ms=25, token_ms=0.5),
    "disturbed": lambda: both(jitter=4),
    "another split": lambda: both({"token_ms": 6.0}, long=768, token_ms=1.0),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        token_ms = rng.uniform(0.3, 2.0)
        runs = both(
            {"token_ms": 2 * token_ms, "pass_ms": rng.uniform(20, 40)},
            rng.choice(LONGS),
            rng.choice(BUDGETS),
            rng.choice(LINKS),
            pass_ms=rng.uniform(15, 30),
            token_ms=token_ms,
        )
        found.append(runs)
    return found


# ------------------------------------------------------------------ the checker: raw records only
def check_stalled(item, runs: Runs) -> float:
    chat = re.search(r"chat ([ABC])", item.prompt["en"])[1]
    count = 0
    for step in runs["shared"].steps:
        phases = {row.request_id: row.phase for row in step.scheduled}
        count += phases.get(chat) == "decode" and "prefill" in phases.values()
    return count


def check_sent_bytes(item, runs: Runs) -> float:
    run = runs["disaggregated"]
    name = re.search(r"workers, (\w+) has", item.prompt["en"])[1]
    tokens = next(r.num_prompt_tokens for r in run.requests if r.request_id == name)
    model, size = run.header.model, run.header.block_size
    blocks = (tokens + size - 1) // size
    return blocks * size * 2 * model.num_layers * model.num_kv_heads * model.head_dim * 4 / 1e6


def _step(run: Run, name: str, phase: str):
    return next(s for s in run.steps if any(r.request_id == name and r.phase == phase for r in s.scheduled))


def _first_token_s(run: Run, name: str) -> float:
    return next(s.t_end_s for s in run.steps for o in s.outputs if o.request_id == name)


def check_handover(item, runs: Runs) -> float:
    run = runs["disaggregated"]
    name = re.search(r"Moments of (\w+)", item.prompt["en"])[1]
    return 1e3 * (_step(run, name, "decode").t_begin_s - _first_token_s(run, name))


def check_ttft_split(item, runs: Runs) -> float:
    name = re.search(r"Moments of (\w+)", item.prompt["en"])[1]
    run = runs["shared" if "your shared run" in item.prompt["en"] else "disaggregated"]
    arrival = next(r["arrival_s"] for r in run.header.scenario["requests"] if r["request_id"] == name)
    return 1e3 * (_first_token_s(run, name) - arrival)


CHECKS = {
    "stalled": check_stalled,
    "sent_bytes": check_sent_bytes,
    "handover": check_handover,
    "ttft_split": check_ttft_split,
}
