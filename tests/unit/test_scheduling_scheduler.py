"""The scheduler's door: what it refuses to take, arrivals in order, abort in every state, commit after an abort."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from engine.lab.scenario import Limits, PolicyName, ScenarioError
from engine.scheduling.invariants import check_empty, check_invariants
from engine.scheduling.policies import POLICIES
from engine.scheduling.prefix import PREFIX_CACHES
from engine.scheduling.requests import Request, Status
from engine.scheduling.scheduler import Scheduler, ends_at_max_tokens
from tests.fakes import make_limits, make_request

ROOT = Path(__file__).parents[2]


def make_scheduler(policy="chunked", block_size=4, **limits):
    return Scheduler(policy, make_limits(**limits), block_size)


def run_step(scheduler, now_s, token_id=1):
    """One step without a model: every sampling chunk gets the same token. Returns the decision."""
    decision = scheduler.decide(now_s)
    chunks = scheduler.chunks(decision)
    for request, _, _ in scheduler.commit(chunks, [token_id] * sum(c.samples for c in chunks), ends_at_max_tokens):
        request.first_token_s = request.first_token_s or now_s
        request.completion_s = now_s if request.is_finished else None
    check_invariants(scheduler)
    return decision


def test_a_request_longer_than_the_pool_is_refused_with_both_numbers_and_others_go_on():
    scheduler = make_scheduler(blocks=4)
    with pytest.raises(ScenarioError, match=r"needs 17 positions .* all 4 KV blocks of 4 together hold 16.* to 5 or"):
        scheduler.add(make_request("big", 10, max_tokens=7))
    scheduler.add(make_request("fits", 10, max_tokens=6))
    for i in range(6):
        run_step(scheduler, i / 100)
    assert scheduler.requests["fits"].finish_reason == "length"
    check_empty(scheduler)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", [1], 1), "'a' is in use"),
        (Request("b", [], 1), "empty prompt"),
        (Request("b", [1], 0), "max_tokens is 0; allowed: 1 or more"),
    ],
)
def test_other_requests_that_cannot_run(request_, message):
    scheduler = make_scheduler()
    scheduler.add(make_request("a"))
    with pytest.raises(ScenarioError, match=message):
        scheduler.add(request_)
    assert list(scheduler.requests) == ["a"]


def test_a_policy_this_engine_does_not_have_is_refused():
    with pytest.raises(ScenarioError, match=r"policy is 'fastest'; this engine has static, orca, paged, chunked, "):
        Scheduler("fastest", make_limits(), 4)


def test_the_registries_have_what_a_scenario_may_name():
    assert list(POLICIES) == list(get_args(PolicyName)) == [policy.name for policy in POLICIES.values()]
    assert set(PREFIX_CACHES) == set(get_args(Limits.model_fields["prefix_cache"].annotation))


def test_requests_join_the_queue_in_order_of_arrival_not_of_addition():
    scheduler = make_scheduler(requests=1)
    for name, arrival_s in (("late", 2.0), ("second", 1.0), ("first", 0.5), ("tied", 1.0)):
        scheduler.add(make_request(name, arrival_s=arrival_s, max_tokens=1))
    assert scheduler.next_arrival_s == 0.5
    assert run_step(scheduler, 0.0).scheduled == {}
    decision = run_step(scheduler, 1.5)
    assert decision.admitted == ["first"]
    assert [request_id for request_id, _ in decision.refused] == ["second", "tied"]
    assert scheduler.next_arrival_s == 2.0
    assert [run_step(scheduler, 2.5).admitted for _ in range(3)] == [["second"], ["tied"], ["late"]]


def test_a_decision_names_tokens_in_batch_order():
    scheduler = make_scheduler(tokens=4)
    scheduler.add(make_request("a", 3))
    scheduler.add(make_request("b", 3))
    assert list(run_step(scheduler, 0.0).scheduled.items()) == [("a", 3), ("b", 1)]
    assert list(run_step(scheduler, 0.1).scheduled.items()) == [("a", 1), ("b", 2)]


def test_chunks_are_frozen_views():
    scheduler = make_scheduler(tokens=4)
    scheduler.add(make_request("a", 6))
    chunks = scheduler.chunks(scheduler.decide(0.0))
    (chunk,) = chunks
    request = scheduler.requests["a"]
    assert (chunk.start, chunk.num_tokens, chunk.samples, chunk.phase) == (0, 4, False, "prefill")
    assert chunk.token_ids == request.prompt_token_ids[:4]
    scheduler.abort("a", 0.1)
    assert chunk.block_ids == [0] and request.block_ids == []
    with pytest.raises(AttributeError):
        chunk.start = 1


@pytest.mark.parametrize("policy", ["static", "chunked"])
@pytest.mark.parametrize("state", ["future", "waiting", "prefilling", "decoding"])
def test_abort_in_every_state_releases_at_once_and_only_once(policy, state):
    scheduler = make_scheduler(policy, tokens=4)
    request = make_request("a", 6, max_tokens=4, arrival_s=1.0)
    scheduler.add(request)
    run_step(scheduler, 0.5)
    if state == "waiting":
        scheduler.policy.waiting.append(scheduler.future.pop()[2])
    for _ in range({"prefilling": 1, "decoding": 3}.get(state, 0)):
        run_step(scheduler, 1.0)
    assert (request.status is Status.RUNNING) == (state in ("prefilling", "decoding"))
    assert scheduler.abort("a", 2.0) is True
    check_invariants(scheduler)
    check_empty(scheduler)
    assert scheduler.abort("a", 2.0) is False
    released = [event[1] for event in scheduler.pool.take_events() if event[0] == "release"]
    assert len(released) == len(set(released))
    assert (request.finish_reason, request.completion_s, scheduler.num_finished) == ("abort", 2.0, 1)


def test_abort_of_a_preempted_request():
    scheduler = make_scheduler(blocks=4)
    for name in "ab":
        scheduler.add(make_request(name, 2, max_tokens=12))
    while not run_step(scheduler, 0.0).preempted:
        pass
    assert scheduler.requests["b"].status is Status.WAITING
    assert scheduler.abort("b", 1.0)
    check_invariants(scheduler)
    while scheduler.has_unfinished:
        run_step(scheduler, 1.0)
    check_empty(scheduler)
    assert [scheduler.requests[name].finish_reason for name in "ab"] == ["length", "abort"]


def test_abort_of_an_unknown_request_changes_nothing():
    assert make_scheduler().abort("nobody", 0.0) is False


@pytest.mark.parametrize("policy", ["static", "chunked"])
@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("num_before", range(5))
def test_abort_between_decide_and_commit(policy, victim, num_before):
    """The forward pass of the step is under way: its token is dropped, its blocks were released once."""
    scheduler = make_scheduler(policy)
    for name in "ab":
        scheduler.add(make_request(name, 6, max_tokens=4 if name == "a" else 8))
    for _ in range(num_before):
        run_step(scheduler, 0.0)
    request = scheduler.requests[victim]
    finished, num_tokens = request.is_finished, request.num_tokens
    chunks = scheduler.chunks(scheduler.decide(0.0))
    scheduler.abort(victim, 0.0)
    produced = scheduler.commit(chunks, [1] * sum(c.samples for c in chunks), ends_at_max_tokens)
    for other, _, _ in produced:
        other.first_token_s = 0.0
        other.completion_s = 0.0 if other.is_finished else None
    assert request not in [new.request for new in produced] and request.num_tokens == num_tokens
    check_invariants(scheduler)
    while scheduler.has_unfinished:
        run_step(scheduler, 0.0)
    check_empty(scheduler)
    assert request.finish_reason == ("length" if finished else "abort")
    allocated = [event[1] for event in scheduler.pool.take_events() if event[0] == "alloc"]
    assert len(allocated) >= 2


def test_forget_keeps_the_scheduler_small():
    scheduler = make_scheduler()
    for i in range(50):
        scheduler.add(make_request(f"r{i}", max_tokens=1))
        run_step(scheduler, 0.0)
        scheduler.forget(f"r{i}")
    assert (scheduler.requests, scheduler.num_finished) == ({}, 50)
    scheduler.add(make_request("a"))
    with pytest.raises(AssertionError, match="still in the engine"):
        scheduler.forget("a")


def test_one_token_is_expected_for_each_sampling_chunk():
    scheduler = make_scheduler()
    scheduler.add(make_request("a"))
    chunks = scheduler.chunks(scheduler.decide(0.0))
    with pytest.raises(AssertionError, match="one token for each chunk"):
        scheduler.commit(chunks, [1, 2], ends_at_max_tokens)


def test_blocks_are_released_from_one_place():
    calls = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "engine").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "pool.release(" in line
    ]
    assert calls == ["base.py: self.pool.release(request)"]


def test_scheduling_imports_neither_torch_nor_a_clock():
    code = (
        "import sys, engine.scheduling.invariants, engine.scheduling.scheduler, engine.runtime.engine\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    for path in (ROOT / "engine" / "scheduling").rglob("*.py"):
        assert "import time" not in path.read_text(encoding="utf-8"), path
