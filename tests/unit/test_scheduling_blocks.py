"""The block pool: what each operation does to a block, and that a replay of the events gives the same state."""

import random

import pytest

from engine.lab.records import BlockEvent
from engine.lab.replay import BlockMap
from engine.scheduling.blocks import BlockPool
from tests.fakes import make_request


def counts(pool):
    return pool.num_free, pool.num_cached, pool.num_in_use


def published_pool(num_blocks=3):
    """A pool of blocks of 4 whose first two blocks hold the computed, published prompt of request a."""
    pool, a = BlockPool(num_blocks, 4), make_request("a", num_prompt_tokens=8)
    pool.allocate(a, 2)
    a.num_computed_tokens = 8
    for index in range(2):
        pool.publish(a, index)
    return pool, a


def test_allocate_takes_free_blocks_in_order():
    pool, a, b = BlockPool(4, 16), make_request("a"), make_request("b")
    pool.allocate(a, 2)
    pool.allocate(b, 1)
    assert (a.block_ids, b.block_ids, counts(pool)) == ([0, 1], [2], (1, 0, 3))
    assert pool.take_events() == [("alloc", 0, "a"), ("alloc", 1, "a"), ("alloc", 2, "b")]
    assert pool.take_events() == [] and not pool.has_events


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens, blocks):
    assert BlockPool(4, 16).blocks_for(tokens) == blocks


def test_allocating_more_than_there_is_takes_nothing():
    pool, a = BlockPool(2, 4), make_request("a")
    with pytest.raises(AssertionError, match="3 blocks asked, 2 available"):
        pool.allocate(a, 3)
    assert (a.block_ids, counts(pool), pool.has_events) == ([], (2, 0, 0), False)


def test_release_frees_tail_first_and_repeating_it_does_nothing():
    pool, a = BlockPool(3, 4), make_request("a")
    pool.allocate(a, 2)
    pool.take_events()
    pool.release(a)
    pool.release(a)
    assert pool.take_events() == [("release", 1, "a"), ("release", 0, "a")]
    assert (a.block_ids, counts(pool)) == ([], (3, 0, 0))


def test_releasing_a_block_without_users_is_a_bug():
    pool, a = BlockPool(3, 4), make_request("a")
    a.block_ids = [1]
    with pytest.raises(AssertionError, match="released more often than used"):
        pool.release(a)


def test_a_published_block_outlives_its_user_as_cached():
    pool, a = published_pool()
    pool.release(a)
    assert counts(pool) == (1, 2, 0)


def test_a_shared_block_is_in_use_until_its_last_user_leaves():
    pool, a = published_pool()
    b, c = make_request("b"), make_request("c")
    pool.share(b, [0])
    assert (b.block_ids, pool.num_users[0], counts(pool)) == ([0], 2, (1, 0, 2))
    pool.release(a)
    assert counts(pool) == (1, 1, 1)  # block 1 is cached, block 0 still has b
    pool.share(c, [1])
    assert counts(pool) == (1, 0, 2)  # a hit on a cached block brings it back into use
    pool.release(b)
    pool.release(c)
    assert counts(pool) == (1, 2, 0)


def test_allocate_evicts_cached_blocks_when_none_is_free_least_recently_used_first():
    pool, a = published_pool()
    pool.release(a)  # the tail goes first: block 1 is older in the cache than block 0
    b, evicted = make_request("b"), []
    pool.on_evict = evicted.append
    pool.take_events()
    pool.allocate(b, 2)
    assert evicted == [1]
    assert pool.take_events() == [("alloc", 2, "b"), ("evict", 1, None), ("alloc", 1, "b")]
    assert (counts(pool), pool.published) == ((0, 1, 2), {0})


def test_a_cached_block_counts_as_available_until_it_is_shared():
    pool, a = published_pool()
    b = make_request("b")
    pool.share(b, [0])
    pool.release(a)  # block 0 has b, block 1 is cached, block 2 is free
    assert [pool.num_available_beside(blocks) for blocks in ([], [0], [0, 1])] == [2, 2, 1]


def test_only_a_full_computed_block_is_published_and_once():
    pool, a = BlockPool(3, 4), make_request("a", num_prompt_tokens=8)
    pool.allocate(a, 2)
    a.num_computed_tokens = 7
    pool.publish(a, 0)
    with pytest.raises(AssertionError, match="not full yet"):
        pool.publish(a, 1)
    with pytest.raises(AssertionError, match="published already"):
        pool.publish(a, 0)


def test_only_published_blocks_are_shared_and_only_cached_ones_evicted():
    pool, a = BlockPool(3, 4), make_request("a")
    pool.allocate(a, 1)
    with pytest.raises(AssertionError, match="not published"):
        pool.share(make_request("b"), [0])
    for block_id in (0, 2):
        with pytest.raises(AssertionError, match="not cached"):
            pool.evict(block_id)


@pytest.mark.parametrize("seed", range(20))
def test_replaying_the_events_gives_the_state(seed):
    rng = random.Random(seed)
    pool, blocks = BlockPool(8, 2), BlockMap(8)
    requests = {name: make_request(name, num_prompt_tokens=64) for name in "abcd"}
    for request in requests.values():
        request.num_computed_tokens = 64
    for _ in range(200):
        request = rng.choice(list(requests.values()))
        act = rng.choice(["allocate", "share", "publish", "evict", "release"])
        if act == "allocate" and pool.num_available:
            pool.allocate(request, rng.randint(1, pool.num_available))
        elif act == "share":
            pool.share(request, [b for b in sorted(pool.published) if b not in request.block_ids][:2])
        elif act == "publish":
            for index in [i for i, b in enumerate(request.block_ids) if b not in pool.published][:2]:
                pool.publish(request, index)
        elif act == "evict" and pool.cached:
            pool.evict(rng.choice(list(pool.cached)))
        elif act == "release":
            pool.release(request)
        for op, block_id, request_id in pool.take_events():
            blocks.apply(BlockEvent(op=op, block_id=block_id, request_id=request_id))
        state = blocks.counts()
        assert (state.free, state.cached, state.in_use) == counts(pool)
        assert blocks.tables == {name: r.block_ids for name, r in requests.items() if r.block_ids}
        assert blocks.published == pool.published
