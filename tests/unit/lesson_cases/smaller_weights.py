"""Runs of the three forms on devices of several tempers, and what the questions should answer, from raw records."""

from __future__ import annotations

import random
import re
import statistics

from engine.lab.records import Run
from lessons.smaller_weights.scenarios import ROLES, scenario
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]
BITS = {"bf16": 16, "int8": 8.5, "int4": 5.0}


def study(
    roles: tuple[str, ...] = ROLES, faster: tuple[float, float] = (1.8, 3.0), parts: tuple = (None, 7), **device
) -> Runs:
    """The study on a fake device. ``faster``: how many times as fast int8 and int4 are; ``parts``: where they differ.

    The fake model always says the same; a smaller form's tokens are changed from the place given on.
    """
    speed = {"bf16": 1.0, "int8": faster[0], "int4": faster[1]}
    places = {"int8": parts[0], "int4": parts[1]}
    runs = {}
    for role in roles:
        form = role.partition("_")[0]
        options = {**device, "pass_ms": device.get("pass_ms", 25.0) / speed[form]}
        run = serve(scenario(role), **options)
        run.header.weight_bytes_per_element = BITS[form] / 8
        run.header.model = run.header.model.model_copy(
            update={"weight_bytes": round(run.header.model.num_parameters * BITS[form] / 8)}
        )
        for step in run.steps:
            step.work.weight_bytes = run.header.model.weight_bytes
        place = places.get(form)
        if place is not None:
            ids = run.requests[0].output_token_ids
            ids[place:] = [token + 1 if index % 5 else token for index, token in enumerate(ids[place:], start=1)]
        runs[role] = run
    return runs


def rounded_before(runs: Runs) -> Runs:
    """Weights that came in 4 bits: rounding them to 4 bits again changes little."""
    runs["int4_one"].header.probes["quantization"]["mean_logit_error"] = 0.001
    return runs


RUNS = {
    "as the bytes": lambda: study(),
    "unpacking counts": lambda: study(faster=(1.5, 1.6), parts=(3, 3)),
    "slower": lambda: study(faster=(0.9, 0.8), parts=(None, None)),
    "rounded before": lambda: rounded_before(study()),
    "disturbed": lambda: study(jitter=4),
    "no ceilings": lambda: study(ceilings=None),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        found.append(
            study(
                faster=(rng.uniform(0.8, 2), rng.uniform(0.8, 4)),
                parts=(rng.choice([None, rng.randrange(48)]), rng.choice([None, rng.randrange(40)])),
                pass_ms=rng.uniform(5, 60),
                token_ms=rng.choice([0.2, 1, 4]),
            )
        )
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _form(item) -> str:
    return re.search(r"\b(bfloat16|int8|int4)\b (?:weights|form)", _words(item))[1].replace("bfloat16", "bf16")


def _words(item) -> str:
    said = item.prompt["en"]
    return said.rpartition("and ")[2] if item.generator in ("gain", "first_token") else said


def _decode(run: Run) -> list:
    return [s for s in run.steps if [row.phase for row in s.scheduled] == ["decode"]]


def _seconds(run: Run) -> float:
    return statistics.median(s.t_end_s - s.t_begin_s for s in _decode(run))


def check_gain(item, runs: Runs) -> float:
    return _seconds(runs["bf16_one"]) / _seconds(runs[f"{_form(item)}_one"])


def check_bandwidth(item, runs: Runs) -> float:
    run = runs[f"{_form(item)}_one"]
    moved = statistics.median(s.work.weight_bytes + s.work.kv_read_bytes + s.work.kv_write_bytes for s in _decode(run))
    return moved / _seconds(run) / 1e9


def check_bits(item, runs: Runs) -> float:
    model = runs[f"{_form(item)}_one"].header.model
    return 8 * model.weight_bytes / model.num_parameters


def check_first_token(item, runs: Runs) -> int:
    mine, theirs = (runs[f"{form}_one"].requests[0].output_token_ids for form in ("bf16", _form(item)))
    rows = [list(map(int, line.split())) for line in item.trace["en"].splitlines()[1:]]
    assert all(mine[place - 1] == a and theirs[place - 1] == b for place, a, b in rows)
    return next(place for place, a, b in rows if a != b)


CHECKS = {
    "gain": check_gain,
    "bandwidth": check_bandwidth,
    "bits": check_bits,
    "first_token": check_first_token,
}
