"""Shortest job first, the worked example: the order of admission, what it gains on average and whom it starves."""

import statistics

from engine.lab.latency import request_metrics
from tests.fakes import drain, expected_output, make_engine, make_request

LENGTHS = {"long": 40, "short": 2, "middle": 12, "tied": 2}


def serve(policy):
    engine = make_engine(policy, requests=1, tokens=8)
    for i, (name, max_tokens) in enumerate(LENGTHS.items()):
        engine.add(make_request(name, 4, max_tokens=max_tokens, arrival_s=i / 1000))
    return engine, drain(engine)


def test_the_fewest_tokens_go_first_and_ties_by_arrival():
    _, records = serve("shortest_first")
    assert [name for r in records for name in r.admitted] == ["long", "short", "tied", "middle"]  # long came alone


def test_prompt_and_output_both_count():
    engine = make_engine("shortest_first", requests=1)
    engine.add(make_request("runs", 2, max_tokens=2))
    engine.add(make_request("long prompt", 9, max_tokens=2, arrival_s=0.001))
    engine.add(make_request("long output", 2, max_tokens=8, arrival_s=0.001))
    assert [name for r in drain(engine) for name in r.admitted] == ["runs", "long output", "long prompt"]


def test_the_mean_latency_is_shorter_than_in_order_of_arrival():
    def mean_e2e(policy):
        return statistics.fmean(request_metrics(r).e2e_s for r in serve(policy)[0].request_records())

    assert mean_e2e("shortest_first") < mean_e2e("chunked")


def test_a_steady_stream_of_short_requests_starves_a_long_one():
    engine = make_engine("shortest_first", requests=1)
    engine.add(make_request("first", 2, max_tokens=2))
    engine.add(make_request("long", 2, max_tokens=30, arrival_s=0.001))
    for i in range(100):
        engine.add(make_request(f"r{i}", 2, max_tokens=1, arrival_s=0.009 * i))
    records = drain(engine)
    steps = {name: r.step for r in records for name in r.admitted}
    assert steps["long"] > max(step for name, step in steps.items() if name != "long")


def test_the_tokens_are_those_of_the_model():
    engine, _ = serve("shortest_first")
    for request in engine.scheduler.requests.values():
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)
