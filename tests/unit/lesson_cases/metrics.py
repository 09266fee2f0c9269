"""Runs of the load sweep on devices of several tempers, and what its questions should answer, from raw records."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from lessons.metrics.scenarios import SHARES, alone, burst, capacity_rps, load
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def sweep(
    places: int = 8, seed: int = 1, shares: tuple[str, ...] = tuple(SHARES), believe: float = 1.0, **device
) -> Runs:
    """The whole study on a fake device. ``believe``: how many times its true capacity the burst is taken for."""
    runs = {"alone": serve(alone(places), **device), "burst": serve(burst(places), **device)}
    capacity = believe * capacity_rps(runs)
    return runs | {role: serve(load(role, capacity, places, seed=seed), **device) for role in shares}


def falling() -> Runs:
    """A sweep whose heavier loads were disturbed from the second on."""
    slow = sweep(pass_ms=200, token_ms=8)
    quick = sweep()
    return {role: (quick if role in ("alone", "burst", "load_1") else slow)[role] for role in quick}


def slow_burst() -> Runs:
    """A sweep whose full batch was disturbed: places seem to be held for longer than they are."""
    return sweep() | {"burst": serve(burst(8), pass_ms=60, token_ms=4)}


def late_second_batch() -> Runs:
    """A sweep whose full batches had a pause between them: like steps are alike, and yet the capacity is too low."""
    runs = sweep()
    paused = runs["burst"].model_copy(deep=True)
    break_s = min(r.completion_s for r in paused.requests)
    for step in (s for s in paused.steps if s.t_begin_s >= break_s - 1e-6):
        step.t_begin_s, step.t_end_s = step.t_begin_s + 2, step.t_end_s + 2
    for record in (r for r in paused.requests if r.completion_s > break_s + 0.1):
        record.first_scheduled_s, record.first_token_s = record.first_scheduled_s + 2, record.first_token_s + 2
        record.completion_s += 2
    return runs | {"burst": paused}


RUNS = {
    "a sweep": lambda: sweep(),
    "few places": lambda: sweep(places=4, pass_ms=40),
    "cheap prompts": lambda: sweep(pass_ms=30, token_ms=0.05),
    "believed too weak": lambda: sweep(believe=0.3),
    "idle": lambda: sweep(believe=0.02),
    "much stronger than believed": lambda: sweep(believe=0.5),
    "weaker than believed": lambda: sweep(believe=2.5),
    "full batches disturbed": slow_burst,
    "a pause between the full batches": late_second_batch,
    "disturbed": lambda: sweep(jitter=4),
    "unsteady": lambda: sweep(jitter=1.7),
    "heavier loads disturbed": falling,
}


def ITEM_RUNS() -> list[Runs]:
    found = []
    for seed in range(24):
        rng = random.Random(seed)
        roles = tuple(role for role in SHARES if seed % 3 or rng.random() < 0.6)
        device = {"pass_ms": rng.uniform(10, 60), "token_ms": rng.choice([0.2, 1, 4])}
        found.append(sweep(rng.choice([4, 8]), seed, roles, rng.choice([0.6, 1.0, 1.4]), **device))
    return found


# ------------------------------------------------------------------ the checker: raw records only
def _run(item, runs: Runs) -> Run:
    """The Run whose arrivals come at the rate that the question names."""
    said = re.search(r"load of ([\d.,]+) requests/s", item.prompt["en"])[1].replace(",", "")
    digits = len(said.partition(".")[2])
    matching = []
    for role, run in runs.items():
        times = sorted(r.arrival_s for r in run.requests)
        if role.startswith("load") and abs((len(times) - 1) / times[-1] - float(said)) <= 0.51 * 10**-digits:
            matching.append(run)
    return next(run for run in matching if run.run_id in item.run_ids)


def _request(item, runs: Runs):
    name = re.search(r"your study, (r\d+)", item.prompt["en"])[1]
    run = _run(item, runs)
    (record,) = [r for r in run.requests if r.request_id == name]
    return run, record


def _stamps(run: Run, name: str) -> list[float]:
    return [step.t_end_s for step in run.steps for output in step.outputs if output.request_id == name]


def check_e2e(item, runs: Runs) -> float:
    run, record = _request(item, runs)
    return 1e3 * (_stamps(run, record.request_id)[-1] - record.arrival_s)


def check_tpot(item, runs: Runs) -> float:
    run, record = _request(item, runs)
    stamps = _stamps(run, record.request_id)
    return 1e3 * (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def check_queue(item, runs: Runs) -> float:
    run, record = _request(item, runs)
    first = next(s for s in run.steps if any(row.request_id == record.request_id for row in s.scheduled))
    return 1e3 * (first.t_begin_s - record.arrival_s)


def check_throughput(item, runs: Runs) -> float:
    run = _run(item, runs)
    tokens = sum(1 for step in run.steps for output in step.outputs if output.token_id is not None)
    return tokens / (run.steps[-1].t_end_s - min(r.arrival_s for r in run.requests))


def check_goodput(item, runs: Runs) -> int:
    run = _run(item, runs)
    ttft_limit, tpot_limit = map(int, re.search(r"at most (\d+) ms and TPOT at most (\d+)", item.prompt["en"]).groups())
    count = 0
    for line in item.trace["en"].splitlines()[1:]:
        name, ttft_ms, tpot_ms = line.split()
        (record,) = [r for r in run.requests if r.request_id == name]
        stamps = _stamps(run, name)
        assert int(ttft_ms) == round(1e3 * (stamps[0] - record.arrival_s))
        assert abs(int(tpot_ms) - 1e3 * (stamps[-1] - stamps[0]) / (len(stamps) - 1)) <= 0.51
        count += int(ttft_ms) <= ttft_limit and int(tpot_ms) <= tpot_limit
    return count


def check_next_step(item, runs: Runs, option) -> bool:
    run = _run(item, runs)
    step = int(re.search(r"end of step (\d+)", item.prompt["en"])[1])
    now, following = run.steps[step], run.steps[step + 1]
    entered = {row.request_id for row in following.scheduled} - {row.request_id for row in now.scheduled}
    said = option.text["en"]
    if found := re.match(r"(r\d+) entered", said):
        return entered == {found[1]}
    if said.startswith("Nobody"):
        return not entered
    name = said.split()[0]
    return any(row.request_id == name for row in following.scheduled)


CHECKS = {
    "e2e": check_e2e,
    "tpot": check_tpot,
    "queue": check_queue,
    "throughput": check_throughput,
    "goodput": check_goodput,
    "next_step": check_next_step,
}
