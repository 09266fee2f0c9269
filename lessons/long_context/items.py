"""Questions about the learner's own study of keys and values. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from lessons.generated import Draft, Generator
from lessons.long_context.facts import Kept, blocks_of_one, kinds, record
from lessons.long_context.scenarios import KINDS, OUTPUT_TOKENS, OWN, PROMPT_TOKENS
from lessons.smaller_weights.facts import first_difference
from lessons.text import format_number

Runs = Mapping[str, Run]
NUM_LISTED = 8


def _any(runs: Runs, rng: random.Random, roles: tuple[str, ...] = tuple(KINDS)) -> Kept | None:
    found = [kept for role, kept in kinds(runs).items() if role in roles]
    return rng.choice(found) if found else None


def bytes_per_token(runs: Runs, rng: random.Random) -> Draft | None:
    """The formula with the shape of the model that ran."""
    kept = _any(runs, rng, ("own16", "mha16", "mqa16"))
    if kept is None:
        return None
    model = kept.run.header.model
    answer = kept.bytes_per_token / 1e3
    return Draft(
        values={
            "layers": model.num_layers,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "kb": f"{answer:.3f}",
        },
        runs=(kept.run,),
        answer=answer,
        tolerance=0.01 * answer,
        traps={
            "query_heads_counted": answer * model.num_heads / model.num_kv_heads,
            "keys_only": answer / 2,
            "one_layer": answer / model.num_layers,
            "float32_assumed": 2 * answer,
        },
    )


def at_once(runs: Runs, rng: random.Random) -> Draft | None:
    """How many requests the blocks of a pool hold."""
    kept = _any(runs, rng)
    if kept is None or kept.at_once != kept.modelled_at_once:
        return None
    each, size = blocks_of_one(kept.run), kept.run.header.block_size
    positions = PROMPT_TOKENS + OUTPUT_TOKENS
    return Draft(
        values={
            "blocks": kept.num_blocks,
            "size": size,
            "prompt": PROMPT_TOKENS,
            "output": OUTPUT_TOKENS,
            "each": each,
            "n": kept.at_once,
        },
        runs=(kept.run,),
        answer=kept.at_once,
        whole=True,
        traps={
            "prompt_only": kept.num_blocks // -(-PROMPT_TOKENS // size),
            "block_per_request": kept.num_blocks,
            "blocks_for_positions": kept.num_blocks * size // positions + 1,
        },
    )


def bits_per_number(runs: Runs, rng: random.Random) -> Draft | None:
    """What a stored number takes on average, scales included."""
    kept = _any(runs, rng, ("own8", "own4"))
    if kept is None:
        return None
    model, plain = kept.run.header.model, KINDS[kept.role].bits
    numbers = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    answer = 8 * kept.bytes_per_token / numbers
    if abs(answer - plain) < 0.02 * answer:
        return None
    return Draft(
        values={
            "form": f"int{plain}",
            "bytes": format_number(kept.bytes_per_token),
            "numbers": format_number(numbers),
            "bits": format_number(answer),
            "plain": plain,
        },
        runs=(kept.run,),
        answer=answer,
        tolerance=0.01 * answer,
        traps={"scales_take_nothing": float(plain), "bytes_for_bits": answer / 8, "keys_only": 2 * answer},
    )


def until(runs: Runs, rng: random.Random) -> Draft | None:
    """How many tokens two answers have in common at their beginning."""
    found = kinds(runs)
    kept = _any(runs, rng, ("own8", "own4", "mqa16"))
    if kept is None or "own16" not in found:
        return None
    name = OWN if kept.role != "mqa16" else "r1"
    mine, theirs = record(found["own16"].run, name), record(kept.run, name)
    first = first_difference(mine, theirs)
    if first is None:
        return None
    end = min(first + rng.randrange(2, 5), mine.num_output_tokens)
    begin = max(0, end - NUM_LISTED)
    rows = [(i + 1, mine.output_token_ids[i], theirs.output_token_ids[i]) for i in range(begin, end)]
    differing = sum(a != b for _, a, b in rows)
    words = {"own8": "int8", "own4": "int4", "mqa16": "MQA"}[kept.role]
    head = f"{'own, 16 bit':>11}  {words:>9}"
    lines = [f"{place:>5}  {a:>11}  {b:>9}" for place, a, b in rows]
    return Draft(
        values={
            "form": words,
            "first": first + 1,
            "same": first,
            "begin": begin,
            "table": {"en": "\n".join([f"place  {head}", *lines]), "zh": "\n".join([f" 位置  {head}", *lines])},
        },
        runs=(found["own16"].run, kept.run),
        answer=first,
        whole=True,
        traps={
            "first_that_differs": first + 1,
            "counted_from_the_list": first - begin if begin else None,
            "all_that_differ": differing,
        },
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"bytes_per_token": bytes_per_token, "at_once": at_once, "bits_per_number": bits_per_number, "until": until}
)
