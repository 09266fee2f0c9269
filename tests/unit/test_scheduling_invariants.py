"""Does the invariant check bite? A healthy engine passes; each corruption of it, by hand, is caught by its own rule."""

from dataclasses import replace

import pytest

from engine.lab.records import BlockEvent, Output
from engine.scheduling.invariants import InvariantError, StepChecker, check_empty, check_invariants
from engine.scheduling.requests import Status
from tests.fakes import checked_step, drain, make_engine, make_request


def busy_engine():
    """An engine in mid-run: a decodes, b is in its prompt, c waits, d is to come, and z has left a cached block.

    Four of the eight blocks are in use, three free. The last record and its checker come with it.
    """
    engine = make_engine(requests=2, tokens=6, blocks=8, prefix="hash")
    checker = StepChecker(engine)
    for name, prompt, arrival_s in (("z", 4, 0.0), ("a", 6, 0.05), ("b", 9, 0.06), ("c", 3, 0.06), ("d", 3, 9.0)):
        engine.add(make_request(name, prompt, max_tokens=1 if name == "z" else 6, arrival_s=arrival_s))
    record = None
    while record is None or "b" not in {row.request_id for row in record.scheduled}:
        record = checked_step(engine, checker)
    return engine, checker, record


def of(scheduler, name):
    return scheduler.requests[name]


def test_the_engine_to_be_corrupted_is_healthy_and_busy():
    engine, checker, record = busy_engine()
    scheduler = engine.scheduler
    check_invariants(scheduler)
    assert [of(scheduler, n).status.value for n in "zabcd"] == ["finished", "running", "running", "waiting", "waiting"]
    assert (of(scheduler, "a").phase, of(scheduler, "b").phase) == ("decode", "prefill")
    assert (scheduler.pool.num_cached, scheduler.pool.num_in_use) == (1, 4)
    assert scheduler.future and record.refused
    drain(engine, checker)


def move_free_to(s, block_id):
    s.pool.free.pop()
    s.pool.free.append(block_id)


def set_first_scheduled(s):
    of(s, "a").first_scheduled_s = of(s, "a").first_token_s = 0.07
    of(s, "b").first_scheduled_s = 0.06


STATE = {
    "a free block is lost": ("I1", lambda s: s.pool.free.pop()),
    "a cached block is lost": ("I1", lambda s: s.pool.cached.clear()),
    "a block in use is free, too": ("I1", lambda s: s.pool.free.append(of(s, "a").block_ids[0])),
    "a free block stands twice, another nowhere": ("I2", lambda s: move_free_to(s, s.pool.free[0])),
    "a block in use is free instead of another": ("I2", lambda s: move_free_to(s, of(s, "a").block_ids[0])),
    "a cached block is not published": ("I2", lambda s: s.pool.published.clear()),
    "a free block is published": ("I2", lambda s: s.pool.published.add(s.pool.free[0])),
    "a block has a user too many": ("I3", lambda s: s.pool.num_users.__setitem__(of(s, "a").block_ids[0], 2)),
    "a table has lost a block": ("I3", lambda s: of(s, "a").block_ids.pop()),
    "a table has a block twice": ("I4", lambda s: of(s, "a").block_ids.append(of(s, "a").block_ids[0])),
    "a table has a free block": ("I4", lambda s: of(s, "a").block_ids.append(s.pool.free[0])),
    "a table has a cached block as its own": ("I4", lambda s: of(s, "a").block_ids.append(next(iter(s.pool.cached)))),
    "a block is published before it is full": ("I5", lambda s: s.pool.published.add(of(s, "a").block_ids[-1])),
    "two tables hold a block that is not published": (
        "I6",
        lambda s: (
            of(s, "b").block_ids.append(of(s, "a").block_ids[1]),
            s.pool.num_users.__setitem__(of(s, "a").block_ids[1], 2),
        ),
    ),
    "more is computed than there is": ("I8", lambda s: setattr(of(s, "a"), "num_computed_tokens", 99)),
    "nothing is left to compute": ("I8", lambda s: setattr(of(s, "a"), "num_computed_tokens", of(s, "a").num_tokens)),
    "more is cached than computed": ("I8", lambda s: setattr(of(s, "b"), "num_cached_tokens", 8)),
    "a counter is negative": ("I8", lambda s: setattr(of(s, "c"), "num_computed_tokens", -1)),
    "an output is too long": ("I8", lambda s: of(s, "a").token_ids.extend([1] * 9)),
    "the blocks do not cover what is computed": (
        "I8",
        lambda s: (of(s, "b").token_ids.extend([1] * 4), setattr(of(s, "b"), "num_computed_tokens", 12)),
    ),
    "a request holds more blocks than it can use": ("I8", lambda s: s.pool.allocate(of(s, "a"), 3)),
    "too many run": ("I9", lambda s: setattr(s, "limits", s.limits.model_copy(update={"max_requests": 1}))),
    "a later arrival was first": ("I12", set_first_scheduled),
    "an earlier arrival is passed over": ("I12", lambda s: setattr(of(s, "d"), "arrival_s", 0.055)),
    "the running queue is out of order": ("I12", lambda s: s.policy.running.reverse()),
    "the waiting queue is out of order": (
        "I12",
        lambda s: s.policy.waiting.append(s.future.pop()[2]) or s.policy.waiting.rotate(),
    ),
    "a block was released too often": (
        "I16",
        lambda s: s.pool.num_users.__setitem__(s.pool.free[0], -1),
    ),
    "a token came before its request": ("I19", lambda s: setattr(of(s, "z"), "first_token_s", -1.0)),
    "a running request has completed": ("I19", lambda s: setattr(of(s, "a"), "completion_s", 1e9)),
    "a finished request has not completed": ("I19", lambda s: setattr(of(s, "z"), "completion_s", None)),
    "a first token has no time": ("I19", lambda s: setattr(of(s, "a"), "first_token_s", None)),
    "a waiting request is in no queue": ("queues", lambda s: s.policy.waiting.clear()),
    "a future request is in no queue": ("queues", lambda s: s.future.clear()),
    "a request is in two queues": ("queues", lambda s: s.policy.waiting.append(of(s, "a"))),
    "a finished request still runs": ("queues", lambda s: setattr(of(s, "b"), "status", Status.FINISHED)),
    "a running request thinks it waits": ("queues", lambda s: setattr(of(s, "a"), "status", Status.WAITING)),
    "a waiting request thinks it runs": ("queues", lambda s: setattr(of(s, "c"), "status", Status.RUNNING)),
    "a waiting request holds blocks": ("queues", lambda s: s.pool.allocate(of(s, "c"), 1)),
}


@pytest.mark.parametrize("corruption", STATE)
def test_a_corrupted_state_is_caught(corruption):
    invariant, corrupt = STATE[corruption]
    engine, _, _ = busy_engine()
    corrupt(engine.scheduler)
    with pytest.raises(InvariantError) as error:
        check_invariants(engine.scheduler)
    assert error.value.invariant == invariant


def event(op, block_id, name):
    return BlockEvent(op=op, block_id=block_id, request_id=name)


def alloc_of(record):
    """The last block a step allocated, which stays in its request's table and is not yet full."""
    return [e for e in record.block_events if e.op == "alloc"][-1]


RECORD = {
    "a step is over its budget": ("I9", lambda r: setattr(r.scheduled[0], "num_tokens", 7)),
    "a step has more rows than requests may run": ("I9", lambda r: r.scheduled.extend(r.scheduled)),
    "a request is scheduled without a token": ("I9", lambda r: setattr(r.scheduled[0], "num_tokens", 0)),
    "requests run and nothing is scheduled": ("I9", lambda r: r.scheduled.clear()),
    "a waiting request has no reason": ("refused", lambda r: r.refused.clear()),
    "a partial chunk samples": ("I10", lambda r: r.outputs.append(Output(request_id="b", token_id=1))),
    "a last chunk does not sample": ("I10", lambda r: r.outputs.clear()),
    "a last chunk samples twice": ("I10", lambda r: r.outputs.append(r.outputs[0])),
    "a block is released by who does not use it": ("I16", lambda r: r.block_events.append(event("release", 7, "a"))),
    "a block is released twice": (
        "I16",
        lambda r: r.block_events.extend([event("release", r.block_events[0].block_id, "b")] * 2),
    ),
    "an event is not recorded": ("I17", lambda r: r.block_events.pop()),
    "an event is recorded for another request": ("I17", lambda r: setattr(alloc_of(r), "request_id", "a")),
    "the counts are not those of the events": ("I17", lambda r: setattr(r.blocks, "free", r.blocks.free + 1)),
}


@pytest.mark.parametrize("corruption", RECORD)
def test_a_record_that_does_not_fit_the_state_is_caught(corruption):
    invariant, corrupt = RECORD[corruption]
    engine, checker, record = busy_engine()
    record = None
    while record is None or not record.block_events:  # the next step that allocates
        record = engine.step()
        if not record.block_events:
            checker.check(record)
    if invariant == "refused":
        assert record.refused
    corrupt(record)
    with pytest.raises(InvariantError) as error:
        checker.check(record)
    assert error.value.invariant == invariant


def test_an_event_the_pool_did_not_record_is_caught():
    engine, checker, _ = busy_engine()
    engine.scheduler.pool.published.add(engine.scheduler.pool.free[0])  # the one to be allocated last
    with pytest.raises(InvariantError) as error:
        checker.check(engine.step())
    assert error.value.invariant == "I17"


# ---- I7: what a prefix cache says ----------------------------------------------------------------------------------


def cached_engine(prefix):
    """An engine whose request a (10 tokens, blocks of 4) runs with two published blocks and a third in the making."""
    engine = make_engine(blocks=8, prefix=prefix)
    engine.add(make_request("a", 10, max_tokens=6))
    engine.step()
    assert (engine.scheduler.requests["a"].num_published_blocks, len(engine.scheduler.pool.published)) == (2, 2)
    check_invariants(engine.scheduler)
    return engine


def change_tokens(s, block_id):
    """The cache believes that the block holds other tokens, wherever it keeps them."""
    if s.limits.prefix_cache == "hash":
        entry = s.prefix._by_block[block_id]
        s.prefix._by_block[block_id] = s.prefix._by_key[entry.key] = replace(entry, tokens=(0,) * 4)
    else:
        node = s.prefix._nodes[block_id]
        node.tokens[node.block_ids.index(block_id)] = (0,) * 4


def move_behind(s, block_id, other):
    """The cache believes that the block stands behind another one."""
    if s.limits.prefix_cache == "hash":
        entry = s.prefix._by_block[block_id]
        s.prefix._by_block[block_id] = s.prefix._by_key[entry.key] = replace(entry, origin=other)
    else:
        node = s.prefix._nodes[block_id]
        node.block_ids[node.block_ids.index(block_id) - 1] = other


def hide(s, block_id):
    """The cache has the block and does not find it."""
    if s.limits.prefix_cache == "hash":
        s.prefix._by_key[s.prefix._by_block[block_id].key] = None
    else:
        node = s.prefix._nodes[block_id]
        node.parent.children[node.tokens[0]] = None


PREFIX = {
    "the second block's tokens are others": lambda s, a: change_tokens(s, a.block_ids[1]),
    "the second block stands behind a third": lambda s, a: move_behind(s, a.block_ids[1], a.block_ids[2]),
    "the first block is not found": lambda s, a: hide(s, a.block_ids[0]),
    "the last block was forgotten": lambda s, a: s.prefix.forget(a.block_ids[1]),
    "the block before is not published": lambda s, a: s.pool.published.remove(a.block_ids[0]),
    "a block is published that the cache has not": lambda s, a: (
        a.token_ids.extend([1] * 2),
        setattr(a, "num_computed_tokens", 12),
        s.pool.published.add(a.block_ids[2]),
    ),
    "the namespace is another's": lambda s, a: setattr(s.prefix, "namespace", "other"),
    "a request counts too many": lambda s, a: setattr(a, "num_published_blocks", 3),
    "a request counts too few": lambda s, a: setattr(a, "num_published_blocks", 1),
}


@pytest.mark.parametrize("prefix", ["hash", "radix"])
@pytest.mark.parametrize("corruption", PREFIX)
def test_a_corrupted_prefix_cache_is_caught(corruption, prefix):
    scheduler = cached_engine(prefix).scheduler
    PREFIX[corruption](scheduler, scheduler.requests["a"])
    with pytest.raises(InvariantError) as error:
        check_invariants(scheduler)
    assert error.value.invariant == "I7"


def test_running_in_circles_is_caught():
    """A policy that preempts its only request after every chunk recomputes for ever."""
    engine = make_engine(tokens=4, blocks=4)
    checker = StepChecker(engine)
    engine.add(make_request("a", 8, max_tokens=1))
    for _ in range(2 * 16):
        record = engine.step()
        try:
            checker.check(record)
        except InvariantError as error:
            assert error.invariant == "I11"
            return
        request = engine.scheduler.requests["a"]
        request.forget_computed()
    raise AssertionError("running in circles was not noticed")


def test_what_is_left_at_the_end_is_caught():
    engine = make_engine()
    engine.add(make_request("a", max_tokens=1))
    drain(engine)
    check_empty(engine.scheduler)
    engine.scheduler.pool.allocate(engine.scheduler.requests["a"], 1)
    with pytest.raises(InvariantError, match="I15: 1 blocks are still in use"):
        check_empty(engine.scheduler)
    engine.scheduler.pool.release(engine.scheduler.requests["a"])
    engine.add(make_request("b"))
    with pytest.raises(InvariantError, match="I15: a request still waits or runs"):
        check_empty(engine.scheduler)


def test_checking_changes_nothing():
    engine, _, record = busy_engine()
    before = repr(engine.scheduler.requests), repr(vars(engine.scheduler.pool)), record.model_dump()
    check_invariants(engine.scheduler)
    assert before == (repr(engine.scheduler.requests), repr(vars(engine.scheduler.pool)), record.model_dump())
