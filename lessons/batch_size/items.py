"""Questions about the learner's own batching study. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from lessons.batch_size.points import BatchPoint, batch_points
from lessons.generated import Draft, Generator
from lessons.text import Fact, format_number

Runs = Mapping[str, Run]
CLEAR = 1.2  # two values nearer than this factor are not offered as different choices


def words(size: int) -> Fact:
    """A number of requests as it stands in the middle of a sentence. Pure."""
    return {"en": "one request" if size == 1 else f"{size} requests", "zh": f"{size} 个请求"}


def _pair(runs: Runs, rng: random.Random) -> tuple[BatchPoint, BatchPoint] | None:
    found = list(batch_points(runs).values())
    if len(found) < 2:
        return None
    few, many = sorted(rng.sample(range(len(found)), 2))
    return found[few], found[many]


def _ms(point: BatchPoint) -> float:
    return 1e3 * point.step_s


def gain(runs: Runs, rng: random.Random) -> Draft | None:
    """How many times the throughput one batch has of another."""
    pair = _pair(runs, rng)
    if pair is None:
        return None
    few, many = pair
    answer = many.tokens_per_s / few.tokens_per_s
    return Draft(
        values={
            "few": words(few.size),
            "many": words(many.size),
            "few_ms": _ms(few),
            "many_ms": _ms(many),
            "few_tps": few.tokens_per_s,
            "many_tps": many.tokens_per_s,
            "gain": answer,
        },
        runs=(few.run, many.run),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "throughput_proportional_to_requests": many.size / few.size,
            "time_ratio_for_throughput": many.step_s / few.step_s,
            "step_counted_as_one_token": few.step_s / many.step_s,
        },
    )


def utilization(runs: Runs, rng: random.Random) -> Draft | None:
    """What share of its arithmetic the device used with one of the batches."""
    found = [p for p in batch_points(runs).values() if p.run.header.device.matmul_tflops]
    if not found:
        return None
    point = rng.choice(found)
    tflops = point.run.header.device.matmul_tflops
    answer = 100 * point.utilization(tflops)
    return Draft(
        values={
            "size": words(point.size),
            "gflop": point.flops / 1e9,
            "step_ms": _ms(point),
            "ceiling": 1e3 * tflops,
            "rate": point.flops / point.step_s / 1e9,
            "percent": answer,
        },
        runs=(point.run,),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "waiting_and_working_swapped": 100 - answer,
            "share_as_fraction": answer / 100,
            "work_over_rate": 100 * point.flops / (tflops * 1e12),
            "utilization_per_request": answer / point.size if point.size > 1 else None,
        },
    )


def own_part(runs: Runs, rng: random.Random) -> Draft | None:
    """What one more request added to a step, between two batches."""
    pair = _pair(runs, rng)
    if pair is None:
        return None
    few, many = pair
    answer = (_ms(many) - _ms(few)) / (many.size - few.size)
    if answer < 0.005 * _ms(few):  # steps that did not grow, or shrank by chance
        return None
    return Draft(
        values={
            "few": words(few.size),
            "many": words(many.size),
            "few_ms": f"{_ms(few):.2f}",
            "many_ms": f"{_ms(many):.2f}",
            "more": many.size - few.size,
            "difference": f"{_ms(many) - _ms(few):.2f}",
            "added": answer,
        },
        runs=(few.run, many.run),
        answer=answer,
        tolerance=0.04 * answer + 0.01 / (many.size - few.size),
        traps={
            "mean_for_increment": _ms(many) / many.size,
            "increment_not_divided": _ms(many) - _ms(few) if many.size - few.size > 1 else None,
            "increment_over_all": (_ms(many) - _ms(few)) / many.size,
        },
    )


def kv_blocks(runs: Runs, rng: random.Random) -> Draft | None:
    """How many KV blocks a batch held at its fullest."""
    found = list(batch_points(runs).values())
    if not found:
        return None
    point = rng.choice(found)
    run, record = point.run, point.run.requests[0]
    size, answer = run.header.block_size, max(step.blocks.in_use for step in run.steps)
    stored = record.num_prompt_tokens + record.num_output_tokens - 1
    if answer != point.size * math.ceil(stored / size):  # the first were done before the last had all their blocks
        return None
    return Draft(
        values={
            "size": words(point.size),
            "prompt": record.num_prompt_tokens,
            "output": record.num_output_tokens,
            "stored": stored,
            "block_size": size,
            "each": math.ceil(stored / size),
            "blocks": answer,
        },
        runs=(run,),
        answer=answer,
        whole=True,
        traps={
            "one_cache_for_the_batch": math.ceil(stored / size),
            "block_begun_not_counted": point.size * (stored // size),
            "blocks_shared_by_requests": math.ceil(point.size * stored / size),
            "prompt_only": point.size * math.ceil(record.num_prompt_tokens / size),
            "positions_for_blocks": point.size * stored,
        },
    )


def next_throughput(runs: Runs, rng: random.Random) -> Draft | None:
    """The throughput of the next larger batch, after the smaller ones have been shown. Near misses are left out."""
    found = list(batch_points(runs).values())
    if len(found) < 3:
        return None
    last = rng.randrange(2, len(found))
    target, shown = found[last], found[:last]
    before, right = shown[-1], target.tokens_per_s
    wrong = {
        "throughput_proportional_to_requests": shown[0].tokens_per_s * target.size / shown[0].size,
        "throughput_per_request": right / target.size,
        "batch_slows_everybody": before.tokens_per_s * before.size / target.size,
        "batch_does_not_help": before.tokens_per_s,
    }
    return Draft(
        values={
            "most": target.size,
            "right": right,
            "table": {
                "en": _table(("requests", "ms per step", "tokens/s"), shown, target),
                "zh": _table(("请求数", "每步 ms", "token/s"), shown, target),
            },
            **{f"tps_{name}": value for name, value in wrong.items()},
        },
        runs=tuple(p.run for p in (*shown, target)),
        options=tuple(name for name, value in wrong.items() if abs(math.log(value / right)) > math.log(CLEAR)),
    )


def _table(heads: tuple[str, str, str], shown: list[BatchPoint], target: BatchPoint) -> str:
    """Three columns of fixed width; a Chinese character is as wide as two letters."""
    rows = [(str(p.size), format_number(_ms(p)), format_number(p.tokens_per_s)) for p in shown]
    rows.append((str(target.size), format_number(_ms(target)), "?"))
    widths = [sum(1 if letter.isascii() else 2 for letter in head) for head in heads]
    lines = ["   ".join(heads)]
    lines += ["   ".join(f"{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "gain": gain,
        "utilization": utilization,
        "own_part": own_part,
        "kv_blocks": kv_blocks,
        "next_throughput": next_throughput,
    }
)
