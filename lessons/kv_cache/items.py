"""Questions about the learner's own pair of runs. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from engine.lab.work import element_sizes, kv_bytes_per_token, with_kv_heads
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator
from lessons.kv_cache.facts import Side, side
from lessons.text import Fact, format_number

Runs = Mapping[str, Run]


def _side(runs: Runs, role: str) -> Side | None:
    try:
        return side(runs, role)
    except FactsError:
        return None


def per_position(runs: Runs, rng: random.Random) -> Draft | None:
    """Bytes of one position, from the shape of the model that ran."""
    cached = _side(runs, "cached")
    if cached is None:
        return None
    header = cached.run.header
    model, size = header.model, element_sizes(header)[1]
    answer = kv_bytes_per_token(model, size) / 1e3
    hidden = kv_bytes_per_token(with_kv_heads(model, model.num_heads), size) / 1e3
    return Draft(
        values={
            "model": model.name,
            "layers": model.num_layers,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "dim": model.head_dim,
            "size": format_number(int(size) if size == int(size) else size),
            "answer": answer,
        },
        runs=(cached.run,),
        answer=answer,
        tolerance=0.006 * answer,
        traps={
            "query_heads_for_kv_heads": hidden if model.num_heads != model.num_kv_heads else None,
            "keys_without_values": answer / 2,
            "one_layer_only": answer / model.num_layers,
            "bits_for_bytes": answer * 8,
        },
    )


def waste(runs: Runs, rng: random.Random) -> Draft | None:
    """How many positions of the request's blocks were empty when a token came out; often at a block border."""
    cached = _side(runs, "cached")
    if cached is None:
        return None
    size, record = cached.run.header.block_size, cached.record
    borders = [i for i, use in enumerate(cached.held) if use.num_tokens % size in (0, 1)]
    index = rng.choice(borders) if borders and rng.random() < 0.4 else rng.randrange(len(cached.held))
    use = cached.held[index]
    answer = use.num_blocks * size - use.num_tokens
    return Draft(
        values={
            "num_prompt_tokens": record.num_prompt_tokens,
            "block_size": size,
            "token": index + 1,
            "num_positions": use.num_tokens,
            "num_blocks": use.num_blocks,
            "num_slots": use.num_blocks * size,
            "answer": answer,
        },
        runs=(cached.run,),
        answer=answer,
        whole=True,
        traps={
            "last_token_is_cached": (answer - 1) % size,
            "cache_holds_answer_only": -index % size if index else None,
            "filled_for_empty": use.num_tokens - (use.num_blocks - 1) * size,
            "whole_pool_empty": cached.run.header.num_blocks * size - use.num_tokens,
        },
    )


def pass_positions(runs: Runs, rng: random.Random) -> Draft | None:
    """How many positions one pass computed without a cache."""
    uncached = _side(runs, "uncached")
    if uncached is None:
        return None
    index = rng.randrange(1, len(uncached.steps))
    prompt = uncached.record.num_prompt_tokens
    answer = uncached.steps[index].work.tokens
    return Draft(
        values={"num_prompt_tokens": prompt, "token": index + 1, "before": index, "answer": answer},
        runs=(uncached.run,),
        answer=answer,
        whole=True,
        traps={
            "as_with_cache": 1,
            "new_token_counted": answer + 1,
            "prompt_not_recomputed": index,
            "prompt_only": prompt,
        },
    )


def total_positions(runs: Runs, rng: random.Random) -> Draft | None:
    """How many positions all the passes together computed, with the cache or without it."""
    role = rng.choice(("cached", "uncached"))
    chosen = _side(runs, role)
    if chosen is None:
        return None
    prompt, output = chosen.record.num_prompt_tokens, chosen.record.num_output_tokens
    answer = chosen.num_computed
    without = sum(range(prompt, prompt + output))
    return Draft(
        values={
            "side": {"en": "with the cache", "zh": "用缓存"}
            if role == "cached"
            else {"en": "without it", "zh": "不用缓存"},
            "num_prompt_tokens": prompt,
            "num_output_tokens": output,
            "answer": answer,
            "sum": {"en": f"{prompt} + {output - 1} × 1", "zh": f"{prompt} + {output - 1} × 1"}
            if role == "cached"
            else {
                "en": f"{prompt} + {prompt + 1} + … + {prompt + output - 1}",
                "zh": f"{prompt} + {prompt + 1} + … + {prompt + output - 1}",
            },
        },
        runs=(chosen.run,),
        answer=answer,
        whole=True,
        traps={
            "with_and_without_mixed_up": without if role == "cached" else prompt + output - 1,
            "last_token_computed": prompt + output if role == "cached" else without + prompt + output,
            "passes_for_positions": output,
        },
    )


def next_step(runs: Runs, rng: random.Random) -> Draft | None:
    """Three steps with their blocks: does the next one take a new block? At a block border, or anywhere."""
    cached = _side(runs, "cached")
    if cached is None or len(cached.held) < 6:
        return None
    size, held = cached.run.header.block_size, cached.held
    places = range(3, len(held) - 2)  # the next step is not the last one, in which everything is given back
    full = [i for i in places if held[i].num_tokens % size == 0]
    last = rng.choice(full) if full and rng.random() < 0.5 else rng.choice(list(places))
    shown, at_border = held[last - 2 : last + 1], held[last].num_tokens % size == 0
    blocks = held[last].num_blocks
    values: dict[str, Fact] = {
        "block_size": size,
        "blocks": blocks,
        "positions": held[last].num_tokens,
        "next": str(held[last].step + 1).rjust(4),
        "right": {"en": "It takes one more block.", "zh": "再拿一个块。"}
        if at_border
        else {"en": "It takes no block: the last one has room.", "zh": "不拿新的块：最后一块还有空位。"},
        "wrong": {"en": "It takes no block: the last one has room.", "zh": "不拿新的块：最后一块还有空位。"}
        if at_border
        else {"en": "It takes one more block.", "zh": "再拿一个块。"},
    }
    for place, use in enumerate(shown):
        values[f"step{place}"] = str(use.step).rjust(4)
        values[f"positions{place}"] = str(use.num_tokens).rjust(6)
        values[f"blocks{place}"] = str(use.num_blocks).rjust(6)
    return Draft(
        values=values,
        runs=(cached.run,),
        options=(
            "border_not_seen" if at_border else "block_per_token",
            "first_block_given_back",
            "blocks_copied_to_larger",
        ),
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "per_position": per_position,
        "waste": waste,
        "pass_positions": pass_positions,
        "total_positions": total_positions,
        "next_step": next_step,
    }
)
