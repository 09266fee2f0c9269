"""Questions about the learner's own run of one request. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import kv_of_request, token_times
from engine.lab.records import RequestRecord, Run
from engine.lab.work import intensity, moved_bytes
from lessons.generated import Draft, Generator, tpot_draft
from lessons.prefill_decode.facts import prefill_share, the_run
from lessons.text import format_bytes, format_number

Runs = Mapping[str, Run]
CLEAR_POINTS = 2.0  # two percentages nearer than this are not offered as different choices


def _run(runs: Runs) -> tuple[Run, RequestRecord] | None:
    try:
        return the_run(runs)
    except ValueError:
        return None


def tpot(runs: Runs, rng: random.Random) -> Draft | None:
    found = _run(runs)
    return found and tpot_draft(found[0], found[1].request_id, {})


def _token_and_kv(runs: Runs, rng: random.Random, *, at_border: bool) -> Draft | None:
    """A random output token, and the KV memory of the request in the step that made it.

    ``at_border`` prefers a token where counting it would need one block more than there is: the telling case.
    """
    found = _run(runs)
    if not found:
        return None
    run, record = found
    size, num_prompt = run.header.block_size, record.num_prompt_tokens
    tokens = token_times(run)[record.request_id][1:]
    borders = [t for t in tokens if (num_prompt + t.index) % size == 0]
    if not tokens:
        return None
    token = rng.choice(borders if borders and at_border and rng.random() < 0.5 else tokens)
    kv = next(use for use in kv_of_request(run, record.request_id) if use.step == token.step)
    number = token.index + 1
    return Draft(
        values={
            "block_size": size,
            "num_prompt_tokens": num_prompt,
            "token": number,
            "num_positions": kv.num_tokens,
            "num_blocks": kv.num_blocks,
        },
        runs=(run,),
        answer=kv.num_blocks if at_border else kv.num_tokens,
        whole=True,
        traps={
            "last_token_is_cached": math.ceil((num_prompt + number) / size) if at_border else num_prompt + number,
            "cache_holds_answer_only": math.ceil(number / size) if at_border else number,
            "block_begun_not_counted": kv.num_tokens // size if at_border else None,
            "prompt_only": math.ceil(num_prompt / size) if at_border else num_prompt,
            "positions_for_blocks": kv.num_tokens if at_border else None,
        },
    )


def blocks(runs: Runs, rng: random.Random) -> Draft | None:
    return _token_and_kv(runs, rng, at_border=True)


def positions(runs: Runs, rng: random.Random) -> Draft | None:
    return _token_and_kv(runs, rng, at_border=False)


def step_intensity(runs: Runs, rng: random.Random) -> Draft | None:
    """Prefill or a decode step, with even chance."""
    found = _run(runs)
    if not found:
        return None
    run, _ = found
    kinds = ("prefill", "decode") if len(run.steps) > 1 else ("prefill",)
    wanted = rng.choice(kinds)
    steps = [s for s in run.steps if s.scheduled and s.scheduled[0].phase == wanted and intensity(s.work)]
    if not steps:
        return None
    step = rng.choice(steps)
    answer = intensity(step.work)
    num_bytes = moved_bytes(step.work)
    return Draft(
        values={
            "step": step.step,
            "num_tokens": step.work.tokens,
            "flop": f"{format_number(step.work.flops / 1e9)} GFLOP",
            "bytes": format_bytes(num_bytes),
            "intensity": answer,
        },
        runs=(run,),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "intensity_upside_down": num_bytes / step.work.flops,
            "intensity_per_token": answer / step.work.tokens if step.work.tokens > 1 else None,
            "intensity_is_flop_count": step.work.flops / 1e9,
        },
    )


def share(runs: Runs, rng: random.Random) -> Draft | None:
    """Which part of the time was prefill. Choices that come near the truth by chance are left out."""
    found = _run(runs)
    if not found or found[1].num_output_tokens < 2:
        return None
    run, record = found
    right = 100 * prefill_share(record)
    wrong = {
        "time_proportional_to_tokens": 100 * record.num_prompt_tokens
        / (record.num_prompt_tokens + record.num_output_tokens),
        "all_passes_equal": 100 / record.num_output_tokens,
        "shares_swapped": 100 - right,
        "prefill_negligible": 0.1,
    }  # fmt: skip
    taken, options = [right], []
    for name, value in wrong.items():
        if all(abs(value - other) >= CLEAR_POINTS for other in taken):
            taken.append(value)
            options.append(name)
    return Draft(
        values={
            "right": f"{right:.1f}",
            "num_prompt_tokens": record.num_prompt_tokens,
            "num_output_tokens": record.num_output_tokens,
            **{f"percent_{name}": f"{value:.1f}" for name, value in wrong.items()},
        },
        runs=(run,),
        options=tuple(options),
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"tpot": tpot, "blocks": blocks, "positions": positions, "step_intensity": step_intensity, "share": share}
)
