"""Orca, step by step: requests join and leave at any step, prompts whole, blocks reserved for the longest output."""

import pytest

from tests.fakes import drain, expected_output, make_engine, make_request


def rows(record):
    return [(row.request_id, row.start, row.num_tokens, row.phase) for row in record.scheduled]


def why(record):
    return [(refused.request_id, refused.why) for refused in record.refused]


def test_a_request_joins_the_running_ones_and_leaves_them_alone():
    engine = make_engine("orca")
    engine.add(make_request("a", 3, max_tokens=4))
    engine.add(make_request("b", 2, max_tokens=2, arrival_s=0.005))
    drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 3, "prefill")],
        [("a", 3, 1, "decode"), ("b", 0, 2, "prefill")],
        [("a", 4, 1, "decode"), ("b", 2, 1, "decode")],
        [("a", 5, 1, "decode")],  # no padding: b has gone
    ]


def test_blocks_for_the_longest_output_are_taken_at_once_and_given_back_at_its_own_end():
    engine = make_engine("orca", blocks=8)
    engine.add(make_request("a", 3, max_tokens=9))  # 12 positions: 3 blocks of 4, though the prompt fits one
    engine.add(make_request("b", 2, max_tokens=2))
    records = drain(engine)
    assert [r.blocks.in_use for r in records[:3]] == [4, 3, 3]
    assert [(e.op, e.request_id) for e in records[0].block_events] == [("alloc", "a")] * 3 + [("alloc", "b")]


def test_a_newcomer_waits_for_blocks_that_will_stand_empty():
    engine = make_engine("orca", blocks=4)
    engine.add(make_request("a", 3, max_tokens=9))
    engine.add(make_request("b", 4, max_tokens=1))  # 2 blocks; one is free, and two of a's are still empty
    records = drain(engine)
    assert [why(r) for r in records] == [[("b", "no_blocks")]] * 9 + [[]]
    assert not any(r.preempted for r in records)


def test_a_prompt_waits_until_it_fits_the_budget_whole():
    engine = make_engine("orca", tokens=8)
    engine.add(make_request("a", 5, max_tokens=3))
    engine.add(make_request("b", 8, max_tokens=1))  # beside a's decode 7 are left
    engine.add(make_request("c", 2, max_tokens=1))  # would fit, but b came first
    records = drain(engine)
    assert [why(r) for r in records] == [[("b", "token_budget"), ("c", "token_budget")]] * 3 + [
        [("c", "token_budget")],
        [],
    ]
    assert engine.executor.calls[3] == [("b", 0, 8, "prefill")]


def test_a_prompt_longer_than_the_whole_budget_is_cut_and_takes_what_is_left():
    engine = make_engine("orca", tokens=8)
    engine.add(make_request("a", 3, max_tokens=4))
    engine.add(make_request("long", 20, max_tokens=1))
    engine.add(make_request("c", 2, max_tokens=1))
    drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 3, "prefill"), ("long", 0, 5, "prefill")],
        [("a", 3, 1, "decode"), ("long", 5, 7, "prefill")],
        [("a", 4, 1, "decode"), ("long", 12, 7, "prefill")],
        [("a", 5, 1, "decode"), ("long", 19, 1, "prefill"), ("c", 0, 2, "prefill")],
    ]


def test_the_number_of_requests_is_limited_with_its_own_reason():
    engine = make_engine("orca", requests=2)
    for name in "abc":
        engine.add(make_request(name, 3, max_tokens=2))
    assert why(engine.step()) == [("c", "request_limit")]


def test_a_cached_prefix_counts_neither_against_the_budget_nor_as_new_blocks():
    engine = make_engine("orca", tokens=8, blocks=4, prefix="radix")
    text = make_request("a", 12).prompt_token_ids
    for name in ("first", "again"):
        request = make_request(name, 12, max_tokens=1)
        request.prompt_token_ids, request.token_ids = text, list(text)
        engine.add(request)
    records = drain(engine)
    assert rows(records[-1]) == [("again", 8, 4, "prefill")]
    assert [e.op for e in records[-1].block_events][:4] == ["share", "share", "alloc", "evict"]


@pytest.mark.parametrize("tokens", [1, 2, 5, 64])
def test_the_tokens_are_those_of_the_model_and_every_prompt_of_at_most_the_budget_is_whole(tokens):
    engine = make_engine("orca", tokens=tokens, requests=3, blocks=30)
    requests = [make_request(f"r{i}", 1 + 3 * i, max_tokens=1 + 5 * (i % 3), arrival_s=0.03 * i) for i in range(8)]
    for request in requests:
        engine.add(request)
    records = drain(engine)
    for request in requests:
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)
        chunks = [row for r in records for row in r.scheduled if row.request_id == request.request_id]
        whole = chunks[0].num_tokens == request.num_prompt_tokens
        assert whole == (request.num_prompt_tokens <= tokens)
