"""Questions about the learner's own runs with and without a prefix cache. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.prefix_use import prefix_use
from engine.lab.records import Run
from lessons.generated import Draft, Generator
from lessons.prefix_caching.facts import found_tokens
from lessons.text import Fact

Runs = Mapping[str, Run]
CACHED = ("hash", "radix", "aware")

_PART: Mapping[str, Fact] = MappingProxyType(
    {
        "hash": {"en": "with the hash chain", "zh": "用哈希链的那次"},
        "radix": {"en": "with the radix tree", "zh": "用基数树的那次"},
        "aware": {"en": "in the order of the cache", "zh": "缓存优先的那次"},
    }
)


def _cached(runs: Runs) -> list[tuple[str, Run]]:
    """The runs with a cache that are there and finished."""
    return [
        (part, runs[part])
        for part in CACHED
        if part in runs and runs[part].requests and all(r.first_token_s is not None for r in runs[part].requests)
    ]


# ------------------------------------------------------------------ what a hit saves
def prefilled(runs: Runs, rng: random.Random) -> Draft | None:
    """How many prompt tokens a request computed, from the blocks it found."""
    cases = [(p, run, r) for p, run in _cached(runs) for r in run.requests if found_tokens(run)[r.request_id]]
    if not cases:
        return None
    part, run, record = rng.choice(cases)
    size, found = run.header.block_size, found_tokens(run)[record.request_id]
    prompt = record.num_prompt_tokens
    return Draft(
        values={
            "part": _PART[part],
            "request": record.request_id,
            "prompt": prompt,
            "block_size": size,
            "blocks": found // size,
            "found": found,
            "answer": prompt - found,
        },
        runs=(run,),
        answer=prompt - found,
        whole=True,
        traps={
            "found_for_computed": found,
            "blocks_for_tokens": prompt - found // size,
            "last_token_only": 1,
            "cache_saves_nothing": prompt,
        },
    )


def hit_rate(runs: Runs, rng: random.Random) -> Draft | None:
    """The share of all prompt tokens that was found."""
    cases = [(p, run, use) for p, run in _cached(runs) if (use := prefix_use(run)).num_cached_tokens]
    if not cases:
        return None
    part, run, use = rng.choice(cases)
    answer = 100 * use.hit_rate
    return Draft(
        values={
            "part": _PART[part],
            "prompt": use.num_prompt_tokens,
            "computed": use.num_prompt_tokens - use.num_cached_tokens,
            "found": use.num_cached_tokens,
            "requests": len(run.requests),
            "hits": use.num_requests_with_hit,
            "answer": answer,
        },
        runs=(run,),
        answer=answer,
        tolerance=0.6,
        traps={
            "computed_for_found": 100 - answer,
            "requests_for_tokens": 100 * use.num_requests_with_hit / len(run.requests),
            "found_over_computed": 100 * use.num_cached_tokens / (use.num_prompt_tokens - use.num_cached_tokens),
        },
    )


# ------------------------------------------------------------------ the pool
def kept(runs: Runs, rng: random.Random) -> Draft | None:
    """How many blocks held something that nobody used, after some step."""
    cases = [(p, run, s) for p, run in _cached(runs) for s in run.steps if s.blocks.cached and s.blocks.in_use]
    if not cases:
        return None
    part, run, step = rng.choice(cases)
    return Draft(
        values={
            "part": _PART[part],
            "step": step.step,
            "total": step.blocks.total,
            "free": step.blocks.free,
            "in_use": step.blocks.in_use,
            "running": step.queues.running,
            "answer": step.blocks.cached,
        },
        runs=(run,),
        answer=step.blocks.cached,
        whole=True,
        traps={
            "all_that_is_not_used": step.blocks.cached + step.blocks.free if step.blocks.free else None,
            "all_that_is_not_free": step.blocks.total - step.blocks.free,
            "free_for_cached": step.blocks.free,
        },
    )


def who_next(runs: Runs, rng: random.Random) -> Draft | None:
    """Who was let in when several waited: by the cache's order somebody who came later."""
    if "aware" not in dict(_cached(runs)):
        return None
    run = runs["aware"]
    cases = _overtakings(run)
    if not cases:
        return None
    step, waiting, chosen = rng.choice(cases)
    found = found_tokens(run)
    last = waiting[-1]
    return Draft(
        values={
            "step": step,
            "waiting": ", ".join(waiting),
            "chosen": chosen,
            "found": found[chosen],
            "first": waiting[0],
            "last": last,
        },
        runs=(run,),
        options=("first_comes_first", *(("last_comes_first",) if last != chosen else ()), "nobody_enters"),
    )


def _overtakings(run: Run) -> list[tuple[int, list[str], str]]:
    """(step, who waited in order of arrival, who was let in) where exactly one was, and not the first."""
    waiting = [record.request_id for record in run.requests]
    found = []
    for step in run.steps:
        if len(step.admitted) == 1 and len(waiting) >= 3 and step.admitted[0] != waiting[0]:
            found.append((step.step, list(waiting), step.admitted[0]))
        waiting = [name for name in waiting if name not in step.admitted]
    return found


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"prefilled": prefilled, "hit_rate": hit_rate, "kept": kept, "who_next": who_next}
)
