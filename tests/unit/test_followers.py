"""Requests that follow others: their text, their arrival, what the check says about them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.lab.check import CheckError, check_run
from engine.lab.records import Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.runtime.lab import LabRuntime
from engine.settings import Settings

RUN_ID = "run-0123456789ab"
LEADER = {"request_id": "write", "prompt": "Once upon a time", "max_tokens": 9, "ignore_eos": True}
READER = {"request_id": "read", "follows": "write", "max_tokens": 1}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LabRuntime:
    home: Path = tmp_path_factory.mktemp("home")
    return LabRuntime(Settings(home, f"sqlite:///{home}/lab.sqlite3", 8600, "tiny-random"))


def scenario(*requests: dict, **fields: object) -> Scenario:
    return Scenario.parse({"model": "tiny-random", "requests": list(requests)} | fields)


def serve(runtime: LabRuntime, wanted: Scenario) -> Run:
    return runtime.run(runtime.prepare(wanted), RUN_ID).run


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_a_follower_reads_the_whole_text_in_one_pass(runtime: LabRuntime, policy: str) -> None:
    run = serve(runtime, scenario(LEADER, READER, policy=policy))
    check_run(run)
    write, read = run.requests
    assert read.num_prompt_tokens == write.num_prompt_tokens + write.num_output_tokens == 16 + 9
    assert read.arrival_s == write.completion_s
    assert read.first_scheduled_s >= write.completion_s
    last = run.steps[-1]
    assert [(r.request_id, r.start, r.num_tokens, r.phase) for r in last.scheduled] == [("read", 0, 25, "prefill")]


def test_a_follower_may_bring_its_own_prompt_wait_and_be_followed(runtime: LabRuntime) -> None:
    second = {"request_id": "b", "follows": "write", "prompt_token_ids": [4, 5, 6], "max_tokens": 2, "arrival_s": 0.05}
    third = {"request_id": "c", "follows": "b", "prompt": "xy", "max_tokens": 2}
    aside = {"request_id": "d", "prompt": "x", "max_tokens": 3}
    run = serve(runtime, scenario(LEADER, second, third, aside))
    check_run(run)
    records = {r.request_id: r for r in run.requests}
    assert records["b"].num_prompt_tokens == 25 + 3
    assert records["b"].arrival_s == pytest.approx(records["write"].completion_s + 0.05)
    assert records["c"].num_prompt_tokens == 28 + 2 + 2
    assert records["d"].first_scheduled_s < records["write"].completion_s


def test_the_same_text_prompted_at_once_gives_the_same_token(runtime: LabRuntime) -> None:
    run = serve(runtime, scenario({**LEADER, "prompt": None, "prompt_token_ids": [7, 8, 9]}, READER))
    text = [7, 8, 9, *run.requests[0].output_token_ids]
    alone = serve(runtime, scenario({"prompt_token_ids": text, "max_tokens": 1, "ignore_eos": True}))
    assert run.requests[1].output_token_ids == alone.requests[0].output_token_ids


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        (lambda run: setattr(run.requests[1], "arrival_s", 0.0), "arrival"),
        (lambda run: setattr(run.requests[1], "num_prompt_tokens", 24), "prompt_tokens"),
        (lambda run: setattr(run.requests[0], "completion_s", None), "arrival"),
        (lambda run: run.requests.reverse(), "request_known"),
    ],
)
def test_a_record_that_does_not_follow_is_found(runtime: LabRuntime, change, invariant: str) -> None:
    run = serve(runtime, scenario(LEADER, READER))
    change(run)
    with pytest.raises(CheckError) as caught:
        check_run(run)
    assert caught.value.invariant == invariant


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([READER, LEADER], "stands before it"),
        ([{**READER, "follows": "read"}], "stands before it"),
        ([LEADER, {**READER, "chat": True, "prompt": "x"}], "leave out chat"),
        ([LEADER, {**READER, "num_prompt_tokens": 3}], "leave out chat"),
        ([LEADER, {**READER, "prompt": "x", "prompt_token_ids": [1]}], "exactly one"),
        ([{"max_tokens": 1}], "exactly one"),
    ],
)
def test_what_nobody_can_follow_is_refused(requests: list[dict], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        scenario(*requests)


def test_the_whole_conversation_must_fit_the_positions(runtime: LabRuntime) -> None:
    long = {**LEADER, "max_tokens": 8_000}
    with pytest.raises(ScenarioError, match="request b has 8016 prompt tokens"):
        runtime.prepare(scenario(long, {"request_id": "b", "follows": "write", "max_tokens": 500}))
