"""Serving without a KV cache: the same tokens, every one at the price of the whole text so far."""

from __future__ import annotations

import pytest

from engine.lab.check import check_run
from engine.lab.scenario import Scenario, ScenarioError
from engine.scheduling.policies import POLICIES
from tests.fakes import expected_output
from tests.unit.lab_runs import make_run, prompt

FORGETTING = [name for name in POLICIES if name != "static"]


def scenario(policy: str = "chunked", kv_cache: str = "none", **limits: int) -> dict:
    return {
        "policy": policy,
        "block_size": 4,
        "limits": {"max_requests": 3, "max_batch_tokens": 64, "num_blocks": 64, "kv_cache": kv_cache} | limits,
        "requests": [
            {"request_id": "A", "prompt_token_ids": prompt(5), "max_tokens": 9, "ignore_eos": True},
            {"request_id": "B", "prompt_token_ids": prompt(1, 20), "max_tokens": 4, "ignore_eos": True},
            {"request_id": "C", "prompt_token_ids": prompt(8, 40), "max_tokens": 1, "ignore_eos": True},
            {"request_id": "D", "prompt_token_ids": prompt(3, 60), "max_tokens": 6, "arrival_s": 0.03},
        ],
    }


@pytest.mark.parametrize("policy", FORGETTING)
@pytest.mark.parametrize("limits", [{}, {"max_batch_tokens": 7}, {"max_batch_tokens": 1}, {"num_blocks": 6}], ids=str)
def test_the_tokens_are_those_of_a_run_with_a_cache(policy: str, limits: dict) -> None:
    run = make_run(scenario(policy, **limits))
    check_run(run)
    for record, spec in zip(run.requests, scenario()["requests"], strict=True):
        assert record.output_token_ids == expected_output(spec["prompt_token_ids"], spec["max_tokens"])


def test_alone_each_token_is_one_pass_over_the_whole_text() -> None:
    wanted = scenario(max_requests=1)
    wanted["requests"] = wanted["requests"][:1]
    run = make_run(wanted)
    rows = [(row.start, row.num_tokens, row.phase) for step in run.steps for row in step.scheduled]
    assert rows == [(0, 5, "prefill"), *((0, n, "recompute") for n in range(6, 14))]
    assert [step.blocks.in_use for step in run.steps] == [*(-(-n // 4) for n in range(5, 13)), 0]
    kept = make_run({**wanted, "limits": {**wanted["limits"], "kv_cache": "keep"}})
    assert kept.requests[0].output_token_ids == run.requests[0].output_token_ids
    assert [row.num_tokens for step in kept.steps for row in step.scheduled] == [5] + 8 * [1]
    assert sum(s.work.flops for s in run.steps) > 5 * sum(s.work.flops for s in kept.steps)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"policy": "static", "limits": {"kv_cache": "none"}}, "static batching keeps its batch"),
        ({"limits": {"kv_cache": "none", "prefix_cache": "hash"}}, "needs kv_cache keep"),
        ({"limits": {"kv_cache": "some"}}, "limits.kv_cache"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        Scenario.parse({"requests": [{"prompt": "x"}]} | fields)
