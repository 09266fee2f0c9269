"""Files of other tools become Runs with the same latencies, and say what they lack; everything else is one sentence."""

from __future__ import annotations

import json

import pytest

from engine.lab.check import CheckError
from engine.lab.export import to_chrome
from engine.lab.imports import ImportFileError, import_run
from engine.lab.latency import request_metrics
from engine.lab.metrics import run_metrics, token_times
from engine.lab.observed import check_observed, gaps_s
from engine.lab.records import RunFileError
from tests.unit.lab_runs import chunked_scenario, make_run, preempting_scenario

RUN_ID = "run-0123456789ab"


def vllm(**fields: object) -> dict:
    """What ``vllm bench serve --save-detailed`` writes, in small."""
    return {
        "date": "20261101-120000",
        "backend": "vllm",
        "model_id": "meta/small",
        "num_prompts": 2,
        "request_rate": 2.0,
        "request_throughput": 1.0,
        "start_times": [1000.5, 1000.0],
        "input_lens": [12, 30],
        "output_lens": [3, 2],
        "ttfts": [0.1, 0.25],
        "itls": [[0.02, 0.03], [0.04]],
        "errors": ["", ""],
        **fields,
    }


def read(data: dict | str):
    return import_run(data if isinstance(data, str) else json.dumps(data), "result.json", RUN_ID)


def test_a_result_of_vllm_keeps_its_times() -> None:
    run = read(vllm())
    first, second = map(request_metrics, run.requests)
    assert (first.arrival_s, second.arrival_s) == pytest.approx((0.5, 0.0))
    assert (first.ttft_s, second.ttft_s) == pytest.approx((0.1, 0.25))
    assert first.tpot_s == pytest.approx(0.025) and gaps_s(run, "r0") == pytest.approx((0.02, 0.03))
    assert [r.num_prompt_tokens for r in run.requests] == [12, 30]
    assert run_metrics(run).output_tokens_per_s == pytest.approx(5 / 0.65)
    lacks = run.header.observed.lacks
    assert {"steps", "queue", "blocks"} <= set(lacks) and not {"arrivals", "single_tokens"} & set(lacks)


def test_what_a_result_lacks_is_said() -> None:
    without = {k: v for k, v in vllm().items() if k != "start_times"}
    assert "arrivals" in read(without).header.observed.lacks
    assert "arrivals" not in read({**without, "request_rate": "inf"}).header.observed.lacks
    failed = read(vllm(errors=["", "connection reset"]))
    assert len(failed.requests) == 1 and "failed_requests" in failed.header.observed.lacks
    several = read(vllm(output_lens=[6, 2]))
    assert several.requests[0].num_output_tokens == 6 and "single_tokens" in several.header.observed.lacks


def test_results_appended_to_one_file_are_read_from_its_end() -> None:
    text = json.dumps(vllm(model_id="old")) + "\n" + json.dumps(vllm(model_id="new")) + "\n"
    assert read(text).header.model.name == "new"


@pytest.mark.parametrize("scenario", [chunked_scenario, preempting_scenario])
def test_our_own_trace_comes_back_with_the_same_latencies(scenario) -> None:
    run = make_run(scenario())
    back = read(to_chrome(run))
    assert [r.request_id for r in back.requests] == [r.request_id for r in run.requests]
    for before, after in zip(run.requests, back.requests, strict=True):
        old, new = request_metrics(before), request_metrics(after)
        assert (new.ttft_s, new.tpot_s, new.e2e_s) == pytest.approx((old.ttft_s, old.tpot_s, old.e2e_s), abs=1e-6)
        times = [token.t_s for token in token_times(run)[before.request_id]]
        assert after.token_times_s == pytest.approx(times, abs=1e-6)
        assert after.num_prompt_tokens in (0, before.num_prompt_tokens)


def test_a_run_file_is_read_and_checked() -> None:
    run = make_run(chunked_scenario())
    assert read(run.to_jsonl()) == run
    broken = run.model_copy(deep=True)
    broken.requests[0].num_output_tokens += 1
    with pytest.raises(CheckError):
        read(broken.to_jsonl())
    with pytest.raises(RunFileError):
        read(run.to_jsonl()[:-30])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("hello", "not JSON"),
        ("[1, 2]", "a JSON list"),
        ("[" * 100_000, "not JSON"),
        ({"a": 1}, "none of the files"),
        ({"traceEvents": []}, "without tracks of requests"),
        ({"traceEvents": "no"}, "without tracks of requests"),
        ({"traceEvents": [{"ph": "X", "pid": 2, "tid": 1, "name": "gemm", "ts": 1, "dur": 2}]}, "without tracks"),
        ({"request_throughput": 3.0}, "--save-detailed"),
        (vllm(itls=[[0.1]]), "--save-detailed"),
        (vllm(ttfts=[]) | {"itls": []}, "0 requests"),
        (vllm(ttfts=["a", 1]), "ttfts"),
        (vllm(ttfts=[0.1, -2]), "ttfts"),
        (vllm(errors=["a", "b"]), "no request that succeeded"),
    ],
)
def test_another_file_is_refused_with_a_sentence(content: dict | str, sentence: str) -> None:
    with pytest.raises(ImportFileError, match=sentence):
        read(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: setattr(run.requests[0], "token_times_s", [0.7, 0.6]),
        lambda run: setattr(run.requests[0], "arrival_s", 0.9),
        lambda run: setattr(run.requests[0], "completion_s", 0.61),
        lambda run: setattr(run.requests[0], "first_token_s", 0.5),
        lambda run: setattr(run.requests[0], "num_output_tokens", 1),
        lambda run: setattr(run.requests[0], "num_preemptions", 1),
        lambda run: setattr(run.requests[1], "request_id", "r0"),
        lambda run: run.steps.extend(make_run(chunked_scenario()).steps),
    ],
)
def test_an_observed_run_that_cannot_be_is_refused(spoil) -> None:
    run = read(vllm())
    check_observed(run)
    spoil(run)
    with pytest.raises(CheckError):
        check_observed(run)
