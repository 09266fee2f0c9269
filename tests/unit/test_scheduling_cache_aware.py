"""Cache-aware order: the longest cached prefix goes first, but nobody is overtaken for ever."""

import pytest

from engine.scheduling.policies import cache_aware
from engine.scheduling.requests import Request
from tests.fakes import drain, make_engine

TEXTS = {"x": [1] * 16, "y": [2] * 16, "z": [3] * 16}


def request(name, text, length=12, max_tokens=1, arrival_s=0.0):
    """A request that begins like one of the texts and ends in a way of its own."""
    return Request(name, [*TEXTS[text][: length - 1], 50 + len(name)], max_tokens, arrival_s)


def admitted(records):
    return [name for record in records for name in record.admitted]


def alternating(policy, prefix="hash", blocks=4):
    """Six requests of two texts in turn, one at a time, on a pool that holds little more than one text."""
    engine = make_engine(policy, requests=1, blocks=blocks, prefix=prefix)
    for i in range(3):
        engine.add(request("x" * (i + 1), "x", arrival_s=i / 1e6))
        engine.add(request("y" * (i + 1), "y", arrival_s=i / 1e6))
    return engine, drain(engine)


@pytest.mark.parametrize("prefix", ["hash", "radix"])
def test_requests_that_share_a_prefix_run_together_and_compute_it_once(prefix):
    _, records = alternating("cache_aware", prefix)
    assert admitted(records) == ["x", "xx", "xxx", "y", "yy", "yyy"]
    assert sum(row.num_tokens for r in records for row in r.scheduled) == 2 * 12 + 4 * 4

    _, in_order = alternating("chunked", prefix)
    assert admitted(in_order) == ["x", "y", "xx", "yy", "xxx", "yyy"]
    assert sum(row.num_tokens for r in in_order for row in r.scheduled) > 2 * 12 + 4 * 4  # evicted and computed again


def test_without_a_prefix_cache_the_order_is_that_of_arrival():
    _, records = alternating("cache_aware", "none")
    assert admitted(records) == ["x", "y", "xx", "yy", "xxx", "yyy"]


def test_the_longer_cached_prefix_goes_first_and_ties_go_by_arrival():
    engine = make_engine("cache_aware", requests=1, prefix="radix")
    engine.add(request("first", "x", 16))
    for name, text, length in (("none", "y", 12), ("short", "x", 6), ("long", "x", 15), ("late", "x", 14)):
        engine.add(request(name, text, length, arrival_s=0.001))
    assert admitted(drain(engine)) == ["first", "long", "late", "short", "none"]


def test_who_has_waited_long_enough_goes_first_though_nothing_of_it_is_cached(monkeypatch):
    monkeypatch.setattr(cache_aware, "PATIENCE", 5)
    engine = make_engine("cache_aware", requests=1, prefix="hash")
    engine.add(request("lonely", "y", arrival_s=0.001))
    for i in range(20):
        engine.add(request("x" * (i + 1), "x", arrival_s=0.0005 * i))
    records = drain(engine)
    order = admitted(records)
    assert order[0] == "x" and order.index("lonely") == 6
    refused = [r.step for r in records if "lonely" in {refused.request_id for refused in r.refused}]
    assert len(refused) == 5


def test_a_stream_of_cached_requests_starves_nobody():
    engine = make_engine("cache_aware", requests=2, prefix="hash", blocks=64)
    engine.add(request("x", "x"))
    for i in range(4):
        engine.add(request("lonely" + "!" * i, "y", arrival_s=0.01))
    for i in range(600):
        engine.add(request(f"stream{i:04}", "x", arrival_s=0.005 * i))
    records = drain(engine)
    steps = {name: r.step for r in records for name in r.admitted}
    for i in range(4):
        assert steps["lonely" + "!" * i] <= cache_aware.PATIENCE + 4
    assert engine.scheduler.requests["stream0599"].finish_reason == "length"


def test_only_the_first_in_the_queue_are_looked_up(monkeypatch):
    monkeypatch.setattr(cache_aware, "NUM_LOOKED_UP", 2)
    engine = make_engine("cache_aware", requests=1, prefix="hash")
    engine.add(request("first", "x"))
    for name, text in (("y1", "y"), ("z22", "z"), ("x333", "x")):
        engine.add(request(name, text, arrival_s=0.001))
    assert admitted(drain(engine)) == ["first", "y1", "x333", "z22"]
