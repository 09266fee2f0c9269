"""KV memory over a Run, from the block pool's own events: what was reserved, and how much of it held a token.

It decides only how blocks and positions become bytes; it never counts positions by a closed formula (pages put that
beside it). A block that several requests share counts once. Invariant: filled <= reserved, and the difference is what
paging leaves empty in last blocks (or what static batching reserved in advance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.records import Run
from engine.lab.replay import BlockMap
from engine.lab.steps import computed_ends
from engine.lab.work import element_sizes, kv_bytes_per_token


@dataclass(frozen=True)
class KvUse:
    """KV memory after a step (of the pool), or in a step at its fullest (of one request)."""

    step: int
    t_s: float  # the end of the step
    num_blocks: int
    num_tokens: int  # positions that hold a computed token
    reserved_bytes: int
    filled_bytes: int


def kv_after_steps(run: Run) -> tuple[KvUse, ...]:
    """Blocks in use after each step, all requests together. Pure. Raises: BlockRuleError if the events contradict."""
    token_bytes = _token_bytes(run)
    size = run.header.block_size
    blocks = BlockMap(run.header.num_blocks)
    computed: dict[str, int] = {}
    found = []
    for step in run.steps:
        computed |= computed_ends(step)
        for event in step.block_events:
            blocks.apply(event)
        for request_id in step.preempted:
            if request_id not in {row.request_id for row in step.scheduled}:
                computed[request_id] = 0
        filled = _filled(blocks, computed, size)
        found.append(_use(step.step, step.t_end_s, len(blocks.users), filled, size, token_bytes))
    return tuple(found)


def _filled(blocks: BlockMap, computed: Mapping[str, int], size: int) -> int:
    """Positions that hold a token now, those of a shared block once. Pure.

    While nothing is shared the requests' own positions simply add up, which is most of the time and much quicker.
    """
    if sum(map(len, blocks.tables.values())) == len(blocks.users):
        return sum(min(computed.get(name, 0), len(table) * size) for name, table in blocks.tables.items())
    held: dict[int, int] = {}
    for name, table in blocks.tables.items():
        for index, block_id in enumerate(table):
            here = min(max(computed.get(name, 0) - index * size, 0), size)
            held[block_id] = max(held.get(block_id, 0), here)
    return sum(held.values())


def kv_of_request(run: Run, request_id: str) -> tuple[KvUse, ...]:
    """What one request held in each step that computed for it, before it gave anything back. Pure.

    The last token a request makes is never stored, so n output tokens after a prompt of p leave p + n − 1 positions.
    """
    token_bytes = _token_bytes(run)
    size = run.header.block_size
    held: int = 0
    found = []
    for step in run.steps:
        most = held
        for event in step.block_events:
            if event.request_id == request_id and event.op in ("alloc", "share", "release"):
                held += -1 if event.op == "release" else 1
                most = held if held == 1 and event.op != "release" else max(most, held)
        tokens = computed_ends(step).get(request_id)
        if tokens is not None:
            found.append(_use(step.step, step.t_end_s, most, tokens, size, token_bytes))
    return tuple(found)


def _token_bytes(run: Run) -> float:
    return kv_bytes_per_token(run.header.model, element_sizes(run.header)[1])


def _use(step: int, t_s: float, blocks: int, tokens: int, size: int, token_bytes: float) -> KvUse:
    return KvUse(step, t_s, blocks, tokens, round(blocks * size * token_bytes), round(tokens * token_bytes))
