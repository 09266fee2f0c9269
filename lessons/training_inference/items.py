"""Questions about the learner's own run of the lesson. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator
from lessons.text import Fact, format_bytes, format_number, format_seconds
from lessons.training_inference.facts import ThreeWays, steps_of, three_ways

Runs = Mapping[str, Run]
_WAY: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "write": {"en": "Writing the text", "zh": "写这段文本"},
        "read": {"en": "Reading the text", "zh": "读这段文本"},
        "train": {"en": "The training step", "zh": "训练一步"},
    }
)


def _found(runs: Runs) -> ThreeWays | None:
    try:
        return three_ways(runs)
    except FactsError:
        return None


def speed(runs: Runs, rng: random.Random) -> Draft | None:
    """Tokens per second of reading over writing: mind that the start was given, so fewer tokens were written."""
    found = _found(runs)
    if found is None:
        return None
    write, read = found.write, found.read
    answer = (read.num_tokens / read.seconds) / (write.num_tokens / write.seconds)
    times = write.seconds / read.seconds
    return Draft(
        values={
            "written": write.num_tokens,
            "num_tokens": read.num_tokens,
            "write_time": format_seconds(write.seconds),
            "read_time": format_seconds(read.seconds),
            "answer": answer,
        },
        runs=(found.run,),
        answer=answer,
        tolerance=0.015 * answer,  # the times are shown with three digits
        traps={"times_for_rates": times, "ratio_upside_down": 1 / answer},
    )


def weight_readings(runs: Runs, rng: random.Random) -> Draft | None:
    found = _found(runs)
    if found is None or not found.start < found.num_tokens - 1:
        return None
    return Draft(
        values={
            "start": found.start,
            "num_tokens": found.num_tokens,
            "written": found.write.num_tokens,
        },
        runs=(found.run,),
        answer=found.write.num_passes,
        whole=True,
        traps={
            "prompt_read_token_by_token": found.num_tokens,
            "last_token_needs_pass": found.write.num_passes + 1,
            "one_reading_for_all": 1,
        },
    )


def way_intensity(runs: Runs, rng: random.Random) -> Draft | None:
    """The arithmetic intensity of one of the three ways, from its totals."""
    found = _found(runs)
    if found is None:
        return None
    name = rng.choice(("write", "read", "train"))
    way = found.ways[name]
    return Draft(
        values={
            "way": _WAY[name],
            "flop": f"{format_number(way.flops / 1e9)} GFLOP",
            "bytes": format_bytes(way.num_bytes),
            "num_tokens": way.num_tokens,
            "intensity": way.intensity,
        },
        runs=(found.run,),
        answer=way.intensity,
        tolerance=0.03 * way.intensity,
        traps={
            "intensity_upside_down": 1 / way.intensity,
            "intensity_per_token": way.intensity / way.num_tokens,
            "intensity_is_flop_count": way.flops / 1e9,
        },
    )


def training_work(runs: Runs, rng: random.Random) -> Draft | None:
    """FLOPs of the whole training step, from those of its forward pass."""
    found = _found(runs)
    if found is None:
        return None
    ahead = found.step.forward_flops / 1e9
    return Draft(
        values={
            "num_tokens": found.num_tokens,
            "forward": f"{format_number(ahead)} GFLOP",
            "backward": f"{format_number(2 * ahead)} GFLOP",
            "answer": 3 * ahead,
        },
        runs=(found.run,),
        answer=3 * ahead,
        tolerance=0.02 * 3 * ahead,
        traps={
            "training_is_one_forward": ahead,
            "backward_as_dear_as_forward": 2 * ahead,
            "backward_per_token": 2 * ahead * found.num_tokens,
        },
    )


def next_step(runs: Runs, rng: random.Random) -> Draft | None:
    """Three steps of the run in a row: what does the one after them compute? In mid text, or at its end."""
    found = _found(runs)
    if found is None or found.write.num_passes < 5:
        return None
    steps = steps_of(found.run, "write")
    at_end = rng.random() < 0.5
    last = len(steps) - 1 if at_end else rng.randrange(3, len(steps) - 1)
    shown = [step.scheduled[0] for step in steps[last - 2 : last + 1]]
    position = shown[-1].start + shown[-1].num_tokens
    whole = found.num_tokens
    one: Fact = {
        "en": f"one position of write: position {position}",
        "zh": f"“写”的一个位置：第 {position} 个",
    }
    every: Fact = {
        "en": f"{whole} positions of read, all at once",
        "zh": f"“读”的 {whole} 个位置，一起算",
    }
    again: Fact = {
        "en": f"{position + 1} positions of write, 0 to {position}, all over again",
        "zh": f"“写”的 {position + 1} 个位置，从第 0 个到第 {position} 个重算一遍",
    }
    wrong = "one_more_position" if at_end else "read_before_written"
    return Draft(
        values={
            **{f"step{i}": str(step.step).rjust(4) for i, step in enumerate(steps[last - 2 : last + 1])},
            **{f"position{i}": str(row.start).rjust(5) for i, row in enumerate(shown)},
            "next": str(steps[last].step + 1).rjust(4),
            "written": last + 1,
            "asked": len(steps),
            "num_tokens": whole,
            "right": every if at_end else one,
            "wrong": one if at_end else every,
            "again": again,
        },
        runs=(found.run,),
        options=(wrong, "everything_recomputed", "several_tokens_at_once"),
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "speed": speed,
        "weight_readings": weight_readings,
        "way_intensity": way_intensity,
        "training_work": training_work,
        "next_step": next_step,
    }
)
