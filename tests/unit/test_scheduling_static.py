"""Static batching, step by step: a batch is fixed, padded and drained before the next one starts."""

import pytest

from engine.lab.scenario import ScenarioError
from tests.fakes import drain, expected_output, make_engine, make_request


def test_a_batch_runs_to_its_longest_row_and_finished_rows_are_padding():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=4))
    engine.add(make_request("b", 2, max_tokens=2))
    records = drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 3, "prefill"), ("b", 0, 2, "prefill")],
        [("a", 3, 1, "decode"), ("b", 2, 1, "decode")],
        [("a", 4, 1, "decode"), ("b", 2, 1, "padding")],
        [("a", 5, 1, "decode"), ("b", 2, 1, "padding")],
    ]
    assert [r.work.padding_tokens for r in records] == [0, 0, 1, 1]
    assert [r.queues.finished for r in records] == [0, 1, 1, 2]


def test_a_request_completes_with_its_own_last_token_not_with_its_batch():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=4))
    engine.add(make_request("b", 2, max_tokens=2))
    records = drain(engine)
    a, b = engine.request_records()
    assert (b.completion_s, a.completion_s) == (records[1].t_end_s, records[3].t_end_s)


def test_blocks_are_reserved_for_the_longest_output_and_released_when_the_batch_drains():
    engine = make_engine("static", blocks=8)
    engine.add(make_request("a", 3, max_tokens=6))  # 9 positions: 3 blocks of 4
    engine.add(make_request("b", 2, max_tokens=1))  # 3 positions: 1 block
    records = drain(engine)
    assert [r.blocks.in_use for r in records] == [4, 4, 4, 4, 4, 0]
    ops = [[(e.op, e.request_id) for e in r.block_events] for r in records]
    assert ops[0] == [("alloc", "a")] * 3 + [("alloc", "b")]
    assert ops[1:5] == [[], [], [], []]
    assert ops[5] == [("release", "a")] * 3 + [("release", "b")]


def test_who_comes_late_waits_for_the_whole_batch():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=4))
    engine.add(make_request("late", 3, max_tokens=1, arrival_s=0.005))
    records = drain(engine)
    reasons = [[(refused.request_id, refused.why) for refused in r.refused] for r in records]
    assert reasons == [[]] + [[("late", "batch_not_drained")]] * 3 + [[]]
    assert records[4].admitted == ["late"]


def test_the_batch_is_limited_by_rows_then_by_blocks_with_the_reason_of_each():
    engine = make_engine("static", requests=2)
    for name in "abc":
        engine.add(make_request(name, 3, max_tokens=2))
    first = engine.step()
    assert (first.admitted, [(r.request_id, r.why) for r in first.refused]) == (["a", "b"], [("c", "request_limit")])

    engine = make_engine("static", blocks=3)
    for name in "abc":
        engine.add(make_request(name, 5, max_tokens=3))  # 2 blocks each
    first = engine.step()
    assert first.admitted == ["a"]
    assert [(r.request_id, r.why) for r in first.refused] == [("b", "no_blocks"), ("c", "no_blocks")]


def test_long_prompts_take_several_steps_and_decoding_starts_when_all_are_done():
    engine = make_engine("static", tokens=4)
    engine.add(make_request("a", 3, max_tokens=2))
    engine.add(make_request("b", 6, max_tokens=2))
    records = drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 3, "prefill"), ("b", 0, 1, "prefill")],
        [("b", 1, 4, "prefill")],
        [("b", 5, 1, "prefill")],
        [("a", 3, 1, "decode"), ("b", 6, 1, "decode")],
    ]
    assert [[o.request_id for o in r.outputs] for r in records] == [["a"], [], ["b"], ["a", "b"]]


def test_rows_that_end_with_their_prompt_are_padding_too():
    engine = make_engine("static")
    engine.add(make_request("one", 1, max_tokens=1))
    engine.add(make_request("a", 2, max_tokens=2))
    drain(engine)
    assert engine.executor.calls[1] == [("one", 0, 1, "padding"), ("a", 2, 1, "decode")]


def test_aborting_a_live_row_takes_it_out_of_the_batch():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=6))
    engine.add(make_request("b", 3, max_tokens=6))
    engine.step(), engine.step()
    free = engine.scheduler.pool.num_free
    assert engine.abort("b")
    assert engine.scheduler.pool.num_free == free + 3
    record = engine.step()
    assert [row.request_id for row in record.scheduled] == ["a"]
    assert [(o.request_id, o.token_id, o.finish_reason) for o in record.outputs if o.request_id == "b"] == [
        ("b", None, "abort")
    ]


def test_aborting_a_padding_row_frees_its_blocks_once_and_keeps_how_it_ended():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=6))
    engine.add(make_request("b", 3, max_tokens=1))
    records = [engine.step(), engine.step()]
    assert records[1].scheduled[1].phase == "padding"
    assert engine.abort("b") is True
    assert engine.abort("b") is False
    record = engine.step()
    assert [(e.op, e.request_id) for e in record.block_events] == [("release", "b")]
    assert [row.request_id for row in record.scheduled] == ["a"]
    assert [o.request_id for o in record.outputs] == ["a"]
    assert engine.scheduler.requests["b"].finish_reason == "length"


def test_aborting_the_last_live_row_drains_the_batch():
    engine = make_engine("static")
    engine.add(make_request("a", 3, max_tokens=6))
    engine.add(make_request("b", 3, max_tokens=1))
    engine.step(), engine.step()
    engine.abort("a")
    assert engine.scheduler.pool.num_in_use == 0
    engine.add(make_request("c", 3, max_tokens=1, arrival_s=engine.now_s()))
    record = engine.step()
    assert [row.request_id for row in record.scheduled] == ["c"]


def test_a_batch_wider_than_the_budget_is_refused_with_both_numbers():
    with pytest.raises(ScenarioError, match=r"max_batch_tokens is 4 .* up to 5 rows") as error:
        make_engine("static", requests=5, tokens=4)
    assert error.value.field == "limits.max_batch_tokens"


def test_the_tokens_are_those_of_the_model():
    engine = make_engine("static", tokens=5, requests=3, blocks=9)
    requests = [make_request(f"r{i}", 1 + 3 * i, max_tokens=1 + 5 * (i % 3)) for i in range(6)]
    for request in requests:
        engine.add(request)
    drain(engine)
    for request in requests:
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)
