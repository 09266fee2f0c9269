"""What chunked prefill is famous for, counted on the real scheduler: no decode stands still, no step is too large.

Then the same accounting under preemption and under reservation, against figures worked out by hand.
"""

from __future__ import annotations

import pytest

from engine.lab.records import Run
from engine.lab.stalls import empty_blocks, held_steps, token_gaps, worst_gap
from tests.fakes import as_run, drain, make_engine, make_request
from tests.unit.lab_runs import make_run, preempting_scenario

DECODERS = [f"d{i}" for i in range(3)]
PROMPT = 48


def run_with_a_long_prompt(policy: str, budget: int) -> Run:
    """Three requests decode; while they do, a prompt of 48 tokens arrives."""
    engine = make_engine(policy, tokens=budget, requests=4, blocks=64)
    for name in DECODERS:
        engine.add(make_request(name, 4, max_tokens=40))
    engine.add(make_request("long", PROMPT, max_tokens=2, arrival_s=0.055))
    records = drain(engine)
    return as_run(engine, records)


def gaps_of_the_others(run: Run) -> list:
    return [gap for name in DECODERS for gap in token_gaps(run)[name]]


def test_prefill_first_makes_every_decoder_stand_still_for_the_whole_prompt():
    run = run_with_a_long_prompt("paged", 256)
    assert {name: held_steps(run)[name] for name in DECODERS} == dict.fromkeys(DECODERS, 1)
    worst = max(gaps_of_the_others(run), key=lambda gap: gap.num_tokens)
    assert worst.num_tokens == PROMPT + len(DECODERS) + 1  # the prompt, then one token for each of the four
    assert worst.num_held_steps == 1 and len(worst.steps) == 2


@pytest.mark.parametrize("budget", [5, 8, 12, 16, 32])
def test_chunked_prefill_never_leaves_a_decoder_out_and_keeps_every_step_within_the_budget(budget: int):
    run = run_with_a_long_prompt("chunked", budget)
    gaps = gaps_of_the_others(run)
    assert all(len(gap.steps) == 1 and gap.num_held_steps == 0 for gap in gaps)
    assert max(gap.num_tokens for gap in gaps) == budget
    chunks = [row.num_tokens for step in run.steps for row in step.scheduled if row.request_id == "long"]
    prompt_chunks = chunks[:-1]  # the last one is the decode of its second token
    assert sum(prompt_chunks) == PROMPT
    assert len(prompt_chunks) == -(-PROMPT // (budget - len(DECODERS))), "the smaller the budget, the more steps"


def test_a_budget_alone_does_not_help_if_prompts_still_go_first():
    run = run_with_a_long_prompt("paged", 16)
    assert {held_steps(run)[name] for name in DECODERS} == {3}, "48 tokens cut to 16: three steps without a decode"


def test_everybody_gets_the_same_tokens_either_way():
    outputs = [
        {r.request_id: r.output_token_ids for r in run_with_a_long_prompt(policy, budget).requests}
        for policy, budget in (("paged", 256), ("paged", 16), ("chunked", 8), ("chunked", 32))
    ]
    assert all(other == outputs[0] for other in outputs[1:])


# ------------------------------------------------------------------ the accounting itself
def test_a_gap_knows_that_its_request_was_preempted_and_does_not_call_that_held():
    run = make_run(preempting_scenario())
    preempted = {name for step in run.steps for name in step.preempted}
    assert preempted
    gaps = [gap for found in token_gaps(run).values() for gap in found]
    assert {gap.request_id for gap in gaps if gap.was_preempted} <= preempted
    assert any(gap.was_preempted for gap in gaps)
    refused = [r.request_id for step in run.steps for r in step.refused]
    long_ones = [gap for gap in gaps if gap.was_preempted and len(gap.steps) > 1]
    assert all(gap.num_held_steps < len(gap.steps) and gap.request_id in refused for gap in long_ones)
    assert sum(len(found) for found in token_gaps(run).values()) == sum(r.num_output_tokens - 1 for r in run.requests)
    assert worst_gap(run).seconds == max(gap.seconds for gap in gaps)


def test_reserved_blocks_stand_empty_until_their_tokens_come():
    engine = make_engine("orca", block_size=4, tokens=64, requests=2, blocks=32)
    engine.add(make_request("a", 8, max_tokens=9))
    run = as_run(engine, drain(engine))
    # 8 + 9 tokens reserve 5 blocks; the prompt fills 2, position 8 begins the third, 12 the fourth, 16 is never stored
    assert empty_blocks(run) == (3, 2, 2, 2, 2, 1, 1, 1, 0)
    on_demand = make_engine("paged", block_size=4, tokens=64, requests=2, blocks=32)
    on_demand.add(make_request("a", 8, max_tokens=9))
    assert set(empty_blocks(as_run(on_demand, drain(on_demand)))) == {0}


def test_a_run_without_gaps_has_no_worst_one():
    engine = make_engine()
    engine.add(make_request("a", 3, max_tokens=1))
    run = as_run(engine, drain(engine))
    assert worst_gap(run) is None and token_gaps(run) == {"a": ()} and held_steps(run) == {"a": 0}
