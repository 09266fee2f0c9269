"""Prefix caches at work in an engine: what is hit, what it saves, and that it never changes a token."""

import pytest

from engine.lab.check import check_run
from engine.lab.prefix_use import prefix_use
from engine.scheduling.decision import Plan
from engine.scheduling.invariants import StepChecker
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from tests.fakes import as_run, checked_step, drain, expected_output, make_engine, make_request

CACHES = ["hash", "radix"]
BLOCK = 4


def text(length):
    return [(3 * i * i + i) % 97 for i in range(length)]


def rows(record):
    return [(row.request_id, row.start, row.num_tokens, row.phase, row.num_cached_tokens) for row in record.scheduled]


# ---- one prompt, twice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", CACHES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_the_same_prompt_again_computes_what_is_left_and_at_least_one_token(length, policy, prefix):
    engine = make_engine(policy, prefix=prefix)
    for name, arrival_s in (("a", 0.0), ("b", 1.0)):
        engine.add(Request(name, text(length), 3, arrival_s))
    records = drain(engine)
    check_run(as_run(engine, records))
    expected = (length - 1) // BLOCK * BLOCK
    first = next(r for r in records if "b" in r.admitted)
    assert rows(first) == [("b", expected, length - expected, "prefill", expected)]
    assert [e.op for e in first.block_events if e.request_id == "b"][: expected // BLOCK] == ["share"] * (
        expected // BLOCK
    )
    assert [r.num_cached_tokens for r in engine.request_records()] == [0, expected]
    outputs = {tuple(r.output_token_ids) for r in engine.request_records()}
    assert outputs == {tuple(expected_output(text(length), 3))}


@pytest.mark.parametrize("prefix", CACHES)
@pytest.mark.parametrize("tokens", [6, 16, 64])
def test_two_equal_prompts_in_one_step_do_not_hit_what_is_not_committed_yet(tokens, prefix):
    engine = make_engine(tokens=tokens, prefix=prefix)
    for name in "ab":
        engine.add(Request(name, text(14), 4))
    records = drain(engine)
    together = {row.request_id for row in records[0].scheduled}
    assert together == ({"a"} if tokens == 6 else {"a", "b"})
    # With a budget of 6 tokens b comes in the third step, when 12 tokens of a are committed.
    assert [r.num_cached_tokens for r in engine.request_records()] == [0, 0 if "b" in together else 12]
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 4)


@pytest.mark.parametrize("prefix", CACHES)
def test_what_somebody_else_wrote_is_found_as_a_prompt(prefix):
    """A second turn: the prompt is the first request's prompt and output, and a question behind it."""
    engine = make_engine(prefix=prefix)
    engine.add(Request("turn 1", text(6), 7))
    drain(engine)
    history = engine.scheduler.requests["turn 1"].token_ids
    engine.add(Request("turn 2", [*history, 1, 2, 3], 2, engine.now_s()))
    record = engine.step()
    assert rows(record) == [("turn 2", 12, 4, "prefill", 12)]  # the 13th token of turn 1 was never computed


@pytest.mark.parametrize("prefix", CACHES)
def test_what_one_request_says_never_reaches_another(prefix):
    """The answers to b are the same whether a, which begins alike and goes on in its own way, was there or not."""
    alone = make_engine(prefix=prefix)
    alone.add(Request("b", text(14), 5))
    drain(alone)
    for canary in range(20):
        engine = make_engine(prefix=prefix, requests=2)
        engine.add(Request("a", text(9) + [canary] * 7, 5))
        engine.add(Request("b", text(14), 5, 0.015))
        drain(engine)
        assert engine.request_records()[1].output_token_ids == alone.request_records()[0].output_token_ids
        assert engine.request_records()[1].num_cached_tokens == 8


@pytest.mark.parametrize("num_hashes", [1, 2, 5])
def test_with_a_useless_hash_less_is_found_and_nothing_wrong(num_hashes):
    """If collisions were believed, one request would read the keys and values of another."""
    engine = make_engine(blocks=20, prefix="hash")
    engine.scheduler.prefix._hash_block = lambda before, tokens: sum(tokens) % num_hashes
    for i in range(12):
        engine.add(Request(f"r{i}", text(4 * (i % 3)) + [i % 5] * 9, 6, 0.01 * i))
    records = drain(engine)
    check_run(as_run(engine, records))
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 6)


# ---- preemption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", CACHES)
@pytest.mark.parametrize("tokens", [1, 3, 16])
@pytest.mark.parametrize("num_before", range(1, 2 * BLOCK + 1))
def test_preempted_after_any_number_of_steps_it_finds_its_own_prefix_again(num_before, tokens, prefix):
    engine = make_engine(tokens=tokens, blocks=16, prefix=prefix)
    request = Request("a", text(7), 6)
    engine.add(request)
    checker, records = StepChecker(engine), []
    for _ in range(num_before):
        records.append(checked_step(engine, checker))
    if request.is_finished:
        return
    num_computed, plan = request.num_computed_tokens, Plan(budget_left=0)
    engine.scheduler.policy.preempt(plan, request)
    back = checked_step(engine, checker)
    back.preempted = ["a"]  # the record of a step tells what happened since the last one
    records.append(back)
    records += drain(engine, checker)
    check_run(as_run(engine, records))
    found = num_computed // BLOCK * BLOCK
    (row,) = back.scheduled
    assert (row.start, row.num_cached_tokens) == (found, found)
    assert row.phase == ("recompute" if found < num_computed else row.phase)
    assert request.output_token_ids == expected_output(request.prompt_token_ids, 6)


@pytest.mark.parametrize("prefix", CACHES)
@pytest.mark.parametrize("policy", ["paged", "chunked"])
def test_running_out_of_blocks_costs_only_what_was_evicted(policy, prefix):
    def recomputed(prefix):
        engine = make_engine(policy, blocks=8, tokens=32, prefix=prefix)
        for name in "ab":
            engine.add(make_request(name, 6, max_tokens=20))
        records = drain(engine)
        run = as_run(engine, records)
        check_run(run)
        assert sum(len(r.preempted) for r in records) == 1
        for request in engine.scheduler.requests.values():
            assert request.output_token_ids == expected_output(request.prompt_token_ids, 20)
        again = sum(row.num_tokens for r in records for row in r.scheduled if row.phase == "recompute")
        return again, prefix_use(run)

    (whole, none), (rest, use) = recomputed("none"), recomputed(prefix)
    assert none.num_cached_tokens_after_preemption == 0 < use.num_cached_tokens_after_preemption
    assert rest == whole - use.num_cached_tokens_after_preemption
    assert use.num_cached_tokens == 0  # the two prompts have nothing in common


@pytest.mark.parametrize("prefix", CACHES)
def test_a_double_that_is_preempted_can_come_back_in_the_same_step_behind_the_others_blocks(prefix):
    """Two equal prompts computed side by side hold two copies. When blocks run out the younger one shares instead."""
    engine = make_engine(tokens=64, blocks=8, prefix=prefix)
    for name in "ab":
        engine.add(Request(name, text(12), 8))
    records = drain(engine)
    check_run(as_run(engine, records))
    (step,) = [r for r in records if r.preempted]
    assert (step.preempted, step.admitted) == (["b"], ["b"])
    assert [row.num_cached_tokens for row in step.scheduled] == [0, 16]
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, 8)


# ---- a workload that shares a long prefix --------------------------------------------------------------------------


def shared_prefix_engine(policy, prefix, blocks=4096):
    """64 requests that begin with the same 512 tokens, each with a tail of its own, on blocks of 16."""
    engine = make_engine(policy, block_size=16, requests=8, tokens=256, blocks=blocks, prefix=prefix)
    for i in range(64):
        engine.add(Request(f"r{i}", [*text(512), i, *range(10 + i % 23)], 2 + i % 5, arrival_s=0.001 * i))
    return engine


def brute_force_hits(run):
    """What each request must have found, from the records and a set of all prefixes committed so far."""
    prompts = {spec["request_id"]: spec["prompt_token_ids"] for spec in run.header.scenario["requests"]}
    tokens = {name: list(prompt) for name, prompt in prompts.items()}
    size, committed, found = run.header.block_size, set(), {}
    for step in run.steps:
        for name in step.admitted:
            ends = range(size, len(tokens[name]), size)
            hit = 0
            for end in ends:
                if tuple(tokens[name][:end]) not in committed:
                    break
                hit = end
            found[name] = hit
        for row in step.scheduled:
            for end in range(size, row.start + row.num_tokens + 1, size):
                committed.add(tuple(tokens[row.request_id][:end]))
        for output in step.outputs:
            tokens[output.request_id].append(output.token_id)
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefix", CACHES)
def test_a_shared_prefix_is_computed_once_and_the_run_shows_what_it_saved(policy, prefix):
    engine = shared_prefix_engine(policy, prefix)
    run = as_run(engine, drain(engine))
    check_run(run)
    use, expected = prefix_use(run), brute_force_hits(run)
    assert {r.request_id: r.num_cached_tokens for r in run.requests} == expected
    assert use.num_cached_tokens == sum(expected.values())
    num_prompt_tokens = sum(len(spec["prompt_token_ids"]) for spec in run.header.scenario["requests"])
    assert use.num_prompt_tokens == num_prompt_tokens
    assert use.hit_rate == sum(expected.values()) / num_prompt_tokens
    prefilled = sum(row.num_tokens for s in run.steps for row in s.scheduled if row.phase == "prefill")
    assert prefilled == num_prompt_tokens - use.num_cached_tokens
    assert (use.num_requests_with_hit, use.num_cached_tokens_after_preemption, use.num_evicted_blocks) == (
        sum(hit > 0 for hit in expected.values()),
        0,
        0,
    )
    if policy != "static":  # its first batch of eight cannot know what is not committed yet
        assert use.num_requests_with_hit == 63 and use.num_cached_tokens == 63 * 512
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)


@pytest.mark.parametrize("prefix", CACHES)
def test_without_a_hit_nothing_is_saved_and_nothing_looked_up_has_no_rate(prefix):
    engine = make_engine(prefix=prefix)
    engine.add(make_request("a", 9))
    engine.add(make_request("never", 9, arrival_s=60.0))
    engine.abort("never")
    use = prefix_use(as_run(engine, drain(engine)))
    assert (use.num_prompt_tokens, use.num_cached_tokens, use.hit_rate) == (9, 0, 0.0)
    engine = make_engine(prefix=prefix)
    engine.add(make_request("never", 9, arrival_s=60.0))
    engine.abort("never")
    assert prefix_use(as_run(engine, drain(engine))).hit_rate is None


def test_a_pool_too_small_for_the_shared_prefix_and_a_request_still_serves_all():
    engine = shared_prefix_engine("chunked", "radix", blocks=38)  # one request and a bit: 33 to 36 blocks
    records = drain(engine)
    check_run(as_run(engine, records))
    assert prefix_use(as_run(engine, records)).num_evicted_blocks > 0
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)
