"""The engine's step and its records: tokens, ends of requests, aborts at any moment, failures, times."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from engine.lab.scenario import ScenarioError
from engine.scheduling.invariants import StepChecker, check_empty
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from tests.fakes import FakeText, checked_step, drain, expected_output, make_engine, make_request


def workload(engine, num=5, eos=frozenset()):
    """Requests of several lengths that come one after the other; no two prompts begin alike."""
    requests = [
        make_request(f"r{i}", 2 + 5 * i % 11, max_tokens=3 + 4 * i % 9, arrival_s=0.007 * i) for i in range(num)
    ]
    for request in requests:
        engine.add(request, FakeText(), eos)
    return requests


# ---- a step and its record -----------------------------------------------------------------------------------------


def test_a_step_reads_decide_forward_commit_record():
    engine = make_engine(step_s=0.01)
    engine.add(make_request("a", 5, max_tokens=2))
    first, second = engine.step(), engine.step()
    assert engine.step() is None and not engine.has_work
    assert (first.step, first.policy, first.backend) == (0, "chunked", "eager")
    assert first.scheduled[0].model_dump() == {
        "request_id": "a",
        "start": 0,
        "num_tokens": 5,
        "phase": "prefill",
        "num_cached_tokens": 0,
        "is_last_chunk": True,
        "num_draft_tokens": 0,
    }
    assert (first.queues.waiting, first.queues.running, first.queues.finished) == (0, 1, 0)
    assert (first.admitted, first.preempted, first.refused) == (["a"], [], [])
    assert (first.work.tokens, first.time_ms.forward) == (5, pytest.approx(10))
    assert second.scheduled[0].phase == "decode"
    assert [(e.op, e.block_id) for e in second.block_events] == [("release", 1), ("release", 0)]
    assert second.blocks.in_use == 0
    assert [o.finish_reason for r in (first, second) for o in r.outputs] == [None, "length"]


def test_laps_add_up_to_the_step_and_a_tokens_time_is_its_steps_end():
    engine = make_engine(step_s=0.01)
    engine.add(make_request("a", 5, max_tokens=3, arrival_s=0.1))
    records = drain(engine)
    for record in records:
        total_ms = sum(record.time_ms.model_dump().values())
        assert total_ms == pytest.approx((record.t_end_s - record.t_begin_s) * 1000)
    (request,) = engine.request_records()
    assert request.arrival_s == 0.1
    assert request.first_scheduled_s == records[0].t_begin_s == pytest.approx(0.1)
    assert (request.first_token_s, request.completion_s) == (records[0].t_end_s, records[2].t_end_s)


def test_the_clock_can_start_after_preparation():
    engine = make_engine()
    engine.executor.clock.advance(5.0)
    engine.start_clock()
    engine.add(make_request("a", max_tokens=1))
    assert engine.step().t_begin_s == 0.0
    with pytest.raises(AssertionError, match="before its first step"):
        engine.start_clock()


def test_nothing_to_do_is_none_and_the_next_arrival_is_named():
    engine = make_engine()
    assert engine.step() is None and not engine.has_work
    engine.add(make_request("a", arrival_s=3.0))
    assert engine.step() is None
    assert engine.has_work and engine.next_arrival_s == 3.0


@pytest.mark.parametrize("policy", POLICIES)
def test_two_engines_and_two_runs_give_the_same_records(policy):
    def run():
        engine = make_engine(policy, blocks=8, tokens=8)
        workload(engine)
        return [record.model_dump() for record in drain(engine)], engine

    (first, one), (second, two) = run(), run()
    assert first == second
    assert one.request_records() == two.request_records()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
@pytest.mark.parametrize("tokens", [5, 8, 64])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_policy_cache_budget_and_block_size_do_not_change_the_tokens(policy, prefix, tokens, block_size):
    engine = make_engine(policy, block_size=block_size, tokens=tokens, blocks=64 // block_size, prefix=prefix)
    requests = workload(engine)
    for i in range(4):  # and some that begin alike, and like each other's output
        text = requests[0].prompt_token_ids + expected_output(requests[0].prompt_token_ids, 30)
        requests.append(Request(f"alike{i}", text[: 18 + 5 * i], max_tokens=6, arrival_s=0.05 * i))
        engine.add(requests[-1])
    drain(engine)
    for request in requests:
        assert request.output_token_ids == expected_output(request.prompt_token_ids, request.max_tokens)


# ---- how a request ends --------------------------------------------------------------------------------------------


def test_an_eos_token_ends_the_request_and_is_no_part_of_its_text():
    output = expected_output(make_request("a").prompt_token_ids, 6)
    engine, text = make_engine(), FakeText()
    engine.add(make_request("a", max_tokens=6), text, frozenset({output[3], -1}))
    drain(engine)
    (record,) = engine.request_records()
    end = output.index(output[3]) + 1
    assert (record.output_token_ids, record.finish_reason) == (output[:end], "stop")
    assert text.text == "".join(f"<{t}>" for t in output[: end - 1])
    assert text.num_finished == 1


def test_an_eos_as_the_very_first_token_costs_one_forward_pass():
    request = make_request("a", max_tokens=6)
    engine = make_engine()
    engine.add(request, FakeText(), frozenset(expected_output(request.prompt_token_ids, 1)))
    assert len(drain(engine)) == len(engine.executor.calls) == 1


def test_eos_can_be_ignored_and_stops_only_the_requests_whose_it_is():
    engine = make_engine()
    eos = frozenset(range(97))
    engine.add(make_request("ignores", max_tokens=4, ignore_eos=True), None, eos)
    engine.add(make_request("stops", max_tokens=4), None, eos)
    engine.add(make_request("has none", max_tokens=4))
    drain(engine)
    assert [(r.num_output_tokens, r.finish_reason) for r in engine.request_records()] == [
        (4, "length"),
        (1, "stop"),
        (4, "length"),
    ]


def test_a_stop_string_ends_the_request():
    output = expected_output(make_request("a").prompt_token_ids, 6)
    engine, text = make_engine(), FakeText(stop=f"<{output[2]}>")
    engine.add(make_request("a", max_tokens=6), text)
    drain(engine)
    (record,) = engine.request_records()
    end = output.index(output[2]) + 1
    assert (record.output_token_ids, record.finish_reason) == (output[:end], "stop")
    assert text.text == "".join(f"<{t}>" for t in output[: end - 1])


def test_a_request_that_stops_with_its_last_allowed_token_says_stop():
    output = expected_output(make_request("a").prompt_token_ids, 3)
    assert output[2] not in output[:2]
    engine = make_engine()
    engine.add(make_request("a", max_tokens=3), None, frozenset({output[2]}))
    drain(engine)
    assert engine.request_records()[0].finish_reason == "stop"


def test_text_deltas_are_those_of_the_step():
    engine = make_engine()
    a, b = make_request("a", max_tokens=2), make_request("b", max_tokens=1)
    engine.add(a, FakeText()), engine.add(b, FakeText())
    engine.step()
    assert engine.text_deltas == {"a": f"<{a.token_ids[-1]}>", "b": f"<{b.token_ids[-1]}>"}
    engine.step()
    assert engine.text_deltas == {"a": f"<{a.token_ids[-1]}>"}


def test_what_a_text_held_back_is_shown_at_the_end():
    class Holding(FakeText):
        def push(self, token_id):
            self.text += super().push(token_id)
            return ""

        def finish(self):
            return "held"

    engine = make_engine()
    engine.add(make_request("a", max_tokens=2), Holding())
    engine.step()
    assert engine.text_deltas == {}
    engine.step()
    assert engine.text_deltas == {"a": "held"}


# ---- abort ---------------------------------------------------------------------------------------------------------


def test_the_next_record_tells_an_abort():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, 5, max_tokens=9))
    engine.step()
    free = engine.scheduler.pool.num_free
    assert engine.abort("b") is True
    assert engine.scheduler.pool.num_free == free + 2  # at once, not with the next step
    record = engine.step()
    assert [(e.op, e.request_id) for e in record.block_events][:2] == [("release", "b"), ("release", "b")]
    assert [(o.request_id, o.token_id, o.finish_reason) for o in record.outputs] == [
        ("b", None, "abort"),
        ("a", engine.scheduler.requests["a"].token_ids[-1], None),
    ]
    assert engine.abort("b") is False
    assert "b" not in [o.request_id for o in engine.step().outputs]


def test_if_no_step_follows_a_closing_record_tells_the_abort():
    engine = make_engine()
    engine.add(make_request("a", 5, max_tokens=9))
    last = engine.step()
    engine.abort("a")
    assert engine.has_work
    closing = engine.step()
    assert (closing.step, closing.scheduled, closing.work.tokens) == (1, [], 0)
    assert [(e.op, e.request_id) for e in closing.block_events] == [("release", "a"), ("release", "a")]
    assert [(o.request_id, o.finish_reason) for o in closing.outputs] == [("a", "abort")]
    assert (closing.blocks.in_use, closing.queues.finished) == (0, 1)
    assert closing.t_begin_s >= last.t_end_s
    assert not engine.has_work and engine.step() is None
    assert len(engine.executor.calls) == 1


def test_an_abort_is_told_at_once_though_others_have_not_arrived_yet():
    engine = make_engine()
    engine.add(make_request("a"))
    engine.add(make_request("b", arrival_s=50.0))
    engine.abort("a")
    assert [o.request_id for o in engine.step().outputs] == ["a"]
    assert engine.step() is None and engine.next_arrival_s == 50.0


def test_abort_before_arrival_and_of_the_unknown():
    engine = make_engine()
    engine.add(make_request("a", arrival_s=50.0))
    assert engine.abort("nobody") is False
    assert engine.abort("a") is True
    drain(engine)
    (record,) = engine.request_records()
    assert (record.finish_reason, record.first_scheduled_s, record.completion_s) == ("abort", None, 50.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("victim", ["r0", "r2", "r4"])
def test_abort_after_any_number_of_steps_leaves_the_others_alone(policy, victim):
    for num_before in range(40):
        engine = make_engine(policy, blocks=8, tokens=8)
        requests = workload(engine)
        checker = StepChecker(engine)
        for _ in range(num_before):
            checked_step(engine, checker)
        finished = engine.scheduler.requests[victim].is_finished
        engine.abort(victim)
        engine.abort(victim)
        drain(engine, checker)
        for request in requests:
            expected = expected_output(request.prompt_token_ids, request.max_tokens)
            if request.request_id == victim and not finished:
                assert request.finish_reason == "abort"
                expected = expected[: request.num_output_tokens]
            assert request.output_token_ids == expected
        assert sorted(engine.executor.released) == sorted(r.request_id for r in requests)
        if finished:
            return
    raise AssertionError(f"{victim} never finished, so not every state was tried")


def test_abort_in_the_middle_of_a_forward_pass_drops_the_token():
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, 5, max_tokens=4))
    engine.step()
    engine.executor.on_forward = lambda chunks: engine.abort("b")
    record = engine.step()
    assert [(o.request_id, o.finish_reason) for o in record.outputs] == [("b", "abort"), ("a", None)]
    assert engine.scheduler.requests["b"].num_output_tokens == 1
    engine.executor.on_forward = None
    while engine.has_work:
        engine.step()
    check_empty(engine.scheduler)


# ---- failure and long life -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stage", ["prepare", "forward", "sample"])
@pytest.mark.parametrize("num_before", [0, 1, 4])
def test_when_the_executor_fails_nothing_is_committed_and_everything_can_be_released(
    policy, stage, num_before, monkeypatch
):
    def fail(*args):
        raise RuntimeError("device lost")

    engine = make_engine(policy, blocks=16, tokens=8)
    requests = workload(engine)
    for _ in range(num_before):
        engine.step()
    engine.executor.clock.advance(1.0)
    before = [(r.num_computed_tokens, r.num_tokens) for r in requests]
    with monkeypatch.context() as patch:
        patch.setattr(engine.executor, stage, fail)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    for request, (num_computed, num_tokens) in zip(requests, before, strict=True):
        assert (request.num_computed_tokens <= num_computed, request.num_tokens) == (True, num_tokens)
    for request in requests[1:]:
        engine.abort(request.request_id)
    while engine.has_work:
        engine.step()
    check_empty(engine.scheduler)
    assert requests[0].output_token_ids == expected_output(requests[0].prompt_token_ids, requests[0].max_tokens)


def test_an_engine_that_forgets_stays_small():
    engine = make_engine()
    told = []
    for i in range(200):
        engine.add(make_request(f"r{i}", max_tokens=1 + i % 4, arrival_s=engine.now_s()))
        engine.step()
        told += engine.forget_finished()
        assert len(engine.scheduler.requests) <= 4
    while engine.has_work:
        engine.step()
    told += engine.forget_finished()
    assert sorted(r.request_id for r in told) == sorted(f"r{i}" for i in range(200))
    assert not engine.scheduler.requests and not engine._readers and not engine.scheduler.pool.has_events


@pytest.mark.parametrize(("prefix", "num_requests"), [("none", 2_500), ("hash", 2_500), ("radix", 10_000)])
def test_ten_thousand_requests_keep_memory_flat(prefix, num_requests):
    engine = make_engine(requests=64, tokens=512, blocks=256, prefix=prefix)
    executor, sizes = engine.executor, []
    tracemalloc.start()
    try:
        for number in range(num_requests):
            text = [number % 7] * 8 + [number % 97, number // 97 % 97]  # some begin alike, all differ
            engine.add(Request(f"r{number}", text, 2, engine.now_s()), FakeText())
            if number % 50 == 49:
                while engine.has_work:
                    engine.step()
                engine.forget_finished()
                executor.calls.clear(), executor.released.clear()  # the fake remembers, the engine must not
            if number % (num_requests // 5) == num_requests // 5 - 1:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert not engine.scheduler.requests and engine.scheduler.num_finished == num_requests
    assert max(sizes[1:]) - sizes[1] < 30_000, sizes  # bytes; one forgotten request of 10 000 tokens would be more


def test_a_padding_row_is_not_forgotten_before_its_batch_has_drained():
    engine = make_engine("static")
    engine.add(make_request("a", max_tokens=3))
    engine.add(make_request("b", max_tokens=1))
    engine.step()
    assert engine.forget_finished() == []
    drained = [engine.step(), engine.step()]
    assert drained[-1].blocks.in_use == 0
    assert [r.request_id for r in engine.forget_finished()] == ["a", "b"]


def test_a_request_that_can_never_run_is_refused_and_leaves_no_trace():
    engine = make_engine(blocks=2)
    with pytest.raises(ScenarioError, match="needs 12 positions"):
        engine.add(make_request("a", 10, max_tokens=2))
    assert not engine.has_work and engine.request_records() == []


def test_the_engine_imports_no_torch():
    code = "import sys, engine.runtime.engine; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
