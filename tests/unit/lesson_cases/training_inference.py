"""Cases of the lesson on training and inference: Runs as a quiet, a noisy and an unmeasured machine would give them."""

from __future__ import annotations

import re

from engine.lab.records import Run
from lessons.training_inference.scenarios import LENGTHS, STARTS, three_ways
from tests.probe_kit import add_probes
from tests.unit.lesson_runs import serve

Runs = dict[str, Run]


def runs(num_tokens: int = 64, start: int = 0, same: int | None = None, **options) -> Runs:
    run = serve(three_ways(STARTS[start], num_tokens), **options)
    if same is not None:
        add_probes(run, same=same)
    return {"run": run}


def noisy() -> Runs:
    found = runs()
    found["run"].header.probes["training_step"] |= {"step_low_ms": 100.0, "step_high_ms": 900.0}
    return found


def no_choices() -> Runs:
    found = runs()
    found["run"].header.probes["training_step"] |= {"num_choices": 0, "num_same_choices": 0}
    return found


RUNS = {
    "quiet": runs,
    "some tokens differ": lambda: runs(same=57),
    "short": lambda: runs(32),
    "long": lambda: runs(256),
    "noisy": noisy,
    "nothing written greedily": no_choices,
    "no ceilings": lambda: runs(ceilings=None),
    "far from the model": lambda: runs(pass_ms=120, token_ms=9),
    "faster than the model": lambda: runs(pass_ms=2, token_ms=0.1),
    "as the model says": lambda: runs(128, pass_ms=25.5, token_ms=1.85, jitter=0),
}


def ITEM_RUNS() -> list[Runs]:
    return [
        runs(num_tokens, start, pass_ms=pass_ms)
        for num_tokens in LENGTHS
        for start in range(2)
        for pass_ms in (5.0, 25.0, 60.0)
    ]


# ------------------------------------------------------------------ the checker: raw records only
def seconds(run: Run, name: str) -> float:
    if name == "train":
        return run.header.probes["training_step"]["step_ms"] / 1e3
    mine = [s for s in run.steps if s.scheduled and s.scheduled[0].request_id == name]
    return sum(s.t_end_s - s.t_begin_s for s in mine)


def check_speed(item, runs: Runs) -> float:
    written, read = (
        int(n) for n in re.search(r"wrote (\d+) tokens .* text of (\d+) tokens", item.prompt["en"]).groups()
    )
    run = runs["run"]
    assert (written, read) == (len(run.requests[0].output_token_ids), run.requests[1].num_prompt_tokens)
    return (read / seconds(run, "read")) / (written / seconds(run, "write"))


def check_weight_readings(item, runs: Runs) -> float:
    return sum(s.scheduled[0].request_id == "write" for s in runs["run"].steps)


def check_way_intensity(item, runs: Runs) -> float:
    way = {"Writ": "write", "Read": "read", "The ": "train"}[item.prompt["en"][:4]]
    run = runs["run"]
    if way == "train":
        step = run.header.probes["training_step"]
        moved = 2 * step["weight_bytes"] + step["gradient_bytes"] + 2 * step["activation_bytes"]
        return (step["forward_flops"] + step["backward_flops"]) / moved
    mine = [s.work for s in run.steps if s.scheduled[0].request_id == way]
    return sum(w.flops for w in mine) / sum(w.weight_bytes + w.kv_read_bytes + w.kv_write_bytes for w in mine)


def check_training_work(item, runs: Runs) -> float:
    step = runs["run"].header.probes["training_step"]
    return (step["forward_flops"] + step["backward_flops"]) / 1e9


def check_next_step(item, runs: Runs, option) -> bool:
    """Reads the last step of the trace as a learner would, and looks the next one up."""
    steps = runs["run"].steps
    shown = [line.split() for line in item.trace["en"].splitlines()[1:4]]
    last = int(shown[-1][0])
    for number, request_id, position in shown:
        row = steps[int(number)].scheduled[0]
        assert (row.request_id, row.start) == (request_id, int(position))
    row, text = steps[last + 1].scheduled[0], option.text["en"]
    if row.request_id == "read":
        return text == f"{row.num_tokens} positions of read, all at once"
    return text == f"one position of write: position {row.start}"


CHECKS = {
    "speed": check_speed,
    "weight_readings": check_weight_readings,
    "way_intensity": check_way_intensity,
    "training_work": check_training_work,
    "next_step": check_next_step,
}
