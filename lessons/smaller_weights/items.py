"""Questions about the learner's own study of smaller weights. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from lessons.generated import Draft, Generator
from lessons.smaller_weights.facts import Form, first_difference, forms
from lessons.text import format_number

Runs = Mapping[str, Run]
NUM_LISTED = 8
_WORDS = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}


def _pair(runs: Runs, rng: random.Random) -> tuple[Form, Form] | None:
    """The 16-bit form and a smaller one."""
    found = forms(runs)
    smaller = [form for name, form in found.items() if name != "bf16"]
    return (found["bf16"], rng.choice(smaller)) if "bf16" in found and smaller else None


def gain(runs: Runs, rng: random.Random) -> Draft | None:
    """How many times the tokens per second, from two step times."""
    pair = _pair(runs, rng)
    if pair is None:
        return None
    plain, form = pair
    large_ms, small_ms = 1e3 * plain.decode.seconds, 1e3 * form.decode.seconds
    answer = large_ms / small_ms
    return Draft(
        values={
            "form": _WORDS[form.name],
            "large_ms": f"{large_ms:.2f}",
            "small_ms": f"{small_ms:.2f}",
            "gain": format_number(answer),
        },
        runs=(plain.one, form.one),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "bits_are_the_gain": {"int8": 2.0, "int4": 4.0}[form.name],
            "ratio_upside_down": 1 / answer,
            "difference_for_ratio": large_ms - small_ms,
        },
    )


def bandwidth(runs: Runs, rng: random.Random) -> Draft | None:
    """The rate at which a decode step moved its bytes."""
    found = list(forms(runs).values())
    if not found:
        return None
    form = rng.choice(found)
    step_ms, moved_mb = 1e3 * form.decode.seconds, form.decode.num_bytes / 1e6
    answer = form.decode.gbps
    return Draft(
        values={
            "form": _WORDS[form.name],
            "moved_mb": f"{moved_mb:.1f}",
            "step_ms": f"{step_ms:.2f}",
            "gbps": format_number(answer),
        },
        runs=(form.one,),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "bytes_per_token_times_batch": 8 * answer,
            "upside_down_rate": 1 / answer,
            "bits_for_bytes": answer / 8,
        },
    )


def bits(runs: Runs, rng: random.Random) -> Draft | None:
    """How many bits a weight takes on average, scales included."""
    pair = _pair(runs, rng)
    if pair is None:
        return None
    _, form = pair
    parameters = form.one.header.model.num_parameters
    answer = 8 * form.weight_bytes / parameters
    plain_bits = {"int8": 8.0, "int4": 4.0}[form.name]
    if abs(answer - plain_bits) < 0.02 * answer:
        return None  # nothing to ask: the scales are too few to be seen
    return Draft(
        values={
            "form": _WORDS[form.name],
            "weights_mb": f"{form.weight_bytes / 1e6:.1f}",
            "parameters_m": f"{parameters / 1e6:.1f}",
            "bits": format_number(answer),
            "plain_bits": f"{plain_bits:.0f}",
        },
        runs=(form.one,),
        answer=answer,
        tolerance=0.01 * answer,
        traps={
            "bytes_for_bits": answer / 8,
            "scales_take_nothing": plain_bits,
            "half_of_sixteen": 16.0 - plain_bits if plain_bits == 4.0 else None,
        },
    )


def first_token(runs: Runs, rng: random.Random) -> Draft | None:
    """Where two greedy texts part, read from their token ids."""
    pair = _pair(runs, rng)
    if pair is None:
        return None
    plain, form = pair
    first = first_difference(plain.record, form.record)
    if first is None:
        return None
    begin = max(0, first - rng.randrange(2, 5))
    end = min(begin + NUM_LISTED, plain.record.num_output_tokens)
    rows = [(i + 1, plain.record.output_token_ids[i], form.record.output_token_ids[i]) for i in range(begin, end)]
    later = [place for place, mine, theirs in rows if mine != theirs]
    agree = [place for place, mine, theirs in rows if mine == theirs and place > later[0]]
    return Draft(
        values={"form": _WORDS[form.name], "first": first + 1, "table": _table(rows, _WORDS[form.name])},
        runs=(plain.one, form.one),
        answer=first + 1,
        whole=True,
        traps={
            "last_token_that_agrees": first,
            "token_id_for_place": plain.record.output_token_ids[first],
            "texts_come_together_again": agree[-1] + 1 if agree else None,
        },
    )


def _table(rows: list[tuple[int, int, int]], form: str) -> dict[str, str]:
    def lines(head: str) -> str:
        return "\n".join([head, *(f"{place:>5}  {mine:>9}  {theirs:>9}" for place, mine, theirs in rows)])

    return {"en": lines(f"place   bfloat16  {form:>9}"), "zh": lines(f" 位置   bfloat16  {form:>9}")}


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"gain": gain, "bandwidth": bandwidth, "bits": bits, "first_token": first_token}
)
