"""A server of several tempers watched from outside beside our engine, and what the questions should answer."""

from __future__ import annotations

import itertools
import random
import re

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.real_server.scenarios import ROLES, SIZES, scenario
from tests.unit.lesson_runs import MODEL, serve
from tests.unit.observed_runs import from_outside

Runs = dict[str, Run]


def look(
    roles: tuple[str, ...] = ROLES, seen: dict | None = None, serial: bool = False, same_model: bool = False, **device
) -> Runs:
    """The whole study. ``seen``: how it looks from outside; ``serial``: the server serves one request at a time."""
    runs = {}
    for role in roles:
        asked = scenario(role).model_dump()
        asked.pop("server")
        if role.startswith("server") and serial:
            asked["limits"]["max_requests"] = 1
        inside = serve(Scenario.parse(asked), **device)
        if role.startswith("ours"):
            runs[role] = inside
            continue
        runs[role] = from_outside(inside, **(seen or {}))
        runs[role].header.scenario = scenario(role).model_dump(mode="json")
        if same_model:
            runs[role].header.model.name = MODEL.name
    return runs


RUNS = {
    "it batches": lambda: look(pass_ms=40, token_ms=1, same_model=True),
    "one after another": lambda: look(serial=True, pass_ms=40, token_ms=1),
    "no gain": lambda: look(pass_ms=0.5, token_ms=20),
    "several tokens an event": lambda: look(seen={"per_event": 3, "lacks": ["ignore_eos"]}),
    "stalls": lambda: look(seen={"stall_s": 0.5}),
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        device = {"pass_ms": rng.uniform(5, 60), "token_ms": rng.choice([0.2, 1, 4]), "jitter": rng.choice([0.02, 2])}
        roles = tuple(role for role in ROLES if seed % 3 or role.startswith("ours") or rng.random() < 0.8)
        found.append(look(roles, serial=seed % 4 == 1, seen={"stall_s": rng.choice([0, 0.3])}, **device))
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _size(item) -> int:
    return int(re.search(r"(?:With|answered) (\d+)", item.prompt["en"])[1])


def _run(item, runs: Runs) -> Run:
    (run,) = [
        runs[f"server_{n}"] for n in SIZES if f"server_{n}" in runs and runs[f"server_{n}"].run_id in item.run_ids
    ]
    assert len(run.requests) == _size(item)
    return run


def _record(item, runs: Runs):
    name = re.search(r"server's (r\d+)", item.prompt["en"])[1]
    (record,) = [r for r in _run(item, runs).requests if r.request_id == name]
    return record


def check_tpot(item, runs: Runs) -> float:
    record = _record(item, runs)
    times = record.token_times_s
    return 1e3 * (times[-1] - times[0]) / (record.num_output_tokens - 1)


def check_throughput(item, runs: Runs) -> float:
    run = _run(item, runs)
    last = max(r.token_times_s[-1] for r in run.requests)
    return sum(r.num_output_tokens for r in run.requests) / (last - min(r.arrival_s for r in run.requests))


def check_gain(item, runs: Runs) -> float:
    few, many = map(int, re.findall(r"tokens/s with (\d+)", item.prompt["en"]))

    def rate(run: Run) -> float:
        last = max(r.token_times_s[-1] for r in run.requests)
        return sum(r.num_output_tokens for r in run.requests) / (last - min(r.arrival_s for r in run.requests))

    return rate(runs[f"server_{many}"]) / rate(runs[f"server_{few}"])


def check_longest_gap(item, runs: Runs) -> float:
    record = _record(item, runs)
    moments = [float(m) for m in item.trace["en"].split()]
    assert all(
        abs(1e3 * (t - record.arrival_s) - m) < 0.06 for t, m in zip(record.token_times_s, moments, strict=False)
    )
    return max(b - a for a, b in itertools.pairwise(moments))


CHECKS = {
    "tpot": check_tpot,
    "throughput": check_throughput,
    "gain": check_gain,
    "longest_gap": check_longest_gap,
}
