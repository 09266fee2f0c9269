"""Both prefix caches against a dictionary that does it the slow way, and the rules that each has to keep."""

import random

import pytest

from engine.scheduling.blocks import BlockPool
from engine.scheduling.prefix import PREFIX_CACHES, HashChain, NoPrefixCache, Radix
from engine.scheduling.requests import Request

KINDS = [HashChain, Radix]


class DictModel:
    """Every published prefix, spelled out in full, with its block. Knows the rules and no shortcut."""

    def __init__(self, block_size):
        self.size = block_size
        self.known = {}  # all tokens up to the end of a block -> block_id
        self.released = []  # cached blocks, the one released longest ago first

    def match(self, token_ids):
        hit = []
        for end in range(self.size, len(token_ids), self.size):  # never the last token
            if tuple(token_ids[:end]) not in self.known:
                break
            hit.append(self.known[tuple(token_ids[:end])])
        return hit

    def publish(self, request):
        for index in range(request.num_computed_tokens // self.size):
            prefix = tuple(request.token_ids[: (index + 1) * self.size])
            if self.known.setdefault(prefix, request.block_ids[index]) != request.block_ids[index]:
                return

    def follow(self, events, users):
        """Take note of evictions, checking that the block was the right one, and of who is cached now."""
        for op, block_id, _ in events:
            if op == "share" and block_id in self.released:
                self.released.remove(block_id)
            elif op == "release" and not users[block_id] and block_id in self.known.values():
                self.released.append(block_id)
            elif op == "evict":
                assert self.released.pop(0) == block_id, "the least recently used goes first"
                (prefix,) = [p for p, b in self.known.items() if b == block_id]
                del self.known[prefix]
                longer = [p for p in self.known if p[: len(prefix)] == prefix]
                assert not longer, "the end of a prefix goes before its beginning"


def random_tokens(rng, texts):
    text = rng.choice(texts)
    tokens = text[: rng.randint(1, len(text))]
    return tokens + [rng.randrange(3) for _ in range(rng.randint(0, 6))]


def act(rng, pool, cache, live, texts):
    """One random operation on the pool, as a scheduler could do it. Returns the request that has published, if any."""
    kind = rng.choice(["begin", "begin", "compute", "compute", "compute", "output", "end"])
    if kind == "begin" and len(live) < 4:
        request = Request(f"r{rng.random()}", random_tokens(rng, texts), 10**6)
        hit = cache.match(request.token_ids)
        if pool.blocks_for(request.num_tokens) - len(hit) > pool.num_available_beside(hit):
            return None
        pool.share(request, hit)
        request.begin_cached(len(hit), pool.block_size)
        pool.allocate(request, pool.blocks_for(request.num_tokens) - len(hit))
        live.append(request)
    elif kind == "compute" and live:
        request = rng.choice(live)
        request.num_computed_tokens += rng.randint(0, request.num_remaining_tokens)
        cache.publish(request)
        return request
    elif kind == "output" and live:
        request = rng.choice(live)
        if pool.blocks_for(request.num_tokens + 1) > len(request.block_ids):
            if not pool.num_available:
                return None
            pool.allocate(request, 1)
        request.token_ids.append(rng.randrange(3))
    elif kind == "end" and live:
        pool.release(live.pop(rng.randrange(len(live))))
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
@pytest.mark.parametrize("seed", range(5))
def test_random_operations_agree_with_a_dictionary(kind, block_size, seed):
    rng = random.Random(seed)
    pool = BlockPool(10, block_size)
    cache, model, live = kind(pool), DictModel(block_size), []
    texts = [[rng.randrange(3) for _ in range(4 * block_size)] for _ in range(3)]
    num_hits = num_evicted = 0
    for _ in range(600):
        computed = act(rng, pool, cache, live, texts)
        events = pool.take_events()
        model.follow(events, pool.num_users)
        if computed is not None:
            model.publish(computed)
        num_hits += sum(op == "share" for op, _, _ in events)
        num_evicted += sum(op == "evict" for op, _, _ in events)
        assert set(model.known.values()) == pool.published
        assert model.released == list(pool.cached)
        for tokens in [*(random_tokens(rng, texts) for _ in range(3)), *(r.token_ids for r in live)]:
            assert cache.match(tokens) == model.match(tokens)
    assert min(num_hits, num_evicted) > 20


def filled(pool, cache, name, tokens, num_computed=None):
    """A running request whose tokens are computed and published."""
    request = Request(name, tokens, 10)
    pool.allocate(request, pool.blocks_for(len(tokens)))
    request.num_computed_tokens = len(tokens) if num_computed is None else num_computed
    cache.publish(request)
    return request


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_is_found_block_by_block_and_never_the_last_token(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool)
    a = filled(pool, cache, "a", list(range(12)))
    assert cache.match(list(range(13))) == a.block_ids
    assert cache.match(list(range(12))) == a.block_ids[:2]  # the 12th token is left to compute
    assert cache.match(list(range(9))) == a.block_ids[:2]
    assert cache.match(list(range(8))) == cache.match(list(range(5))) == a.block_ids[:1]
    assert cache.match(list(range(4))) == cache.match([0]) == []
    assert cache.match([*range(4), 9, 9, 9, 9, *range(8, 12)]) == a.block_ids[:1]
    assert cache.match([*range(4, 12), 1]) == []  # the same tokens at another place are another prefix


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_is_not_full_and_committed_is_not_published(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool)
    a = filled(pool, cache, "a", list(range(12)), num_computed=7)  # in the middle of a chunked prefill
    assert (cache.match(list(range(13))), pool.published) == (a.block_ids[:1], {a.block_ids[0]})
    a.num_computed_tokens = 8
    cache.publish(a)
    assert cache.match(list(range(13))) == a.block_ids[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_already_stays_where_it_is_and_its_double_is_freed_with_its_request(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool)
    a = filled(pool, cache, "a", list(range(8)))
    b = filled(pool, cache, "b", [*range(4), 7, 7, 7, 7])  # computed beside a, so in blocks of its own
    assert cache.match([*range(4), 7, 7, 7, 7, 0]) == a.block_ids[:1]  # nothing is published behind another's block
    assert pool.published == set(a.block_ids)
    pool.release(b)
    pool.release(a)
    assert (pool.num_free, pool.num_cached) == (6, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_who_was_in_double_publishes_once_the_other_block_is_gone(kind):
    pool = BlockPool(4, 4)
    cache = kind(pool)
    a = filled(pool, cache, "a", list(range(4)))
    b = filled(pool, cache, "b", list(range(8)))
    pool.release(a)
    c = Request("c", [5] * 8, 1)
    pool.allocate(c, 2)  # evicts what a left
    cache.publish(b)
    assert cache.match(list(range(9))) == b.block_ids


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_part_within_a_run_of_blocks(kind):
    """In the radix tree this splits a run, twice, and leaves the upper part with several children."""
    pool = BlockPool(16, 2)
    cache = kind(pool)
    a = filled(pool, cache, "a", [1, 1, 2, 2, 3, 3, 4, 4])
    found = {"a": a}
    for name, tokens in (("b", [1, 1, 2, 2, 3, 3, 5, 5]), ("c", [1, 1, 6, 6]), ("d", [1, 1, 2, 2, 7, 7])):
        hit = cache.match([*tokens, 0])
        request = Request(name, tokens, 1)
        pool.share(request, hit)
        request.begin_cached(len(hit), 2)
        pool.allocate(request, len(tokens) // 2 - len(hit))
        request.num_computed_tokens = len(tokens)
        cache.publish(request)
        found[name] = request
    assert [len(set(a.block_ids) & set(r.block_ids)) for r in found.values()] == [4, 3, 1, 2]
    for request in found.values():
        assert cache.match([*request.token_ids, 0]) == request.block_ids
    for request in found.values():
        pool.release(request)
    rest = Request("rest", [9] * 32, 1)
    pool.allocate(rest, 16)  # everything is evicted, and every eviction is the end of a leaf
    assert pool.published == set() and cache.match([1, 1, 2, 2, 3]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_eviction_takes_the_least_recently_used_and_the_end_of_a_prefix_first(kind):
    pool = BlockPool(6, 4)
    cache = kind(pool)
    old, new = filled(pool, cache, "old", list(range(8))), filled(pool, cache, "new", list(range(50, 58)))
    (o0, o1), (n0, n1) = old.block_ids, new.block_ids
    pool.release(old)
    pool.release(new)
    again = Request("again", [*range(8), 9], 1)
    pool.share(again, cache.match(again.token_ids))
    pool.release(again)  # used again: now younger than new
    pool.take_events()
    pool.allocate(Request("all", [0] * 24, 1), 6)
    assert [block_id for op, block_id, _ in pool.take_events() if op == "evict"] == [n1, n0, o1, o0]


@pytest.mark.parametrize("hash_block", [lambda before, tokens: 0, lambda before, tokens: sum(tokens) % 2])
def test_a_collision_costs_a_miss_and_is_never_believed(hash_block):
    pool = BlockPool(8, 4)
    cache = HashChain(pool, hash_block=hash_block)
    a = filled(pool, cache, "a", [1, 2, 3, 4, 1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4, 0]) == a.block_ids[:1]
    assert cache.match([2, 1, 3, 4, 0]) == []  # another prompt with the same hash
    assert cache.match([1, 2, 3, 4] * 3) == a.block_ids[:1]  # the same tokens further on stand behind another block
    pool.release(a)
    b = filled(pool, cache, "b", [2, 1, 3, 4])
    assert cache.match([2, 1, 3, 4, 0]) == [] and b.num_published_blocks == 0
    pool.allocate(Request("all", [0] * 28, 1), 7)
    cache.publish(b)  # the key is free now
    assert cache.match([2, 1, 3, 4, 0]) == b.block_ids


@pytest.mark.parametrize("kind", KINDS)
def test_one_namespace_never_finds_anothers_blocks(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool, "smollm2-135m, float32")
    a = filled(pool, cache, "a", list(range(8)))
    cache.namespace = "smollm2-135m, int8"  # the cache now holds keys and values of another kind
    assert cache.match(list(range(9))) == []
    b = filled(pool, cache, "b", list(range(8)))
    assert cache.match(list(range(9))) == b.block_ids
    cache.namespace = "smollm2-135m, float32"
    assert cache.match(list(range(9))) == a.block_ids
    assert [cache.content(block_id)[0] for block_id in (a.block_ids[0], b.block_ids[0])] == [
        "smollm2-135m, float32",
        "smollm2-135m, int8",
    ]


def test_namespaces_are_kept_apart_even_if_every_hash_is_the_same():
    pool = BlockPool(8, 4)
    cache = HashChain(pool, "one", hash_block=lambda before, tokens: 0)
    filled(pool, cache, "a", list(range(4)))
    cache.namespace = "other"
    assert cache.match(list(range(5))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_matching_changes_nothing(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool)
    filled(pool, cache, "a", list(range(12)))
    before = repr(vars(cache)), repr(vars(pool))
    for tokens in (list(range(13)), [*range(6), 0, 0, 0], [7], list(range(30))):
        cache.match(tokens)
    assert before == (repr(vars(cache)), repr(vars(pool)))


@pytest.mark.parametrize("kind", KINDS)
def test_evicting_what_others_stand_behind_is_a_bug_in_a_tree(kind):
    pool = BlockPool(8, 4)
    cache = kind(pool)
    a = filled(pool, cache, "a", list(range(8)))
    pool.release(a)
    first = next(iter(reversed(pool.cached)))
    if kind is Radix:
        with pytest.raises(AssertionError, match="not the end of a leaf"):
            pool.evict(first)
    else:  # a chain has no links forward: what stood behind it is just not found any more
        pool.evict(first)
        assert cache.match(list(range(9))) == []


def test_no_prefix_cache_finds_and_publishes_nothing():
    pool = BlockPool(8, 4)
    cache = PREFIX_CACHES["none"](pool)
    filled(pool, cache, "a", list(range(8)))
    assert isinstance(cache, NoPrefixCache)
    assert (cache.match(list(range(9))), pool.published) == ([], set())
