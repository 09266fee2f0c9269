"""Paged, step by step: prompts first and alone, blocks as the tokens come, a watermark, preemption by recompute."""

import pytest

from engine.scheduling.policies.paged import WATERMARK
from tests.fakes import drain, expected_output, make_engine, make_request


def rows(record):
    return [(row.request_id, row.start, row.num_tokens, row.phase) for row in record.scheduled]


def why(record):
    return [(refused.request_id, refused.why) for refused in record.refused]


def test_a_newcomers_prompt_stops_everybodys_decodes():
    engine = make_engine("paged")
    engine.add(make_request("a", 3, max_tokens=3))
    engine.add(make_request("b", 6, max_tokens=2, arrival_s=0.015))
    drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 3, "prefill")],
        [("a", 3, 1, "decode")],
        [("b", 0, 6, "prefill")],  # a stands still
        [("a", 4, 1, "decode"), ("b", 6, 1, "decode")],
    ]


def test_no_step_has_both_prompts_and_decodes():
    engine = make_engine("paged", tokens=9, requests=4, blocks=20)
    for i in range(8):
        engine.add(make_request(f"r{i}", 1 + 4 * i, max_tokens=6, arrival_s=0.04 * i))
    for record in drain(engine):
        phases = {row.phase == "decode" for row in record.scheduled}
        assert len(phases) == 1, record.step


def test_prompts_go_whole_as_many_as_the_budget_holds():
    engine = make_engine("paged", tokens=8)
    for name, num in (("a", 5), ("b", 3), ("c", 4)):
        engine.add(make_request(name, num, max_tokens=2))
    first, second, third = engine.step(), engine.step(), engine.step()
    assert (rows(first), why(first)) == ([("a", 0, 5, "prefill"), ("b", 0, 3, "prefill")], [("c", "token_budget")])
    assert (rows(second), why(second)) == ([("c", 0, 4, "prefill")], [])
    assert [row.phase for row in third.scheduled] == ["decode"] * 3


def test_a_prompt_longer_than_the_budget_is_cut_and_holds_its_blocks_from_the_start():
    engine = make_engine("paged", tokens=8)
    engine.add(make_request("long", 18, max_tokens=2))
    engine.add(make_request("b", 4, max_tokens=1))
    records = drain(engine)
    assert engine.executor.calls == [
        [("long", 0, 8, "prefill")],
        [("long", 8, 8, "prefill")],
        [("long", 16, 2, "prefill"), ("b", 0, 4, "prefill")],
        [("long", 18, 1, "decode")],
    ]
    assert [r.blocks.in_use for r in records[:2]] == [5, 5]


def test_blocks_are_taken_as_the_tokens_come():
    engine = make_engine("paged", blocks=8)
    engine.add(make_request("a", 4, max_tokens=6))
    assert [r.blocks.in_use for r in drain(engine)] == [1, 2, 2, 2, 2, 0]


def test_a_newcomer_leaves_the_watermark_unless_nobody_runs():
    assert round(WATERMARK * 6) == 0  # of a small pool it is one block
    engine = make_engine("paged", blocks=6, tokens=32)
    engine.add(make_request("a", 8, max_tokens=3))  # 2 blocks
    engine.add(make_request("b", 16, max_tokens=1))  # 4 blocks are free, and one must stay so
    first, *_, last = drain(engine)
    assert (first.blocks.free, why(first)) == (4, [("b", "no_blocks")])
    assert last.admitted == ["b"]

    alone = make_engine("paged", blocks=6, tokens=32)
    alone.add(make_request("a", 24 - 1, max_tokens=1))  # the whole pool
    assert alone.step().blocks.free == 6  # computed and over in one step


def test_the_watermark_grows_with_the_pool():
    engine = make_engine("paged", blocks=400, tokens=4096)
    engine.add(make_request("a", 4, max_tokens=2))
    engine.add(make_request("b", (399 - 4) * 4, max_tokens=1))  # leaves 4 = 1 % of 400
    engine.add(make_request("c", 4, max_tokens=1))
    first = engine.step()
    assert (first.admitted, why(first)) == (["a", "b"], [("c", "no_blocks")])


def starved_pair():
    """Two requests that together outgrow the pool."""
    engine = make_engine("paged", blocks=4)
    a, b = make_request("a", 2, max_tokens=12), make_request("b", 2, max_tokens=12)
    engine.add(a), engine.add(b)
    return engine, a, b


def test_the_youngest_is_preempted_and_recomputed_whole_when_it_fits():
    engine, a, b = starved_pair()
    records = drain(engine)
    (step,) = [r for r in records if r.preempted]
    assert (step.preempted, why(step)) == (["b"], [("b", "no_blocks")])
    back = next(r for r in records if r.step > step.step and "b" in r.admitted)
    assert rows(back) == [
        ("b", 0, 2 + sum(o.request_id == "b" for r in records[: back.step] for o in r.outputs), "recompute")
    ]
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)
    for request in (a, b):
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 12)


def test_who_is_preempted_and_who_stands_behind_it_wait_for_blocks():
    engine, _, _ = starved_pair()
    engine.add(make_request("late", 1, max_tokens=1, arrival_s=0.01))
    engine.scheduler.policy.limits = engine.scheduler.policy.limits.model_copy(update={"max_requests": 2})
    record = engine.step()
    while not record.preempted:
        assert why(record) in ([], [("late", "request_limit")])
        record = engine.step()
    assert why(record) == [("b", "no_blocks"), ("late", "no_blocks")]


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_restarts_are_bounded(tokens):
    engine = make_engine("paged", blocks=10, tokens=tokens)
    requests = [make_request(name, 18, max_tokens=20) for name in "ab"]
    for request in requests:
        engine.add(request)
    drain(engine)
    assert requests[0].num_preemptions == 0
    assert requests[1].num_preemptions <= 2
