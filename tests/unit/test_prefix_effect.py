"""What prefix caching is famous for, on this engine and in counted quantities: prompt tokens that are not computed."""

from __future__ import annotations

import pytest

from engine.lab.prefix_use import prefix_use
from engine.lab.records import Run
from engine.scheduling.requests import Request
from lessons.prefix_caching.facts import Side, sections
from tests.fakes import as_run, drain, expected_output, make_engine
from tests.unit.lesson_cases import prefix_caching as cases

BLOCK, COMMON, BRANCH, OWN, OUTPUT = 4, 16, 24, 5, 3
GROUPS, EACH = 4, 3


def prompt(group: int, number: int) -> list[int]:
    """A beginning that all have, a part that the group has, and a part of its own."""
    return [7] * COMMON + [20 + group] * BRANCH + [40 + number, group, 60, 61, number][:OWN]


def serve(kind: str, policy: str = "chunked", blocks: int = 400, block_size: int = BLOCK, places: int = 1) -> Run:
    """The groups take turns; everybody is there at the start."""
    engine = make_engine(policy, block_size, requests=places, tokens=64, blocks=blocks, prefix=kind)
    for number in range(EACH):
        for group in range(GROUPS):
            engine.add(Request(f"{'ABCD'[group]}{number}", prompt(group, number), OUTPUT))
    return as_run(engine, drain(engine))


ALL = GROUPS * EACH * (COMMON + BRANCH + OWN)
DISTINCT = COMMON + GROUPS * BRANCH + GROUPS * EACH * OWN  # each part of the tree once


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_with_room_every_part_of_the_tree_is_computed_once(kind: str) -> None:
    assert Side(serve("none")).num_prefilled == ALL
    assert Side(serve(kind)).num_prefilled == DISTINCT
    assert prefix_use(serve(kind)).num_cached_tokens == ALL - DISTINCT


def test_chain_and_tree_find_the_same_for_every_request() -> None:
    for blocks in (14, 20, 26, 400):
        assert Side(serve("hash", blocks=blocks)).found == Side(serve("radix", blocks=blocks)).found


def test_in_order_of_arrival_a_small_pool_forgets_what_comes_next_and_the_caches_order_does_not() -> None:
    blocks = 20  # one request and a branch beside it: a second group's report does not survive until its turn
    arrival, aware = Side(serve("radix", blocks=blocks)), Side(serve("radix", "cache_aware", blocks))
    assert arrival.num_prefilled == ALL - (GROUPS * EACH - 1) * COMMON, "only what all have in common is found"
    assert aware.num_prefilled == DISTINCT, "as if there were room for everything"
    assert aware.use.num_evicted_blocks < arrival.use.num_evicted_blocks
    assert [name[0] for name in aware.served] == sorted(name[0] for name in aware.served), "branch by branch"
    assert [name[0] for name in arrival.served] == ["A", "B", "C", "D"] * EACH


def test_a_hit_saves_no_decode_step_and_changes_no_answer() -> None:
    runs = [
        serve(kind, policy, 20) for kind, policy in (("none", "chunked"), ("hash", "chunked"), ("radix", "cache_aware"))
    ]
    for run in runs:
        assert sum(row.phase == "decode" for step in run.steps for row in step.scheduled) == GROUPS * EACH * (
            OUTPUT - 1
        )
        for record in run.requests:
            group, number = "ABCD".index(record.request_id[0]), int(record.request_id[1])
            assert record.output_token_ids == expected_output(prompt(group, number), OUTPUT)


def test_what_is_found_shrinks_with_the_size_of_a_block() -> None:
    found = [prefix_use(serve("radix", block_size=size)).num_cached_tokens for size in (1, 4, 16, 64)]
    assert found == sorted(found, reverse=True) and found[-1] == 0
    assert found[0] == ALL - DISTINCT, "down to the last common token"


def test_where_seconds_are_unsteady_the_caveat_comes_before_any_of_them() -> None:
    assert sections(cases.RUNS["as offered"]())[2] == "note_decode"
    unsteady = sections(cases.RUNS["busy"]())
    assert unsteady[2] == "note_noisy" and not {"note_decode", "note_ttft"} & set(unsteady)
