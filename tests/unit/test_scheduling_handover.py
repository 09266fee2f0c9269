"""The two sides of a disaggregated engine, without processes: who holds which block when, and hundreds of workloads."""

from __future__ import annotations

import random

import pytest

from engine.lab.check import check_run
from engine.lab.handover import prompt_tokens_beside, transfers
from engine.lab.records import Run
from engine.lab.scenario import Limits, Scenario
from engine.scheduling.handover import PrefillSide, arrive_computed, positions_needed, split_blocks
from engine.scheduling.requests import Request
from engine.scheduling.scheduler import Scheduler, ends_at_max_tokens
from tests.fakes import VOCAB, expected_output
from tests.unit.lesson_runs import serve


def side(num_blocks: int = 8) -> Scheduler:
    limits = Limits(max_requests=4, max_batch_tokens=64, num_blocks=num_blocks)
    return Scheduler("chunked", limits, 4, policies={"chunked": PrefillSide})


def prefilled(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add(request)
    chunks = scheduler.chunks(scheduler.decide(0.0))
    scheduler.commit(chunks, [7] * len(chunks), ends_at_max_tokens)


def test_blocks_of_a_computed_prompt_stay_until_they_have_been_sent():
    scheduler, request = side(), Request("a", [1] * 9, 1)
    prefilled(scheduler, request)
    assert scheduler.policy.leaving == {"a": request} and not scheduler.policy.running
    assert scheduler.pool.num_in_use == 3
    scheduler.policy.sent("a")
    assert scheduler.pool.num_in_use == 0 and not scheduler.policy.leaving


def test_an_abort_does_not_free_what_is_being_read():
    scheduler = side()
    prefilled(scheduler, Request("a", [1] * 9, 1))
    scheduler.abort("a", 1.0)
    assert scheduler.pool.num_in_use == 3, "the sender still reads these blocks"
    scheduler.policy.sent("a")
    assert scheduler.pool.num_in_use == 0


def test_an_abort_before_the_prompt_is_computed_frees_at_once():
    scheduler = side()
    scheduler.add(Request("a", [1] * 9, 1))
    scheduler.decide(0.0)
    assert scheduler.pool.num_in_use == 3
    scheduler.abort("a", 1.0)
    assert scheduler.pool.num_in_use == 0


def test_a_newcomer_waits_for_the_blocks_of_those_that_are_being_sent():
    scheduler = side(num_blocks=3)
    prefilled(scheduler, Request("a", [1] * 9, 1))
    scheduler.add(Request("b", [1] * 9, 1))
    assert scheduler.decide(1.0).refused == [("b", "no_blocks")]
    scheduler.policy.sent("a")
    assert scheduler.decide(2.0).admitted == ["b"]


def test_who_wants_one_token_only_goes_nowhere():
    scheduler = side()
    scheduler.policy.complete = frozenset({"a"})
    prefilled(scheduler, Request("a", [1] * 9, 1))
    assert not scheduler.policy.leaving and scheduler.pool.num_in_use == 0


def test_a_request_arrives_with_its_prompt_computed_and_one_token_to_go():
    request = arrive_computed(Request("a", [1, 2, 3], 5), 9, now_s=2.0, first_token_s=1.5)
    assert (request.num_computed_tokens, request.num_remaining_tokens, request.phase) == (3, 1, "decode")
    assert request.output_token_ids == [9]


@pytest.mark.parametrize(("num_blocks", "halves"), [(2, (1, 1)), (7, (3, 4)), (64, (32, 32))])
def test_each_side_gets_half(num_blocks: int, halves: tuple[int, int]):
    assert split_blocks(num_blocks) == halves
    assert positions_needed(10, 5) == (11, 15)


# ------------------------------------------------------------------ workloads
def workload(seed: int) -> Scenario:
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    requests = [
        {
            "arrival_s": rng.choice([0.0, round(rng.random(), 3)]),
            "prompt_token_ids": [rng.randrange(4, VOCAB) for _ in range(rng.randint(1, 60))],
            "max_tokens": rng.randint(1, 30),
            "ignore_eos": rng.random() < 0.5,
        }
        for _ in range(rng.randint(1, 8))
    ]
    return Scenario.parse(
        {
            "limits": {
                "max_requests": rng.randint(1, 5),
                "max_batch_tokens": rng.choice([8, 32, 256]),
                "num_blocks": rng.choice([190, 260, 900]) // block_size + 2,
            },
            "block_size": block_size,
            "disaggregated": {"link_mb_per_s": rng.choice([None, 5, 50])},
            "requests": requests,
        }
    )


def assert_same_as_alone(run: Run, eos: frozenset[int]) -> None:
    for spec, record in zip(run.header.scenario["requests"], run.requests, strict=True):
        ends = frozenset() if spec["ignore_eos"] else eos
        assert record.output_token_ids == expected_output(spec["prompt_token_ids"], spec["max_tokens"], ends)


@pytest.mark.parametrize("seed", range(40))
def test_any_workload_gives_the_tokens_of_one_engine_and_a_run_that_can_be(seed: int):
    eos = frozenset(range(10))
    run = serve(workload(seed), eos=eos)
    check_run(run)
    assert_same_as_alone(run, eos)
    assert len(transfers(run)) == sum(r.num_output_tokens > 1 for r in run.requests)
    if not any(r.num_preemptions for r in run.requests):  # a preempted prompt is computed again, on the decode side
        assert not any(prompt_tokens_beside(run, r.request_id) for r in run.requests)


def test_the_workloads_are_hard_enough():
    runs = [serve(workload(seed), eos=frozenset(range(10))) for seed in range(40)]
    steps = [step for run in runs for step in run.steps]
    assert any(r.num_preemptions for run in runs for r in run.requests)
    assert {w for step in steps for r in step.refused for w in [step.worker]} == {"prefill", "decode"}
    assert any(r.finish_reason == "stop" for run in runs for r in run.requests)
