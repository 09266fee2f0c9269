"""Chunked prefill, step by step: decodes first, prompts in slices, blocks on demand, preemption by recompute."""

import pytest

from engine.scheduling.decision import Plan
from engine.scheduling.invariants import StepChecker
from tests.fakes import checked_step, drain, expected_output, make_engine, make_request


def rows(record):
    return [(row.request_id, row.start, row.num_tokens, row.phase) for row in record.scheduled]


def why(record):
    return [(refused.request_id, refused.why) for refused in record.refused]


def test_a_prompt_is_cut_to_the_budget_and_only_its_last_chunk_samples():
    engine = make_engine(tokens=4)
    engine.add(make_request("a", 10, max_tokens=2))
    records = drain(engine)
    assert engine.executor.calls == [
        [("a", 0, 4, "prefill")],
        [("a", 4, 4, "prefill")],
        [("a", 8, 2, "prefill")],
        [("a", 10, 1, "decode")],
    ]
    assert [row.is_last_chunk for r in records for row in r.scheduled] == [False, False, True, True]
    assert [len(r.outputs) for r in records] == [0, 0, 1, 1]


def test_decodes_come_first_and_the_newcomer_gets_what_is_left():
    engine = make_engine(tokens=4)
    engine.add(make_request("a", 3, max_tokens=5))
    engine.add(make_request("b", 6, max_tokens=2, arrival_s=0.005))
    drain(engine)
    assert engine.executor.calls[:4] == [
        [("a", 0, 3, "prefill")],
        [("a", 3, 1, "decode"), ("b", 0, 3, "prefill")],
        [("a", 4, 1, "decode"), ("b", 3, 3, "prefill")],
        [("a", 5, 1, "decode"), ("b", 6, 1, "decode")],
    ]


def test_a_running_prompt_is_finished_before_a_newcomer_starts():
    engine = make_engine(tokens=4)
    engine.add(make_request("a", 6, max_tokens=1))
    engine.add(make_request("b", 6, max_tokens=1))
    first, second = engine.step(), engine.step()
    assert (rows(first), why(first)) == ([("a", 0, 4, "prefill")], [("b", "token_budget")])
    assert (rows(second), why(second)) == ([("a", 4, 2, "prefill"), ("b", 0, 2, "prefill")], [])


def test_a_finished_request_leaves_at_once_and_its_place_is_taken_in_the_next_step():
    engine = make_engine(requests=1)
    engine.add(make_request("a", 3, max_tokens=1))
    engine.add(make_request("b", 3, max_tokens=1))
    first, second = engine.step(), engine.step()
    assert (why(first), first.blocks.in_use) == ([("b", "request_limit")], 0)
    assert [(e.op, e.request_id) for e in first.block_events] == [("alloc", "a"), ("release", "a")]
    assert (second.admitted, rows(second)) == (["b"], [("b", 0, 3, "prefill")])


def test_blocks_are_taken_as_the_tokens_come():
    engine = make_engine(blocks=8)
    engine.add(make_request("a", 4, max_tokens=6))
    assert [r.blocks.in_use for r in drain(engine)] == [1, 2, 2, 2, 2, 0]


def test_a_newcomer_waits_until_its_whole_prompt_fits_though_its_first_chunk_would():
    engine = make_engine(tokens=8, blocks=5)  # 20 positions
    engine.add(make_request("a", 8, max_tokens=4))  # 2 blocks, then a third
    engine.add(make_request("b", 16, max_tokens=1))  # 4 blocks
    records = drain(engine)
    assert [r.preempted for r in records] == [[]] * len(records)
    assert why(records[0]) == [("b", "token_budget")]
    assert why(records[1]) == [("b", "no_blocks")]


def test_blocks_owed_to_a_prompt_in_progress_are_not_given_away():
    engine = make_engine(tokens=6, blocks=6)  # 24 positions
    engine.add(make_request("a", 16, max_tokens=1))  # 4 blocks, in three chunks
    engine.add(make_request("b", 12, max_tokens=1))  # 3 blocks: with a's four more than there are
    records = drain(engine)
    assert all(not r.preempted for r in records)
    assert why(records[2]) == [("b", "no_blocks")]
    assert rows(records[3]) == [("b", 0, 6, "prefill")]


def starved_pair(requests=4):
    """Two requests that together outgrow the pool: a is older, so b is preempted when a needs b's last block."""
    engine = make_engine(blocks=4, requests=requests)  # 16 positions
    a, b = make_request("a", 2, max_tokens=12), make_request("b", 2, max_tokens=12)
    engine.add(a), engine.add(b)
    return engine, a, b


def test_the_youngest_is_preempted_and_recomputed_from_its_first_token():
    engine, a, b = starved_pair()
    records = drain(engine)
    (step,) = [r for r in records if r.preempted]
    assert step.preempted == ["b"]
    assert why(step) == [("b", "no_blocks")]
    assert [(e.op, e.request_id) for e in step.block_events] == [("release", "b"), ("release", "b"), ("alloc", "a")]
    back = next(r for r in records if r.step > step.step and "b" in r.admitted)
    num_tokens = 2 + sum(o.request_id == "b" for r in records[: back.step] for o in r.outputs)
    assert rows(back) == [("b", 0, num_tokens, "recompute")]  # prompt and output: all it has
    assert (b.num_preemptions, a.num_preemptions) == (1, 0)


def test_who_is_preempted_is_the_first_to_come_back():
    engine, _, _ = starved_pair(requests=2)
    engine.add(make_request("late", 1, max_tokens=1, arrival_s=0.01))
    records = drain(engine)
    step = next(r for r in records if r.preempted)
    assert why(step) == [("b", "no_blocks"), ("late", "no_blocks")]  # one block would do for late, but b is before it
    assert [name for r in records[step.step :] for name in r.admitted] == ["b", "late"]


def test_preemption_changes_neither_tokens_nor_finish_reasons():
    engine, a, b = starved_pair()
    drain(engine)
    for request in (a, b):
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 12)
        assert request.finish_reason == "length"


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("num_before", range(1, 9))
def test_preempting_after_any_number_of_steps_changes_nothing(num_before, tokens):
    """The preemption is forced between two steps, in the prompt or in the output, once or with a second victim."""
    engine = make_engine(tokens=tokens, blocks=16)
    requests = [make_request("a", 6, max_tokens=5), make_request("b", 3, max_tokens=7)]
    for request in requests:
        engine.add(request)
    checker = StepChecker(engine)
    for _ in range(num_before):
        checked_step(engine, checker)
    plan = Plan(budget_left=0)
    for request in list(reversed(engine.scheduler.policy.running)):
        engine.scheduler.policy.preempt(plan, request)
    drain(engine, checker)
    assert len(plan.preempted) == sum(r.num_preemptions for r in requests)
    for request in requests:
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)


def test_two_long_prompts_in_a_small_pool_restart_a_bounded_number_of_times():
    """A start costs the older request at least one block of growth, so restarts are bounded by blocks, not by steps."""
    engine = make_engine(blocks=10, tokens=4)  # 40 positions
    requests = [make_request(name, 18, max_tokens=20) for name in "ab"]
    for request in requests:
        engine.add(request)
    records = drain(engine)
    recomputed = sum(row.num_tokens for r in records for row in r.scheduled if row.phase == "recompute")
    assert requests[0].num_preemptions == 0
    assert requests[1].num_preemptions <= 2
    assert recomputed <= requests[1].num_preemptions * 38


def test_a_decode_never_waits_for_anybodys_prompt():
    engine = make_engine(tokens=5, requests=4, blocks=64)
    for i, prompt in enumerate((2, 30, 9, 17, 40)):
        engine.add(make_request(f"r{i}", prompt, max_tokens=8, arrival_s=0.01 * i))
    decoding = set()
    for record in drain(engine):
        scheduled = {row.request_id for row in record.scheduled}
        assert decoding <= scheduled, f"step {record.step}: {decoding - scheduled} stood still"
        decoding |= {o.request_id for o in record.outputs}
        decoding -= {o.request_id for o in record.outputs if o.finish_reason}


def test_a_budget_smaller_than_the_number_of_requests_still_serves_all():
    engine = make_engine(tokens=1, requests=4)
    requests = [make_request(name, 3, max_tokens=3) for name in "abcde"]
    for request in requests:
        engine.add(request)
    drain(engine)
    for request in requests:
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 3)
