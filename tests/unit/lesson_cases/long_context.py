"""Runs of the five kinds from one memory with the real scheduler, and what the questions should answer."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.long_context import scenarios
from lessons.long_context.scenarios import KINDS, OWN, ROLES, block_bytes
from tests.unit.lesson_runs import MODEL, serve

Runs = dict[str, Run]
PARTS = {"own8": None, "own4": 9, "mqa16": 2, "mha16": None}


def study(roles: tuple[str, ...] = ROLES, parts: dict | None = None, prompt: str = "Why is it so?", **device) -> Runs:
    """The study on a fake device. ``parts``: from which token on a kind's answer differs, by role."""
    places = PARTS | (parts or {})
    runs: Runs = {}
    for role in ROLES:
        asked = {"prompt": prompt, "lang": "en"}
        wanted = scenarios.first(prompt) if role == "own16" else scenarios.later(role, asked, runs)
        runs[role] = _shaped(serve(wanted, **device), role, wanted)
        place = places.get(role)
        if place is not None:
            name = OWN if KINDS[role].heads == "own" else "r1"
            (record,) = [r for r in runs[role].requests if r.request_id == name]
            record.output_token_ids[place:] = [token + 1 for token in record.output_token_ids[place:]]
    return {role: runs[role] for role in roles}


def _shaped(run: Run, role: str, wanted: Scenario) -> Run:
    """What the real runtime would say of the model and the sizes in this Run's header."""
    kind = KINDS[role]
    heads = kind.num_kv_heads(MODEL)
    run.header.model = MODEL.model_copy(update={"num_kv_heads": heads})
    numbers = 2 * MODEL.num_layers * heads * MODEL.head_dim * wanted.block_size
    run.header.kv_bytes_per_element = block_bytes(MODEL, kind) / numbers
    run.header.kv_dtype = wanted.kv_dtype or "bfloat16"
    return run


RUNS = {
    "as usual": lambda: study(),
    "ties": lambda: study(parts={"mha16": 5, "own8": 20, "own4": None}),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        places = {role: rng.choice([None, rng.randrange(14)]) for role in ("own8", "own4", "mqa16")}
        roles = tuple(role for role in ROLES if role == "own16" or seed % 3 or rng.random() < 0.8)
        found.append(study(roles, places, prompt=f"Question {seed}?"))
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _run(item, runs: Runs) -> Run:
    (run,) = [run for run in runs.values() if run.run_id == item.run_ids[-1]]
    return run


def check_bytes_per_token(item, runs: Runs) -> float:
    found = re.search(r"had (\d+) layers, (\d+) query heads and (\d+) KV heads of size (\d+)", item.prompt["en"])
    layers, _, kv_heads, size = map(int, found.groups())
    return 2 * layers * kv_heads * size * 2 / 1e3


def check_at_once(item, runs: Runs) -> int:
    return max(len(step.scheduled) for step in _run(item, runs).steps)


def check_bits_per_number(item, runs: Runs) -> float:
    bits = 8 if "int8" in item.prompt["en"] else 4
    size, block = MODEL.head_dim, 16
    groups = size + block  # channels of the keys, tokens of the values
    return (2 * block * size * bits + groups * 16 * (1 if bits == 8 else 2)) / (2 * block * size)


def check_until(item, runs: Runs) -> int:
    mine, theirs = (next(run for run in runs.values() if run.run_id == name) for name in item.run_ids)
    name = "r1" if "MQA" in item.prompt["en"] else OWN
    ids = [next(r for r in run.requests if r.request_id == name).output_token_ids for run in (mine, theirs)]
    rows = [list(map(int, line.split())) for line in item.trace["en"].splitlines()[1:]]
    assert all(ids[0][place - 1] == a and ids[1][place - 1] == b for place, a, b in rows)
    return next(place for place, a, b in rows if a != b) - 1


CHECKS = {
    "bytes_per_token": check_bytes_per_token,
    "at_once": check_at_once,
    "bits_per_number": check_bits_per_number,
    "until": check_until,
}
