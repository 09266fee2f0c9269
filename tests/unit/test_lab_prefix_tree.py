"""The tree rebuilt from block events is the one that the caches keep, after every step, for both kinds of cache."""

from __future__ import annotations

import random

import pytest

from engine.lab.prefix_tree import PrefixTree, tree_after, tree_sizes
from engine.lab.records import BlockEvent
from engine.lab.replay import BlockRuleError
from engine.scheduling.requests import Request
from tests.fakes import as_run, make_engine

BLOCK = 4


def engine_of(kind: str, seed: int, policy: str = "chunked", blocks: int = 24):
    """Requests whose prompts are paths through a small tree of token runs, on a pool too small for all of them."""
    rng = random.Random(seed)
    engine = make_engine(policy, BLOCK, requests=3, tokens=24, blocks=blocks, prefix=kind)
    for number in range(14):
        tokens = [1] * 6
        for depth in range(rng.randint(1, 3)):
            tokens += [10 * depth + rng.randint(2, 3)] * rng.choice((3, 4, 8))
        engine.add(Request(f"r{number}", [*tokens, number], rng.randint(1, 9), round(rng.random() / 4, 3)))
    return engine


@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize("policy", ["chunked", "paged", "cache_aware"])
def test_every_block_stands_where_the_cache_has_it(kind: str, policy: str) -> None:
    num_evicted = num_branches = 0
    for seed in range(3):
        engine = engine_of(kind, seed, policy)
        tree = PrefixTree(24, BLOCK)
        while engine.has_work:
            record = engine.step()
            if record is None:
                engine.executor.clock.advance(max(engine.next_arrival_s - engine.now_s(), 0) + 1e-9)
                continue
            for event in record.block_events:
                tree.apply(event)
                num_evicted += event.op == "evict"
            scheduler = engine.scheduler
            assert set(tree.before) == scheduler.pool.published
            for block, origin in tree.before.items():
                true_origin, _ = scheduler.prefix.content(block)
                assert origin == (true_origin if isinstance(true_origin, int) else None)
            nodes = tree.nodes()
            assert sorted(b for node in nodes for b in node.block_ids) == sorted(tree.before)
            for node in nodes:
                before = tree.before[node.block_ids[0]]
                assert before == (None if node.parent is None else nodes[node.parent].block_ids[-1])
                parent_end = (
                    0 if node.parent is None else nodes[node.parent].start + nodes[node.parent].num_blocks * BLOCK
                )
                assert node.start == parent_end
            num_branches = max(num_branches, len(nodes))
    assert num_evicted > 10 and num_branches > 4


def test_sizes_and_the_tree_after_some_steps_agree() -> None:
    engine = engine_of("radix", 1)
    records = []
    while engine.has_work:
        record = engine.step()
        if record is None:
            engine.executor.clock.advance(max(engine.next_arrival_s - engine.now_s(), 0) + 1e-9)
        else:
            records.append(record)
    sizes = list(tree_sizes(as_run(engine, records)))
    for index in range(0, len(records), 5):
        tree = tree_after(24, BLOCK, records[: index + 1])
        assert sizes[index] == (len(tree.before), len(tree.nodes()))


def test_events_that_cannot_be_are_refused() -> None:
    tree = PrefixTree(4, BLOCK)
    for op, block, name in (("alloc", 0, "a"), ("alloc", 1, "a")):
        tree.apply(BlockEvent(op=op, block_id=block, request_id=name))
    with pytest.raises(BlockRuleError, match="not published"):
        tree.apply(BlockEvent(op="publish", block_id=1, request_id="a"))
    tree = PrefixTree(4, BLOCK)
    for op, block in (("alloc", 0), ("alloc", 1), ("publish", 0), ("publish", 1), ("release", 1), ("release", 0)):
        tree.apply(BlockEvent(op=op, block_id=block, request_id="a"))
    with pytest.raises(BlockRuleError, match="others stand behind"):
        tree.apply(BlockEvent(op="evict", block_id=0))
