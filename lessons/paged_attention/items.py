"""Questions about the learner's own three runs of one pool. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.kv_use import kv_of_request
from engine.lab.records import Run, StepRecord
from engine.lab.replay import BlockMap
from engine.lab.steps import computed_ends
from lessons.generated import Draft, Generator
from lessons.paged_attention.facts import limit_of, losses
from lessons.text import Fact

Runs = Mapping[str, Run]
MOST_SHOWN = 8  # blocks of a table that still read well in a sentence


def _run(runs: Runs, part: str) -> Run | None:
    """The run of a part, if it is there and every request in it has finished."""
    run = runs.get(part)
    if (
        run is None
        or not run.requests
        or any(r.completion_s is None or r.finish_reason == "abort" for r in run.requests)
    ):
        return None
    return run


# ------------------------------------------------------------------ reserving
def reserved_blocks(runs: Runs, rng: random.Random) -> Draft | None:
    """How many blocks a request was given at the door when they are reserved."""
    run = _run(runs, "orca")
    if run is None:
        return None
    record, size, limit = rng.choice(run.requests), run.header.block_size, limit_of(run)
    total = record.num_prompt_tokens + limit
    answer = -(-total // size)
    filled = record.num_prompt_tokens + record.num_output_tokens - 1
    return Draft(
        values={
            "request": record.request_id,
            "prompt": record.num_prompt_tokens,
            "limit": limit,
            "block_size": size,
            "total": total,
            "answer": answer,
        },
        runs=(run,),
        answer=answer,
        whole=True,
        traps={
            "prompt_only": -(-record.num_prompt_tokens // size),
            "rounded_down": total // size,
            "as_if_length_were_known": -(-filled // size),
            "limit_without_prompt": -(-limit // size),
        },
    )


def never_used(runs: Runs, rng: random.Random) -> Draft | None:
    """How many positions of a request's blocks held nothing to the end, reserved or on demand."""
    part = rng.choice(("orca", "paged"))
    run = _run(runs, part)
    if run is None:
        return None
    record = rng.choice(run.requests)
    use, size = kv_of_request(run, record.request_id)[-1], run.header.block_size
    answer = use.num_blocks * size - use.num_tokens
    return Draft(
        values={
            "side": _SIDE[part],
            "request": record.request_id,
            "prompt": record.num_prompt_tokens,
            "output": record.num_output_tokens,
            "limit": limit_of(run),
            "block_size": size,
            "blocks": use.num_blocks,
            "slots": use.num_blocks * size,
            "filled": use.num_tokens,
            "answer": answer,
        },
        runs=(run,),
        answer=answer,
        whole=True,
        traps={
            "last_token_is_cached": answer - 1 if answer else None,
            "prompt_takes_no_place": use.num_blocks * size - record.num_output_tokens,
            "filled_for_empty": use.num_tokens,
        },
    )


_SIDE: Mapping[str, Fact] = MappingProxyType(
    {
        "orca": {"en": "With blocks reserved", "zh": "预留的那次"},
        "paged": {"en": "With blocks on demand", "zh": "按需的那次"},
    }
)


# ------------------------------------------------------------------ the block table
def where_is(runs: Runs, rng: random.Random) -> Draft | None:
    """In which block a position of a request lies, by its table after some step."""
    part = rng.choice(("paged", "shared"))
    run = _run(runs, part)
    if run is None:
        return None
    size = run.header.block_size
    cases = [
        (step.step, name, table, length)
        for step, tables, computed in _tables(run)
        for name, table in tables.items()
        if 2 <= len(table) <= MOST_SHOWN and (length := computed.get(name, 0)) > size
    ]
    if not cases:
        return None
    step, name, table, length = rng.choice(cases)
    position = rng.randrange(size, length)
    index = position // size
    return Draft(
        values={
            "request": name,
            "step": step,
            "part": {"en": "the third run", "zh": "第三次运行"}
            if part == "shared"
            else {"en": "the run on demand", "zh": "按需的那次运行"},
            "table": ", ".join(map(str, table)),
            "block_size": size,
            "position": position,
            "index": index,
            "slot": position % size,
            "answer": table[index],
        },
        runs=(run,),
        answer=table[index],
        whole=True,
        traps={
            "table_not_looked_up": index,
            "counted_from_one": table[index - 1],
            "blocks_in_a_row": table[0] + index,
            "first_block": table[0],
        },
    )


def _tables(run: Run) -> list[tuple[StepRecord, dict[str, tuple[int, ...]], dict[str, int]]]:
    """The tables after each step, and how many positions of each request are computed by then."""
    blocks, computed = BlockMap(run.header.num_blocks), {}
    found = []
    for step in run.steps:
        computed |= dict.fromkeys(step.preempted, 0)
        computed |= computed_ends(step)
        for event in step.block_events:
            blocks.apply(event)
        found.append((step, {name: tuple(table) for name, table in blocks.tables.items()}, dict(computed)))
    return found


# ------------------------------------------------------------------ preemption
def lost(runs: Runs, rng: random.Random) -> Draft | None:
    """How many positions a preemption threw away."""
    cases = [(run, loss) for part in ("paged", "shared") if (run := _run(runs, part)) for loss in losses(run)]
    if not cases:
        return None
    run, loss = rng.choice(cases)
    record = next(r for r in run.requests if r.request_id == loss.request_id)
    before = [s for s in run.steps if s.step < loss.step]
    said = sum(o.request_id == loss.request_id and o.token_id is not None for s in before for o in s.outputs)
    return Draft(
        values={
            "request": loss.request_id,
            "step": loss.step,
            "prompt": record.num_prompt_tokens,
            "said": said,
            "answer": loss.num_positions,
        },
        runs=(run,),
        answer=loss.num_positions,
        whole=True,
        traps={
            "answer_kept": record.num_prompt_tokens if said > 1 else None,
            "prompt_kept": said,
            "newest_token_was_computed": record.num_prompt_tokens + said if said else None,
            "text_lost": record.num_prompt_tokens + record.num_output_tokens,
        },
    )


def victim(runs: Runs, rng: random.Random) -> Draft | None:
    """Who is preempted when a block is missing: a choice among those who run, in the order of their admission."""
    cases = [(run, case) for part in ("paged", "shared") if (run := _run(runs, part)) for case in _crises(run)]
    if not cases:
        return None
    run, (step, running, hit) = rng.choice(cases)
    computed = {name: length for s in run.steps if s.step < step for name, length in computed_ends(s).items()}
    longest = max(running, key=lambda name: computed.get(name, 0))
    middle = running[len(running) // 2]
    return Draft(
        values={
            "step": step,
            "running": ", ".join(running),
            "victim": hit,
            "oldest": running[0],
            "longest": longest,
            "middle": middle,
        },
        runs=(run,),
        options=(
            "oldest_goes",
            *(("longest_goes",) if longest not in (hit, running[0]) else ()),
            *(("middle_goes",) if middle not in (hit, running[0], longest) else ()),
            "nobody_goes",
        ),
    )


def _crises(run: Run) -> list[tuple[int, list[str], str]]:
    """(step, running requests oldest first, the one preempted) of each step that preempted exactly one."""
    running: list[str] = []
    found = []
    for step in run.steps:
        if len(step.preempted) == 1 and len(running) >= 3:
            found.append((step.step, list(running), step.preempted[0]))
        running = [name for name in running if name not in step.preempted]
        running += step.admitted
        ended = {o.request_id for o in step.outputs if o.finish_reason}
        running = [name for name in running if name not in ended]
    return found


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "reserved_blocks": reserved_blocks,
        "never_used": never_used,
        "where_is": where_is,
        "lost": lost,
        "victim": victim,
    }
)
