"""What PagedAttention is famous for, on this engine and in counted quantities: room, waste, and the price of both."""

from __future__ import annotations

import pytest

from engine.lab.kv_use import kv_of_request
from engine.lab.records import Run
from engine.lab.replay import block_snapshots
from engine.lab.steps import computed_ends
from lessons.paged_attention.facts import Side, losses
from tests.fakes import VOCAB, as_run, drain, expected_output, make_engine, make_request

EOS = frozenset(range(0, VOCAB, 12))  # an answer has about twelve tokens
BLOCK, BLOCKS, PROMPT, NUM = 4, 60, 10, 20


def serve(policy: str, limit: int = 90, blocks: int = BLOCKS, eos: frozenset[int] = EOS, prefix: str = "none") -> Run:
    engine = make_engine(policy, BLOCK, requests=NUM, tokens=64, blocks=blocks, prefix=prefix)
    for number in range(NUM):
        engine.add(make_request(f"r{number}", PROMPT, limit), eos_token_ids=eos)
    return as_run(engine, drain(engine))


def test_a_reservation_lets_in_what_the_limit_allows_and_paging_what_the_tokens_need() -> None:
    reserved, paged = Side(serve("orca")), Side(serve("paged"))
    assert reserved.peak == BLOCKS // -(-(PROMPT + 90) // BLOCK) == 2
    assert paged.peak >= 5 * reserved.peak


def test_the_limit_costs_nothing_on_demand() -> None:
    runs = {limit: (serve("orca", limit), serve("paged", limit)) for limit in (45, 90)}
    assert Side(runs[45][0]).peak == 4 and Side(runs[90][0]).peak == 2
    shapes = [[s.scheduled for s in runs[limit][1].steps] for limit in (45, 90)]
    assert shapes[0] == shapes[1], "under paged every step is the same, whatever was allowed"


def test_on_demand_less_than_a_block_of_each_request_is_ever_empty() -> None:
    run = serve("paged")
    computed: dict[str, int] = {}
    for step, snapshot in zip(run.steps, block_snapshots(run), strict=True):
        computed |= computed_ends(step)
        for name, table in snapshot.tables.items():
            assert 0 <= len(table) * BLOCK - computed[name] < BLOCK


def test_reserved_most_of_what_is_set_aside_is_never_used() -> None:
    reserved, paged = serve("orca"), serve("paged")
    for record in reserved.requests:
        last = kv_of_request(reserved, record.request_id)[-1]
        assert last.num_blocks == -(-(PROMPT + 90) // BLOCK)
        assert last.num_tokens == PROMPT + record.num_output_tokens - 1
    assert sum(Side(reserved).never_used.values()) > 10 * sum(Side(paged).never_used.values())
    assert Side(reserved).share_used < 0.3 and Side(paged).share_used > 0.85


@pytest.mark.parametrize("blocks", [26, 34, 60])
def test_preemption_costs_exactly_the_positions_thrown_away_and_no_word(blocks: int) -> None:
    run = serve("paged", 60, blocks, eos=frozenset())
    lost = losses(run)
    assert lost and sum(r.num_preemptions for r in run.requests) == len(lost)
    once = sum(r.num_prompt_tokens + r.num_output_tokens - 1 for r in run.requests)
    assert Side(run).num_computed == once + sum(loss.num_positions for loss in lost)
    for record in run.requests:
        prompt = make_request(record.request_id, PROMPT).prompt_token_ids
        assert record.output_token_ids == expected_output(prompt, 60)


def test_reserving_never_preempts_and_a_smaller_pool_preempts_more() -> None:
    assert not losses(serve("orca", 60, 34, eos=frozenset()))
    counts = [Side(serve("paged", 60, blocks, eos=frozenset())).num_lost for blocks in (400, 120, 34)]
    assert counts[0] == 0 < counts[1] < counts[2]


def test_a_preempted_request_finds_the_blocks_that_nobody_took() -> None:
    alone, cached = (serve("paged", 60, 60, eos=frozenset(), prefix=kind) for kind in ("none", "hash"))
    assert losses(cached) and Side(cached).num_computed < Side(alone).num_computed
