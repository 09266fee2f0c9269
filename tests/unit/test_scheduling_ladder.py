"""What each rung of the ladder is famous for, counted on the real scheduler with the fake model: no seconds."""

from __future__ import annotations

import pytest

from lessons.facts_error import FactsError
from lessons.scheduling_ladder.facts import ladder
from lessons.scheduling_ladder.rungs import Rung, admitted_midway, recomputed_tokens, refused_steps
from lessons.scheduling_ladder.scenarios import ORDER, PLACES, PREVIOUS, RUNGS, rung
from tests.unit.lesson_cases.scheduling_ladder import climb


@pytest.fixture(scope="module")
def scarce() -> dict[str, Rung]:
    return ladder(climb())


@pytest.fixture(scope="module")
def plenty() -> dict[str, Rung]:
    return ladder(climb(num_blocks=46))


def test_orca_removes_the_padding_and_lets_requests_join_before_the_batch_has_drained(scarce):
    static, orca = scarce["static"], scarce["orca"]
    assert static.padding_tokens == 168 and orca.padding_tokens == 0
    assert static.admitted_midway == 0 and orca.admitted_midway >= len(ORDER) - PLACES
    assert orca.num_steps < 0.7 * static.num_steps
    assert set(static.refusals()) >= {"batch_not_drained"} and "batch_not_drained" not in orca.refusals()


def test_paged_runs_more_requests_in_the_memory_that_orca_reserves_and_leaves_empty(scarce):
    orca, paged = scarce["orca"], scarce["paged"]
    assert orca.most_at_once < paged.most_at_once == PLACES
    assert orca.mean_empty_blocks > 5 * paged.mean_empty_blocks
    assert orca.refusals()["no_blocks"] > 2 * paged.refusals()["no_blocks"]
    assert orca.num_preemptions == 0, "it has paid in advance"


def test_chunked_leaves_no_decode_out_of_a_step_where_prefill_first_does(scarce):
    paged, chunked = scarce["paged"], scarce["chunked"]
    assert paged.held_steps > 20 and chunked.held_steps == 0
    assert max(step.work.tokens for step in chunked.run.steps) <= 64
    assert chunked.num_steps < paged.num_steps, "prompts and decodes share steps"
    assert recomputed_tokens(chunked.run) > 0 == recomputed_tokens(scarce["orca"].run)


def test_cache_aware_computes_fewer_tokens_because_it_finds_more_of_the_prompts(scarce):
    chunked, aware = scarce["chunked"], scarce["cache_aware"]
    assert aware.cached_tokens > 2 * chunked.cached_tokens
    assert aware.computed_tokens < 0.75 * chunked.computed_tokens
    assert aware.held_steps == 0


def test_no_rung_changes_what_anybody_is_told(scarce, plenty):
    def outputs(one: Rung) -> dict[str, list[int]]:
        return {r.request_id: r.output_token_ids for r in one.run.requests}

    told = [outputs(one) for found in (scarce, plenty) for one in found.values()]
    assert all(other == told[0] for other in told[1:])


def test_a_rung_pays_only_where_the_waste_it_removes_occurs(plenty):
    assert plenty["orca"].refusals()["no_blocks"] == 0
    assert plenty["paged"].most_at_once == plenty["orca"].most_at_once
    assert plenty["paged"].held_steps > plenty["orca"].held_steps == 0, "the price without the gain"
    assert plenty["cache_aware"].cached_tokens <= plenty["chunked"].cached_tokens
    assert plenty["cache_aware"].num_steps > plenty["chunked"].num_steps


def test_why_a_request_waited_is_what_the_scheduler_recorded(scarce):
    for policy, why in (("static", "batch_not_drained"), ("orca", "no_blocks")):
        counts = refused_steps(scarce[policy].run, "S3")
        assert counts.most_common(1)[0][0] == why
        recorded = [r.why for s in scarce[policy].run.steps for r in s.refused if r.request_id == "S3"]
        assert counts.total() == len(recorded)


def test_rungs_of_different_workloads_are_not_set_side_by_side(scarce):
    runs = {policy: one.run for policy, one in scarce.items()}
    other = climb(num_blocks=46)["paged"]
    with pytest.raises(FactsError, match="different requests or limits"):
        ladder(runs | {"paged": other})
    with pytest.raises(FactsError, match="no run of orca"):
        ladder({policy: run for policy, run in runs.items() if policy != "orca"})


def test_the_parts_differ_in_the_policy_alone():
    scenarios = [rung(policy, lang=lang) for lang in ("en", "zh") for policy in RUNGS]
    for group in (scenarios[:5], scenarios[5:]):
        assert len({s.model_copy(update={"policy": "static", "name": ""}).model_dump_json() for s in group}) == 1
    assert [s.policy for s in scenarios[:5]] == list(RUNGS) and PREVIOUS["orca"] == "static"
    assert admitted_midway(climb(num_blocks=46)["static"]) == 0
