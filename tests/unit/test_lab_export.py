"""Exports: a Chrome trace a viewer can lay out (no overlap, right units, every row there) and CSV that reads back."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from engine.lab.export import ENGINE, REQUESTS, to_chrome, to_csv
from engine.lab.metrics import all_request_metrics
from engine.lab.records import Run
from tests.unit.lab_runs import chunked_scenario, make_run, preempting_scenario, prompt, static_scenario


@pytest.fixture(scope="module", params=[static_scenario, chunked_scenario, preempting_scenario])
def run(request: pytest.FixtureRequest) -> Run:
    return make_run(request.param())


def bars(run: Run, process: int) -> dict[int, list[dict]]:
    tracks = defaultdict(list)
    for event in to_chrome(run)["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            tracks[event["tid"]].append(event)
    return tracks


def test_the_trace_is_json_with_a_named_track_per_request(run: Run) -> None:
    trace = json.loads(json.dumps(to_chrome(run), allow_nan=False))
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name" and e["pid"] == REQUESTS]
    assert names == [r.request_id for r in run.requests]
    assert trace["otherData"]["run_id"] == run.run_id


def test_every_scheduled_row_is_a_bar_of_its_step(run: Run) -> None:
    found = sorted(
        (e["args"]["step"], e["tid"], e["cat"], e["args"]["num_tokens"])
        for track in bars(run, REQUESTS).values()
        for e in track
        if e["cat"] != "waiting"
    )
    order = {r.request_id: i for i, r in enumerate(run.requests)}
    wanted = sorted((s.step, order[x.request_id], x.phase, x.num_tokens) for s in run.steps for x in s.scheduled)
    assert found == wanted


def test_bars_of_a_request_do_not_overlap_and_stay_in_the_run(run: Run) -> None:
    end = run.steps[-1].t_end_s * 1e6 + 0.01
    for track in bars(run, REQUESTS).values():
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in track)
        assert spans[0][0] >= 0 and spans[-1][1] <= end
        assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(spans))


def test_times_are_microseconds(run: Run) -> None:
    step = next(e for e in bars(run, ENGINE)[0] if e["name"].startswith("step 3:"))
    assert step["ts"] == pytest.approx(run.steps[3].t_begin_s * 1e6)
    assert step["dur"] == pytest.approx((run.steps[3].t_end_s - run.steps[3].t_begin_s) * 1e6)


def test_parts_nest_inside_their_step(run: Run) -> None:
    events = bars(run, ENGINE)[0]
    steps = [e for e in events if e["cat"] != "part"]
    for part in (e for e in events if e["cat"] == "part"):
        assert any(
            s["ts"] - 0.01 <= part["ts"] and part["ts"] + part["dur"] <= s["ts"] + s["dur"] + 0.01 for s in steps
        )
    assert {e["name"] for e in events if e["cat"] == "part"} == {"forward"}  # on the fake clock only that takes time


def test_counters_sum_to_the_pool(run: Run) -> None:
    counters = [e for e in to_chrome(run)["traceEvents"] if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert len(counters) == len(run.steps)
    assert {sum(e["args"].values()) for e in counters} == {run.header.num_blocks}


def test_waits_and_marks_are_there() -> None:
    trace = to_chrome(make_run(static_scenario()))["traceEvents"]
    assert any(e["name"] == "waiting: batch_not_drained" for e in trace)
    assert sum(1 for e in trace if e["ph"] == "i" and e["name"] == "finished: length") == 4
    assert any(e["name"] == "preempted" for e in to_chrome(make_run(preempting_scenario()))["traceEvents"])


def test_csv_reads_back(run: Run) -> None:
    steps = list(csv.DictReader(io.StringIO(to_csv(run))))
    assert [int(row["step"]) for row in steps] == [s.step for s in run.steps]
    assert [int(row["flops"]) for row in steps] == [s.work.flops for s in run.steps]
    requests = list(csv.DictReader(io.StringIO(to_csv(run, "requests"))))
    for row in requests:
        assert float(row["ttft_ms"]) == pytest.approx(all_request_metrics(run)[row["request_id"]].ttft_s * 1e3)


def test_an_undefined_latency_is_an_empty_cell_not_zero() -> None:
    run = make_run({"requests": [{"prompt_token_ids": prompt(3), "max_tokens": 1}]})
    (row,) = csv.DictReader(io.StringIO(to_csv(run, "requests")))
    assert row["tpot_ms"] == ""


def test_a_run_without_steps_exports(run: Run) -> None:
    empty = Run(header=run.header, steps=[], requests=[])
    assert to_csv(empty) == ""
    assert json.dumps(to_chrome(empty))
