"""The block map: each event moves a block as designed; a forbidden move is refused by name and changes nothing."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.lab.records import BlockEvent, Blocks
from engine.lab.replay import BlockMap, BlockRuleError

OPS = ["alloc", "share", "publish", "evict", "release"]


def play(total: int, *events: tuple[str, int, str | None]) -> BlockMap:
    blocks = BlockMap(total)
    for op, block_id, request_id in events:
        blocks.apply(BlockEvent(op=op, block_id=block_id, request_id=request_id))
    return blocks


LIFE = [
    (("alloc", 1, "a"), (3, 0, 1)),
    (("publish", 1, "a"), (3, 0, 1)),
    (("share", 1, "b"), (3, 0, 1)),
    (("release", 1, "a"), (3, 0, 1)),
    (("release", 1, "b"), (3, 1, 0)),
    (("share", 1, "c"), (3, 0, 1)),
    (("release", 1, "c"), (3, 1, 0)),
    (("evict", 1, None), (4, 0, 0)),
    (("alloc", 1, "d"), (3, 0, 1)),
    (("release", 1, "d"), (4, 0, 0)),
]


@pytest.mark.parametrize("num_events", range(1, len(LIFE) + 1))
def test_the_life_of_a_block(num_events: int) -> None:
    blocks = play(4, *[event for event, _ in LIFE[:num_events]])
    free, cached, in_use = LIFE[num_events - 1][1]
    assert blocks.counts() == Blocks(total=4, free=free, cached=cached, in_use=in_use)


def test_a_table_keeps_the_order_of_positions() -> None:
    blocks = play(4, ("alloc", 2, "a"), ("alloc", 0, "a"), ("alloc", 3, "b"), ("alloc", 1, "a"), ("release", 0, "a"))
    assert blocks.tables == {"a": [2, 1], "b": [3]}


@pytest.mark.parametrize(
    ("invariant", "events"),
    [
        ("alloc_free", [("alloc", 0, "a"), ("alloc", 0, "b")]),
        ("alloc_free", [("alloc", 0, "a"), ("publish", 0, "a"), ("release", 0, "a"), ("alloc", 0, "b")]),
        ("share_published", [("alloc", 0, "a"), ("share", 0, "b")]),
        ("share_published", [("alloc", 0, "a"), ("publish", 0, "a"), ("share", 0, "a")]),
        ("publish_known", [("publish", 0, "a")]),
        ("publish_known", [("alloc", 0, "a"), ("publish", 0, "b")]),
        ("publish_known", [("alloc", 0, "a"), ("publish", 0, "a"), ("publish", 0, "a")]),
        ("release_user", [("release", 0, "a")]),
        ("release_user", [("alloc", 0, "a"), ("release", 0, "b")]),
        ("release_user", [("alloc", 0, "a"), ("release", 0, "a"), ("release", 0, "a")]),
        ("evict_unused", [("alloc", 0, "a"), ("publish", 0, "a"), ("evict", 0, None)]),
        ("evict_unused", [("evict", 0, None)]),
        ("block_id", [("alloc", 4, "a")]),
        ("block_id", [("alloc", -1, "a")]),
        ("block_user", [("alloc", 0, None)]),
    ],
)
def test_a_forbidden_event_is_refused_by_name(invariant: str, events: list) -> None:
    blocks = play(4, *events[:-1])
    before = copy.deepcopy(blocks)
    op, block_id, request_id = events[-1]
    with pytest.raises(BlockRuleError, match=rf"block {block_id}") as caught:
        blocks.apply(BlockEvent(op=op, block_id=block_id, request_id=request_id))
    assert caught.value.invariant == invariant
    assert blocks == before


@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(-1, 3), st.sampled_from(["a", "b", None]))))
def test_any_order_of_events_keeps_the_map_whole(events: list) -> None:
    blocks = BlockMap(3)
    for op, block_id, request_id in events:
        try:
            blocks.apply(BlockEvent(op=op, block_id=block_id, request_id=request_id))
        except BlockRuleError:
            continue
        counts = blocks.counts()
        assert min(counts.free, counts.cached, counts.in_use) >= 0
        assert counts.free + counts.cached + counts.in_use == 3
        listed = sorted((b, r) for r, table in blocks.tables.items() for b in table)
        assert listed == sorted((b, r) for b, users in blocks.users.items() for r in users)
