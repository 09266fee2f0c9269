"""Two engine processes, really: the same tokens as one engine, no decoder behind a prompt, every byte counted."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from engine.lab.check import CheckError, check_run
from engine.lab.export import BETWEEN, REQUESTS, to_chrome
from engine.lab.handover import block_bytes, intervals, prompt_tokens_beside, stalled_steps, transfers
from engine.lab.records import Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.runtime.disaggregated import DisaggregatedRun
from engine.runtime.lab import RunCancelled
from engine.runtime.workers import WorkerDied
from tests.unit.split_runs import RUN_ID, assert_same_tokens, is_gone, request, run, runtime_in, worker_model

LENGTHS = (1, 15, 16, 17, 31, 32, 33)  # around the ends of blocks of 16
LIMITS = {"max_requests": 12, "max_batch_tokens": 32, "num_blocks": 96}
SLOW = {"link_mb_per_s": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def runtime(home):
    return runtime_in(home)


@pytest.fixture(scope="module")
def loaded(runtime):
    return runtime.load("tiny-random", "float32")


def scenario(requests: list[dict], disaggregated: dict | None = None, **limits: int) -> Scenario:
    data = {"model": "tiny-random", "limits": LIMITS | limits, "requests": requests}
    return Scenario.parse(data if disaggregated is None else {**data, "disaggregated": disaggregated})


WORKLOAD = [
    *(request(f"n{length}", length, 10) for length in LENGTHS),
    request("one", 20, 1),  # its only token is the prefill worker's
    request("warm", 21, 8, temperature=0.9, seed=7),
    request("long", 300, 3, 0.02),
]


@pytest.fixture(scope="module")
def pair(runtime) -> tuple[Run, Run]:
    return run(runtime, scenario(WORKLOAD)), run(runtime, scenario(WORKLOAD, {}))


# ------------------------------------------------------------------ the same tokens
def test_outputs_equal_the_single_engines_around_block_boundaries(pair, loaded):
    shared, split = pair
    check_run(split)
    assert_same_tokens(loaded, split, shared)
    assert Run.from_jsonl(split.to_jsonl()) == split


# ------------------------------------------------------------------ what it is famous for, counted
def test_no_decoder_is_ever_behind_a_prompt_and_in_one_engine_they_are(pair):
    shared, split = pair
    assert sum(stalled_steps(split).values()) == 0
    assert sum(prompt_tokens_beside(split, r.request_id) for r in split.requests) == 0
    assert sum(stalled_steps(shared).values()) > 10
    assert max(prompt_tokens_beside(shared, r.request_id) for r in shared.requests) > 100


def test_bytes_sent_are_all_blocks_of_each_prompt_once(pair):
    _, split = pair
    sent = {transfer.request_id: transfer for transfer in transfers(split)}
    assert set(sent) == {r.request_id for r in split.requests} - {"one"}
    model = split.header.model
    per_block = 2 * model.num_layers * 16 * model.num_kv_heads * model.head_dim * 4
    assert block_bytes(split.header) == per_block
    for record in split.requests:
        if record.request_id != "one":
            assert sent[record.request_id].num_bytes == -(-record.num_prompt_tokens // 16) * per_block


def test_the_four_intervals_of_a_request_add_up_to_its_time(pair):
    for whole in pair:
        found = intervals(whole)
        assert len(found) == len(whole.requests)
        for one in found:
            assert min(one.parts_s) >= 0
            assert sum(one.parts_s) == pytest.approx(one.completion_s - one.arrival_s)
            assert (one.transfer is None) == (whole is pair[0] or one.request_id == "one")
            if one.transfer is not None:
                assert one.first_token_s <= one.transfer.t_begin_s < one.transfer.t_end_s <= one.decode_s


def test_no_two_bars_of_a_request_overlap_in_a_trace_and_each_worker_has_a_lane(pair):
    events = to_chrome(pair[1])["traceEvents"]
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"steps: prefill", "steps: decode", "wire"} <= lanes
    sent = [e for e in events if e["ph"] == "X" and e["pid"] == BETWEEN]
    assert [e["args"]["num_bytes"] for e in sent] == [transfer.num_bytes for transfer in transfers(pair[1])]
    bars: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] == REQUESTS:
            bars.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(bars) == len(pair[1].requests)
    for mine in map(sorted, bars.values()):
        assert all(b[0] >= a[1] - 1 for a, b in pairwise(mine))


def test_each_worker_has_its_half(pair):
    workers = pair[1].header.workers
    assert [w.name for w in workers] == ["prefill", "decode"]
    assert [(w.first_block, w.num_blocks) for w in workers] == [(0, 48), (48, 48)]
    assert len({w.threads for w in workers}) == 1


def test_a_decode_worker_without_room_makes_requests_wait_and_then_serves_them(runtime, loaded):
    asked = [request(f"w{i}", 30, 20) for i in range(4)]
    split = run(runtime, scenario(asked, {}, num_blocks=12))
    check_run(split)
    refused = [r.request_id for s in split.steps if s.worker == "decode" for r in s.refused]
    assert refused
    assert_same_tokens(loaded, split, run(runtime, scenario(asked)))


# ------------------------------------------------------------------ aborts and ends
def make(runtime, home, asked: list[dict], disaggregated: dict) -> DisaggregatedRun:
    wanted = scenario(asked, disaggregated)
    return DisaggregatedRun(wanted, worker_model(home), runtime.prepare(wanted).requests)


def as_run(job: DisaggregatedRun, result, runtime) -> Run:
    prepared = runtime.prepare(job.scenario)
    header = runtime._header(prepared, 4.0, None, RUN_ID, "2026-01-01T00:00:00+00:00")
    header.workers = result.workers
    return Run(header=header, steps=result.steps, requests=result.requests)


def test_an_abort_during_the_transfer_ends_it_and_nobody_else_and_frees_every_block(runtime, home, loaded):
    asked = [request("a", 17, 12), request("gone", 300, 9), request("b", 33, 12, 0.05)]
    job = make(runtime, home, asked, SLOW)  # 300 tokens are 0.6 MB: it is on its way for 0.6 s

    def on_step(record) -> None:
        if any(o.request_id == "gone" and o.token_id is not None for o in record.outputs):
            job.abort("gone")

    split = as_run(job, job.run(on_step), runtime)
    check_run(split)
    gone = next(r for r in split.requests if r.request_id == "gone")
    assert (gone.finish_reason, gone.num_output_tokens) == ("abort", 1)
    assert "gone" in {transfer.request_id for transfer in transfers(split)}  # read to its end, then dropped
    assert split.steps[-1].blocks.in_use == 0
    rest = scenario([r for r in asked if r["request_id"] != "gone"])
    ours = split.model_copy(update={"requests": [r for r in split.requests if r.request_id != "gone"]})
    assert_same_tokens(loaded, ours, run(runtime, rest))


def test_aborts_before_and_after_the_transfer(runtime, home):
    asked = [request("first", 40, 60), request("late", 40, 60, 0.3), request("kept", 20, 30)]
    job = make(runtime, home, asked, {})

    def on_step(record) -> None:
        if record.worker == "decode" and any(row.request_id == "first" for row in record.scheduled):
            job.abort("first")
            job.abort("late")

    split = as_run(job, job.run(on_step), runtime)
    check_run(split)
    reasons = {r.request_id: r.finish_reason for r in split.requests}
    assert reasons == {"first": "abort", "late": "abort", "kept": "length"}


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_a_killed_worker_ends_the_run_with_one_sentence_and_leaves_no_process(victim, runtime, home):
    job = make(runtime, home, [request("a", 40, 200), request("b", 40, 200)], {})
    pids: list[int] = []

    def on_step(record) -> None:
        if record.worker == "decode" and not pids:
            pids.extend(job.pids.values())
            os.kill(job.pids[victim], signal.SIGKILL)

    with pytest.raises(WorkerDied) as told:
        job.run(on_step)
    sentence = str(told.value)
    assert f"the {victim} worker" in sentence and "SIGKILL" in sentence and "start the run again" in sentence
    assert "\n" not in sentence and len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_a_stopped_run_leaves_no_process(runtime):
    wanted = scenario([request("a", 40, 200)], {})
    seen = []
    with pytest.raises(RunCancelled):
        runtime.run(runtime.prepare(wanted), RUN_ID, lambda *_: seen.append(1), lambda: bool(seen))
    assert seen


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"policy": "static"}, "policy chunked"),
        ({"kv_dtype": "int8"}, "no kv_dtype"),
        ({"ring": {}}, "no ring"),
        ({"limits": {"num_blocks": 1}}, "2 or more"),
        ({"disaggregated": {"link_mb_per_s": 0}}, "from 1 to"),
    ],
)
def test_what_cannot_be_split_is_refused_with_a_sentence(more, told):
    data = {"requests": [request("a", 4, 4)], "disaggregated": {}, **more}
    with pytest.raises(ScenarioError, match=told):
        Scenario.parse(data)


def test_a_request_that_half_the_blocks_cannot_hold_is_refused_before_anything_starts(runtime):
    with pytest.raises(ScenarioError, match=r"half of limits.num_blocks, so raise it to 26"):
        run(runtime, scenario([request("a", 190, 12)], {}, num_blocks=20))


# ------------------------------------------------------------------ the check sees what is new
@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        (lambda run: setattr(transfers(run)[0], "num_bytes", transfers(run)[0].num_bytes - 1), "transfer"),
        (lambda run: setattr(transfers(run)[0], "t_end_s", transfers(run)[0].t_begin_s - 1), "transfer"),
        (lambda run: next(s for s in run.steps if s.received).received.clear(), "admitted"),
        (lambda run: setattr(run.steps[0], "worker", "third"), "workers"),
        (lambda run: setattr(run.steps[0], "worker", "decode"), "workers"),
        (lambda run: run.header.workers.clear(), "workers"),
        (lambda run: setattr(run.header.workers[1], "first_block", 0), "workers"),
        (lambda run: run.header.scenario.pop("disaggregated"), "workers"),
    ],
)
def test_a_spoilt_record_is_found(spoil, invariant, pair):
    run = Run.from_jsonl(pair[1].to_jsonl())
    spoil(run)
    with pytest.raises(CheckError) as found:
        check_run(run)
    assert found.value.invariant == invariant
