"""The queue alone: order, limits, position, lease, cancel, what is kept. No threads, a clock that obeys."""

from __future__ import annotations

import pytest

from engine.lab.scenario import Scenario
from engine.server import jobs
from engine.server.jobs import Delta, Failure, GenerationJob, GenerationSpec, JobQueue, QueueFull
from engine.server.runs import LabRun
from tests.fake_runtime import FakeRuntime, Knobs

INSTANCE = "abcdef012345"
SCENARIO = Scenario.parse({"requests": [{"prompt": "hi", "max_tokens": 3}, {"prompt": "ho", "max_tokens": 2}]})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> JobQueue:
    return JobQueue(INSTANCE, clock)


def generation(received: list | None = None) -> GenerationJob:
    spec = GenerationSpec(prompt=[1], max_tokens=1, temperature=0.0, top_p=1.0, top_k=-1, seed=None, stop=())
    return GenerationJob(spec, (received if received is not None else []).append)


def finish(run: LabRun, queue: JobQueue) -> None:
    result = FakeRuntime(Knobs(step_s=0), lambda *_: None).run(run.scenario, run.run_id, run.on_step, run.should_stop)
    assert run.complete(result)
    queue.retire(run)


def test_jobs_leave_in_the_order_they_came(queue):
    first = queue.submit_run(SCENARIO, "a")
    request = generation()
    queue.submit_generation(request)
    last = queue.submit_run(SCENARIO, "a")
    assert [queue.take(0), queue.take(0), queue.take(0), queue.take(0)] == [first, request, last, None]


def test_requests_join_only_up_to_the_first_run(queue):
    early, late = [generation() for _ in range(3)], generation()
    for job in early:
        queue.submit_generation(job)
    queue.submit_run(SCENARIO, "a")
    queue.submit_generation(late)
    assert queue.take(0) is early[0]
    assert queue.join() == early[1:]
    assert queue.join() == []


def test_positions_count_turns(queue):
    queue.submit_generation(generation())
    queue.submit_generation(generation())
    first = queue.submit_run(SCENARIO, "a")
    second = queue.submit_run(SCENARIO, "b")
    queue.submit_generation(generation())
    third = queue.submit_run(SCENARIO, "c")
    assert [queue.position(run) for run in (first, second, third)] == [2, 3, 5]
    queue.take(0)  # one request is on the device, the other may still join it: the same turn
    assert queue.position(first) == 1
    queue.join()
    assert queue.position(first) == 1
    assert queue.take(0) is first
    assert [queue.position(run) for run in (first, second, third)] == [0, 1, 3]


def test_a_client_has_two_runs_at_most(queue):
    one = queue.submit_run(SCENARIO, "a")
    queue.submit_run(SCENARIO, "a")
    with pytest.raises(QueueFull, match="you have 2 runs"):
        queue.submit_run(SCENARIO, "a")
    queue.submit_run(SCENARIO, "b")
    queue.cancel_run(one, "no")
    queue.submit_run(SCENARIO, "a")


def test_the_line_is_bounded(queue):
    for number in range(jobs.MAX_LAB_RUNS):
        queue.submit_run(SCENARIO, f"client {number}")
    with pytest.raises(QueueFull, match="64 runs are waiting"):
        queue.submit_run(SCENARIO, "one more")
    waiting = [generation() for _ in range(jobs.MAX_GENERATIONS)]
    for job in waiting:
        queue.submit_generation(job)
    with pytest.raises(QueueFull, match="64 requests are waiting"):
        queue.submit_generation(generation())
    queue.cancel_generation(waiting[0])
    queue.submit_generation(generation())


def test_a_run_nobody_follows_is_cancelled_after_the_lease(queue, clock):
    left, followed = queue.submit_run(SCENARIO, "a"), queue.submit_run(SCENARIO, "b")
    assert queue.take(0) is left and left.state == "running"
    clock.now = jobs.LEASE_S
    assert queue.expire() == []
    assert queue.follow(followed.run_id) is followed
    clock.now = jobs.LEASE_S + 0.1
    assert queue.expire() == [left]
    assert left.should_stop() and left.state == "cancelled" and not followed.is_over
    clock.now = 2 * jobs.LEASE_S + 0.2
    assert queue.expire() == [followed]
    assert queue.take(0) is None
    assert "nobody followed it for 15 s" in followed.snapshot().error


def test_a_full_line_makes_room_by_expiring(queue, clock):
    queue.submit_run(SCENARIO, "a")
    queue.submit_run(SCENARIO, "a")
    clock.now = jobs.LEASE_S + 1
    assert queue.submit_run(SCENARIO, "a").state == "queued"


def test_cancel_is_final_and_idempotent(queue):
    run = queue.submit_run(SCENARIO, "a")
    assert queue.cancel_run(run, "first") and not queue.cancel_run(run, "second")
    run.begin()
    assert run.state == "cancelled" and run.snapshot().error == "first"
    finished = queue.submit_run(SCENARIO, "a")
    queue.take(0)
    finish(finished, queue)
    assert not queue.cancel_run(finished, "late") and finished.state == "done"


def test_a_cancelled_run_does_not_become_done(queue):
    run = queue.submit_run(SCENARIO, "a")
    queue.take(0)
    runtime = FakeRuntime(Knobs(step_s=0), lambda *_: None)
    result = runtime.run(SCENARIO, run.run_id, run.on_step, lambda: False)
    queue.cancel_run(run, "no")
    assert not run.complete(result)
    assert run.state == "cancelled" and run.run_file() is None


def test_a_run_that_ended_early_keeps_its_steps(queue):
    run = queue.submit_run(SCENARIO, "a")
    queue.take(0)
    FakeRuntime(Knobs(step_s=0), lambda *_: None).run(SCENARIO, run.run_id, run.on_step, lambda: False)
    live = run.snapshot(1).steps
    run.end("failed", "it broke")
    run.pack()
    queue.retire(run)
    assert run.snapshot(1).steps == live and len(live) == 2
    assert run.snapshot(3).steps == []


def test_snapshots_are_the_same_before_and_after_the_end(queue):
    run = queue.submit_run(SCENARIO, "a")
    queue.take(0)
    runtime = FakeRuntime(Knobs(step_s=0), lambda *_: None)
    result = runtime.run(SCENARIO, run.run_id, run.on_step, run.should_stop)
    live = run.snapshot(0)
    run.complete(result)
    after = run.snapshot(0)
    assert live.steps == after.steps and len(after.steps) == 3
    assert (live.num_tokens, live.total_tokens, live.texts) == (after.num_tokens, 5, after.texts)
    assert live.num_tokens == 5 and live.texts == {"r0": "xxx", "r1": "xx"}
    assert run.run_file().decode() == result.run.to_jsonl()


def test_line_separators_in_a_prompt_do_not_shift_the_steps(queue):
    odd = Scenario.parse({"requests": [{"prompt": "a\u2028b\u0085c\nd", "max_tokens": 2}]})
    run = queue.submit_run(odd, "a")
    queue.take(0)
    finish(run, queue)
    assert ['"step":0' in run.snapshot(0).steps[0], len(run.snapshot(0).steps)] == [True, 2]


def test_old_finished_runs_are_dropped(queue):
    runs = []
    for _ in range(jobs.MAX_FINISHED_RUNS + 3):
        runs.append(queue.submit_run(SCENARIO, "a"))
        queue.take(0)
        finish(runs[-1], queue)
    assert [queue.follow(run.run_id) is None for run in runs[:4]] == [True, True, True, False]
    assert queue.made_here(runs[0].run_id) and not queue.made_here("run-ffffff000000")


def test_finished_runs_are_bounded_in_bytes(queue, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_FINISHED_BYTES", 1)
    runs = []
    for _ in range(2):
        runs.append(queue.submit_run(SCENARIO, "a"))
        queue.take(0)
        finish(runs[-1], queue)
    assert queue.follow(runs[0].run_id) is None and queue.follow(runs[1].run_id) is runs[1]


def test_run_ids_are_unique_and_well_formed(queue):
    ids = set()
    for _ in range(200):
        run = queue.submit_run(SCENARIO, "a")
        queue.cancel_run(run, "no")
        ids.add(run.run_id)
    assert len(ids) == 200
    assert all(len(i) == 16 and i.startswith("run-abcdef") and int(i[4:], 16) >= 0 for i in ids)


def test_close_ends_everything_and_refuses_newcomers(queue):
    received: list[Delta | Failure] = []
    running, waiting = queue.submit_run(SCENARIO, "a"), queue.submit_run(SCENARIO, "b")
    queue.submit_generation(generation(received))
    queue.take(0)
    queue.close()
    assert running.state == waiting.state == "cancelled"
    assert [event.status for event in received] == [503]
    assert queue.take(0) is None
    with pytest.raises(QueueFull):
        queue.submit_run(SCENARIO, "c")


def test_what_waits_fails_when_no_engine_comes(queue):
    received: list[Delta | Failure] = []
    run = queue.submit_run(SCENARIO, "a")
    queue.submit_generation(generation(received))
    queue.fail_waiting("no disk space")
    assert run.state == "failed" and run.snapshot().error == "no disk space"
    assert received == [Failure(503, "no disk space")]
    assert queue.counts() == dict.fromkeys(queue.counts(), 0)


def test_counts(queue):
    queue.submit_run(SCENARIO, "a")
    queue.take(0)
    queue.submit_run(SCENARIO, "b")
    queue.submit_generation(generation())
    assert queue.counts() == {
        "runs_waiting": 1,
        "runs_running": 1,
        "requests_waiting": 1,
        "requests_running": 0,
    }


def test_a_handler_that_is_gone_is_no_error():
    def deliver(event):
        raise RuntimeError("Event loop is closed")

    job = GenerationJob(generation().spec, deliver)
    job.send(Failure(500, "x"))
    assert job.cancelled
