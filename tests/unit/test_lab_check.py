"""The check accepts every genuine Run, names the record of every corrupted one, and survives any garbage."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.lab.check import INVARIANTS, CheckError, check_file, check_run
from engine.lab.records import Run, RunFileError
from tests.unit.lab_runs import (
    Records,
    chunked_scenario,
    decoded,
    encoded,
    make_run,
    preempting_scenario,
    prompt,
    random_scenario,
    static_scenario,
)

SCENARIOS = {"static": static_scenario, "chunked": chunked_scenario, "preempting": preempting_scenario}


@pytest.fixture(scope="module")
def genuine() -> dict[str, Records]:
    runs = {name: decoded(make_run(scenario())) for name, scenario in SCENARIOS.items()}
    runs["cached"] = decoded(cached_run())
    runs["aborted"] = decoded(make_run(static_scenario(), aborts={2: "A"}))
    return runs


def cached_run() -> Run:
    """Two equal prompts one after the other; the second finds the first block of the first in the prefix cache."""
    request = {"prompt_token_ids": prompt(6), "max_tokens": 1}
    scenario = {
        "block_size": 4,
        "limits": {"max_requests": 1, "num_blocks": 3, "prefix_cache": "none"},
        "requests": [request, request],
    }
    records = decoded(make_run(scenario))
    records[0]["scenario"]["limits"]["prefix_cache"] = "hash"
    first, second = records[1], records[2]
    first["block_events"].insert(2, {"op": "publish", "block_id": 0, "request_id": "r0"})
    first["blocks"] = {"total": 3, "free": 2, "cached": 1, "in_use": 0}
    second["block_events"][0]["op"] = "share"
    second["blocks"] = {"total": 3, "free": 2, "cached": 1, "in_use": 0}
    second["scheduled"][0].update(start=4, num_tokens=2, num_cached_tokens=4)
    records[4]["num_cached_tokens"] = 4
    work = second["work"]
    work["tokens"] = 2
    work["flops"] -= 2 * 2000 * 4 + 4 * 2 * 4 * 2 * (1 + 2 + 3 + 4)
    work["kv_write_bytes"] = 2 * 2 * 2 * 2 * 4 * 2
    return Run.from_jsonl(encoded(records))


def broken(records: Records) -> CheckError:
    with pytest.raises(CheckError) as caught:
        check_run(Run.from_jsonl(encoded(records)))
    return caught.value


# ------------------------------------------------------------------------------------------------- genuine Runs
def test_genuine_runs_pass(genuine: dict[str, Records]) -> None:
    for records in genuine.values():
        check_run(Run.from_jsonl(encoded(records)))


def test_the_genuine_runs_contain_what_the_corruptions_corrupt(genuine: dict[str, Records]) -> None:
    phases = {row["phase"] for records in genuine.values() for r in records for row in r.get("scheduled", ())}
    assert phases == {"prefill", "decode", "recompute", "padding"}
    reasons = {x["why"] for records in genuine.values() for r in records for x in r.get("refused", ())}
    assert {"batch_not_drained", "no_blocks"} <= reasons
    events = {e["op"] for records in genuine.values() for r in records for e in r.get("block_events", ())}
    assert {"alloc", "share", "publish", "release"} <= events
    assert any(r.get("preempted") for r in genuine["preempting"])
    assert any(o["finish_reason"] == "abort" for r in genuine["aborted"] for o in r.get("outputs", ()))


@pytest.mark.parametrize("seed", range(60))
def test_random_workloads_pass(seed: int) -> None:
    check_run(make_run(random_scenario(seed)))


@pytest.mark.parametrize("seed", range(40))
def test_random_workloads_with_aborts_pass(seed: int) -> None:
    rng = random.Random(seed)
    aborts = {rng.randint(0, 12): f"r{rng.randrange(8)}" for _ in range(3)}
    check_run(make_run(random_scenario(seed), aborts))


def test_a_file_is_checked_and_returned(tmp_path: Path) -> None:
    run = make_run(chunked_scenario())
    run.save(tmp_path / "run.jsonl")
    assert check_file(tmp_path / "run.jsonl") == run


# ------------------------------------------------------------------------------------------------- corrupted Runs
def step(records: Records, number: int) -> dict:
    return records[1 + number]


def request(records: Records, request_id: str) -> dict:
    return next(r for r in records if r["kind"] == "request" and r["request_id"] == request_id)


def find(records: Records, field: str, **wanted: object) -> tuple[dict, dict]:
    """(step, item): the first item of ``step[field]`` with the wanted values."""
    for record in records:
        for item in record.get(field, ()):
            if all(item[key] == value for key, value in wanted.items()):
                return record, item
    raise AssertionError(f"no {field} with {wanted}")


def lose_a_block(r: Records) -> str:
    record, event = find(r, "block_events", op="release")
    record["block_events"].remove(event)
    return f"step {record['step']}"


def free_twice(r: Records) -> str:
    record, event = find(r, "block_events", op="release")
    record["block_events"].append(event)
    return f"step {record['step']}"


def give_a_used_block(r: Records) -> str:
    record, event = find(r, "block_events", op="alloc", request_id="B")
    event["block_id"] = find(r, "block_events", op="alloc", request_id="A")[1]["block_id"]
    return f"step {record['step']}"


def release_by_a_stranger(r: Records) -> str:
    record, event = find(r, "block_events", op="release", request_id="A")
    event["request_id"] = "B"
    return f"step {record['step']}"


def block_outside_the_pool(r: Records) -> str:
    find(r, "block_events", op="alloc")[1]["block_id"] = 999
    return "step 0"


def event_without_a_user(r: Records) -> str:
    find(r, "block_events", op="alloc")[1]["request_id"] = None
    return "step 0"


def event_of_an_unknown_request(r: Records) -> str:
    find(r, "block_events", op="alloc")[1]["request_id"] = "nobody"
    return "step 0"


def evict_in_use(r: Records) -> str:
    record, event = find(r, "block_events", op="publish")
    record["block_events"].insert(3, {"op": "evict", "block_id": event["block_id"], "request_id": None})
    return f"step {record['step']}"


def evict_a_free_block(r: Records) -> str:
    step(r, 0)["block_events"].insert(0, {"op": "evict", "block_id": 2, "request_id": None})
    return "step 0"


def share_unpublished(r: Records) -> str:
    step(r, 0)["block_events"].remove(find(r, "block_events", op="publish")[1])
    step(r, 0)["blocks"] = {"total": 3, "free": 3, "cached": 0, "in_use": 0}
    return "step 1"


def publish_twice(r: Records) -> str:
    record, event = find(r, "block_events", op="publish")
    record["block_events"].insert(3, event)
    return f"step {record['step']}"


def publish_a_half_full_block(r: Records) -> str:
    find(r, "block_events", op="publish")[1]["block_id"] = 1
    return "step 0"


def alloc_a_cached_block(r: Records) -> str:
    find(r, "block_events", op="share")[1]["op"] = "alloc"
    return "step 1"


def claim_more_cache_than_shared(r: Records) -> str:
    step(r, 1)["scheduled"][0].update(start=5, num_tokens=1, num_cached_tokens=5)
    return "step 1"


def wrong_block_sum(r: Records) -> str:
    step(r, 2)["blocks"]["free"] += 1
    return "step 2"


def blocks_moved_between_counts(r: Records) -> str:
    step(r, 2)["blocks"]["free"] -= 1
    step(r, 2)["blocks"]["cached"] += 1
    return "step 2"


def too_few_blocks(r: Records) -> str:
    event = next(e for e in step(r, 1)["block_events"] if e["op"] == "alloc")
    step(r, 1)["block_events"].remove(event)
    return "step 1"


def skip_positions(r: Records) -> str:
    record, row = find(r, "scheduled", phase="decode")
    row["start"] += 1
    return f"step {record['step']}"


def repeat_positions(r: Records) -> str:
    record, row = find(r, "scheduled", phase="decode")
    row["start"] -= 1
    return f"step {record['step']}"


def preempted_goes_on(r: Records) -> str:
    record, row = find(r, "scheduled", phase="recompute")
    row["start"] = 2
    return f"step {record['step']}"


def recompute_called_prefill(r: Records) -> str:
    record, row = find(r, "scheduled", phase="recompute")
    row["phase"] = "prefill"
    return f"step {record['step']}"


def decode_called_prefill(r: Records) -> str:
    record, row = find(r, "scheduled", phase="decode")
    row["phase"] = "prefill"
    return f"step {record['step']}"


def guess_without_leave(r: Records) -> str:
    record, row = find(r, "scheduled", phase="decode")
    row["num_tokens"], row["num_draft_tokens"] = 2, 1
    return f"step {record['step']}"


def sample_from_a_partial_chunk(r: Records) -> str:
    record, row = find(r, "scheduled", phase="prefill", is_last_chunk=False)
    record["outputs"].append({"request_id": row["request_id"], "token_id": 1, "finish_reason": None})
    return f"step {record['step']}"


def call_a_partial_chunk_the_last(r: Records) -> str:
    record, row = find(r, "scheduled", phase="prefill", is_last_chunk=False)
    row["is_last_chunk"] = True
    return f"step {record['step']}"


def run_after_the_end(r: Records) -> str:
    record, row = find(r, "scheduled", phase="padding")
    row["phase"] = "decode"
    return f"step {record['step']}"


def pad_elsewhere(r: Records) -> str:
    record, row = find(r, "scheduled", phase="padding")
    row["start"] += 1
    return f"step {record['step']}"


def pad_a_living_request(r: Records) -> str:
    record, row = find(r, "scheduled", phase="decode")
    row["phase"] = "padding"
    return f"step {record['step']}"


def schedule_twice(r: Records) -> str:
    step(r, 3)["scheduled"].append(step(r, 3)["scheduled"][0])
    return "step 3"


def schedule_nothing(r: Records) -> str:
    step(r, 3).update(scheduled=[], outputs=[], block_events=[])
    return "step 3"


def schedule_no_token(r: Records) -> str:
    step(r, 3)["scheduled"][0]["num_tokens"] = 0
    return "step 3"


def schedule_a_stranger(r: Records) -> str:
    step(r, 3)["scheduled"][0]["request_id"] = "nobody"
    return "step 3"


def exceed_the_token_budget(r: Records) -> str:
    r[0]["scenario"]["limits"]["max_batch_tokens"] = 7
    return "step 0"


def exceed_the_request_limit(r: Records) -> str:
    r[0]["scenario"]["limits"]["max_requests"] = 1
    return next(f"step {x['step']}" for x in r if len(x.get("scheduled", ())) > 1)


def admit_twice(r: Records) -> str:
    step(r, 1)["admitted"].append("A")
    return "step 1"


def admit_before_arrival(r: Records) -> str:
    r[0]["scenario"]["requests"][0]["arrival_s"] = request(r, "A")["arrival_s"] = 0.005
    return "step 0"


def preempt_a_waiting_one(r: Records) -> str:
    step(r, 0)["preempted"].append("D")
    return "step 0"


def hide_a_preemption(r: Records) -> str:
    record = next(x for x in r if x.get("preempted"))
    record["preempted"] = []
    return f"step {record['step']}"


def refuse_without_waiting(r: Records) -> str:
    step(r, 0)["refused"].append({"request_id": "A", "why": "no_blocks"})
    return "step 0"


def refuse_before_arrival(r: Records) -> str:
    step(r, 0)["refused"].append({"request_id": "D", "why": "no_blocks"})
    return "step 0"


def wait_without_a_reason(r: Records) -> str:
    record, refused = find(r, "refused", request_id="D")
    record["refused"].remove(refused)
    return f"step {record['step']}"


def drain_a_batch_that_is_none(r: Records) -> str:
    record, refused = find(r, "refused", why="no_blocks")
    refused["why"] = "batch_not_drained"
    return f"step {record['step']}"


def wrong_waiting_count(r: Records) -> str:
    step(r, 2)["queues"]["waiting"] += 1
    return "step 2"


def wrong_running_count(r: Records) -> str:
    step(r, 2)["queues"]["running"] -= 1
    return "step 2"


def finished_count_too_early(r: Records) -> str:
    step(r, 0)["queues"]["finished"] += 1
    return "step 0"


def drop_an_output(r: Records) -> str:
    record = next(x for x in r if x.get("outputs"))
    record["outputs"].pop()
    return f"step {record['step']}"


def output_outside_the_vocabulary(r: Records) -> str:
    record = next(x for x in r if x.get("outputs"))
    record["outputs"][0]["token_id"] = 97
    return f"step {record['step']}"


def tokens_out_of_order(r: Records) -> str:
    ids = request(r, "C")["output_token_ids"]
    ids[0], ids[1] = ids[1], ids[0]
    return "request C"


def end_too_early(r: Records) -> str:
    record = next(x for x in r if x.get("outputs"))
    record["outputs"][0]["finish_reason"] = "length"
    return f"step {record['step']}"


def never_end(r: Records) -> str:
    record, output = find(r, "outputs", finish_reason="length")
    output["finish_reason"] = None
    return f"step {record['step']}"


def stop_though_told_to_ignore(r: Records) -> str:
    record, output = find(r, "outputs", finish_reason="length")
    output["finish_reason"] = "stop"
    return f"step {record['step']}"


def time_runs_backwards(r: Records) -> str:
    step(r, 4)["t_begin_s"] = step(r, 2)["t_begin_s"]
    return "step 4"


def step_ends_before_it_begins(r: Records) -> str:
    step(r, 4)["t_end_s"] = step(r, 4)["t_begin_s"] - 1e-3
    return "step 4"


def parts_longer_than_the_step(r: Records) -> str:
    step(r, 4)["time_ms"]["forward"] *= 3
    return "step 4"


def negative_time(r: Records) -> str:
    step(r, 4)["time_ms"]["sample"] = -1.0
    return "step 4"


def a_step_is_missing(r: Records) -> str:
    del r[4]
    return "step 4"


def steps_swapped(r: Records) -> str:
    r[3], r[4] = r[4], r[3]
    return "step 3"


def another_policy(r: Records) -> str:
    step(r, 1)["policy"] = "orca"
    return "step 1"


def wrong_flops(r: Records) -> str:
    step(r, 2)["work"]["flops"] += 1
    return "step 2"


def padding_not_counted(r: Records) -> str:
    record, _ = find(r, "scheduled", phase="padding")
    record["work"]["tokens"] += record["work"]["padding_tokens"]
    record["work"]["padding_tokens"] = 0
    return f"step {record['step']}"


def forgotten_kv_bytes(r: Records) -> str:
    step(r, 2)["work"]["kv_read_bytes"] = 0
    return "step 2"


def first_token_too_soon(r: Records) -> str:
    request(r, "B")["first_token_s"] = request(r, "B")["first_scheduled_s"] - 1e-3
    return "request B"


def completion_missing(r: Records) -> str:
    request(r, "B")["completion_s"] = None
    return "request B"


def wrong_output_count(r: Records) -> str:
    request(r, "B")["num_output_tokens"] += 1
    return "request B"


def wrong_preemption_count(r: Records) -> str:
    record = next(x for x in r if x.get("num_preemptions"))
    record["num_preemptions"] += 1
    return f"request {record['request_id']}"


def wrong_finish_reason(r: Records) -> str:
    request(r, "B")["finish_reason"] = "stop"
    return "request B"


def another_arrival(r: Records) -> str:
    request(r, "D")["arrival_s"] = 0.0
    return "request D"


def another_prompt(r: Records) -> str:
    request(r, "D")["num_prompt_tokens"] += 1
    return "request D"


def request_without_a_record(r: Records) -> str:
    r.remove(request(r, "D"))
    return "request D"


def record_without_a_request(r: Records) -> str:
    request(r, "D")["request_id"] = "E"
    return "request E"


def record_twice(r: Records) -> str:
    r.append(request(r, "D"))
    return "request D"


def cut_off_steps(r: Records) -> str:
    last = max(x["step"] for x in r if x["kind"] == "step")
    del r[1 + last]
    return f"step {last - 1}"


def infinite_time(r: Records) -> str:
    step(r, 2)["t_end_s"] = float("inf")
    return "step 2"


def another_block_size(r: Records) -> str:
    r[0]["block_size"] = 8
    return "header"


def impossible_heads(r: Records) -> str:
    r[0]["model"]["num_kv_heads"] = 3
    return "header"


def invalid_scenario(r: Records) -> str:
    r[0]["scenario"]["limits"]["max_requests"] = 0
    return "header"


def no_run_id(r: Records) -> str:
    r[0]["run_id"] = "mine"
    return "header"


def no_date(r: Records) -> str:
    r[0]["created_utc"] = "yesterday"
    return "header"


def free_bandwidth(r: Records) -> str:
    r[0]["device"]["read_gbps"] = 0
    return "header"


CORRUPTIONS: list[tuple[str, str, Callable[[Records], str]]] = [
    ("chunked", "block_counts", lose_a_block),
    ("chunked", "release_user", free_twice),
    ("static", "alloc_free", give_a_used_block),
    ("static", "release_user", release_by_a_stranger),
    ("static", "block_id", block_outside_the_pool),
    ("static", "block_user", event_without_a_user),
    ("static", "block_user", event_of_an_unknown_request),
    ("cached", "evict_unused", evict_in_use),
    ("cached", "evict_unused", evict_a_free_block),
    ("cached", "share_published", share_unpublished),
    ("cached", "publish_known", publish_twice),
    ("cached", "publish_full", publish_a_half_full_block),
    ("cached", "alloc_free", alloc_a_cached_block),
    ("cached", "positions", claim_more_cache_than_shared),
    ("static", "block_counts", wrong_block_sum),
    ("static", "block_counts", blocks_moved_between_counts),
    ("chunked", "block_cover", too_few_blocks),
    ("chunked", "positions", skip_positions),
    ("chunked", "positions", repeat_positions),
    ("preempting", "positions", preempted_goes_on),
    ("preempting", "phase", recompute_called_prefill),
    ("chunked", "phase", decode_called_prefill),
    ("chunked", "drafts", guess_without_leave),
    ("chunked", "outputs", sample_from_a_partial_chunk),
    ("chunked", "last_chunk", call_a_partial_chunk_the_last),
    ("static", "scheduled", run_after_the_end),
    ("static", "positions", pad_elsewhere),
    ("static", "phase", pad_a_living_request),
    ("chunked", "phase", pad_a_living_request),
    ("chunked", "scheduled", schedule_twice),
    ("static", "scheduled", schedule_nothing),
    ("chunked", "scheduled", schedule_no_token),
    ("chunked", "scheduled", schedule_a_stranger),
    ("chunked", "token_budget", exceed_the_token_budget),
    ("chunked", "request_limit", exceed_the_request_limit),
    ("static", "admitted", admit_twice),
    ("static", "arrival", admit_before_arrival),
    ("static", "preempted", preempt_a_waiting_one),
    ("preempting", "block_cover", hide_a_preemption),
    ("static", "refused", refuse_without_waiting),
    ("static", "refused", refuse_before_arrival),
    ("static", "refused", wait_without_a_reason),
    ("preempting", "refused", drain_a_batch_that_is_none),
    ("static", "queues", wrong_waiting_count),
    ("static", "queues", wrong_running_count),
    ("static", "queues", finished_count_too_early),
    ("chunked", "outputs", drop_an_output),
    ("chunked", "outputs", output_outside_the_vocabulary),
    ("static", "outputs", tokens_out_of_order),
    ("static", "finish", end_too_early),
    ("static", "finish", never_end),
    ("static", "finish", stop_though_told_to_ignore),
    ("chunked", "time_order", time_runs_backwards),
    ("chunked", "time_order", step_ends_before_it_begins),
    ("chunked", "time_parts", parts_longer_than_the_step),
    ("chunked", "time_parts", negative_time),
    ("chunked", "step_order", a_step_is_missing),
    ("chunked", "step_order", steps_swapped),
    ("chunked", "step_order", another_policy),
    ("static", "work", wrong_flops),
    ("static", "work", padding_not_counted),
    ("static", "work", forgotten_kv_bytes),
    ("static", "record_times", first_token_too_soon),
    ("static", "record_times", completion_missing),
    ("static", "record_num_output_tokens", wrong_output_count),
    ("preempting", "record_num_preemptions", wrong_preemption_count),
    ("static", "record_finish_reason", wrong_finish_reason),
    ("static", "arrival", another_arrival),
    ("static", "prompt_tokens", another_prompt),
    ("static", "request_known", request_without_a_record),
    ("static", "request_known", record_without_a_request),
    ("static", "request_known", record_twice),
    ("static", "end_empty", cut_off_steps),
    ("static", "numbers", infinite_time),
    ("static", "header_scenario", another_block_size),
    ("static", "header_model", impossible_heads),
    ("static", "header_scenario", invalid_scenario),
    ("static", "header_id", no_run_id),
    ("static", "header_id", no_date),
    ("static", "header_device", free_bandwidth),
]


@pytest.mark.parametrize(
    ("base", "invariant", "corrupt"), CORRUPTIONS, ids=[f"{b}-{c.__name__}" for b, _, c in CORRUPTIONS]
)
def test_a_corruption_is_rejected_and_named(
    genuine: dict[str, Records], base: str, invariant: str, corrupt: Callable[[Records], str]
) -> None:
    records = copy.deepcopy(genuine[base])
    record = corrupt(records)
    error = broken(records)
    assert (error.record, error.invariant) == (record, invariant), str(error)
    assert str(error).startswith(f"{record}: ") and INVARIANTS[invariant] in str(error)


def test_the_table_of_corruptions_covers_the_rules() -> None:
    covered = {invariant for _, invariant, _ in CORRUPTIONS}
    below = {"block_owner", "record_num_cached_tokens", "observed"}  # the last in test_lab_imports
    several_processes = {"workers", "transfer", "ring"}  # in test_disaggregated and test_ring
    assert set(INVARIANTS) - covered == below | several_processes


def test_a_finished_request_that_keeps_its_blocks_is_rejected(genuine: dict[str, Records]) -> None:
    records = copy.deepcopy(genuine["chunked"])
    record = next(r for r in records if any(o["finish_reason"] for o in r.get("outputs", ())))
    kept = [e for e in record["block_events"] if e["op"] == "release"]
    record["block_events"] = [e for e in record["block_events"] if e["op"] != "release"]
    record["blocks"]["free"] -= len(kept)
    record["blocks"]["in_use"] += len(kept)
    error = broken(records)
    assert (error.record, error.invariant) == (f"step {record['step']}", "block_owner")


def test_a_record_that_hides_its_cached_tokens_is_rejected(genuine: dict[str, Records]) -> None:
    records = copy.deepcopy(genuine["cached"])
    request(records, "r1")["num_cached_tokens"] = 0
    error = broken(records)
    assert (error.record, error.invariant) == ("request r1", "record_num_cached_tokens")


def nudged(value: object) -> object:
    """The smallest believable lie about a value; None where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + (1 if isinstance(value, int) else 0.5)
    if isinstance(value, str):
        return value + "x"
    return value[:-1] if isinstance(value, list) and value else None


@pytest.mark.parametrize("base", ["static", "preempting", "cached"])
def test_no_value_of_any_step_or_request_is_free(genuine: dict[str, Records], base: str) -> None:
    records = genuine[base]
    for number, record in enumerate(records[1:], start=1):
        for where in places(record):
            changed = copy.deepcopy(records)
            at = changed[number]
            for key in where[:-1]:
                at = at[key]
            at[where[-1]] = nudged(at[where[-1]])
            if at[where[-1]] is None:
                continue
            with pytest.raises((CheckError, RunFileError)):
                check_run(Run.from_jsonl(encoded(changed)))
                pytest.fail(f"{where} of record {number} may be anything")


# ------------------------------------------------------------------------------------------------- garbage
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["A", "B", "prefill", "padding", "release", "2026-01-01", 2**62, -(2**62), 1e308, 5e-324]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Paths to everything inside a decoded JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mutation_gets_past_the_check_as_another_exception(genuine: dict[str, Records], data: st.DataObject) -> None:
    records = copy.deepcopy(genuine[data.draw(st.sampled_from(sorted(genuine)))])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(records))
        where = data.draw(st.sampled_from(places(at)))
        for key in where[:-1]:
            at = at[key]
        action = data.draw(st.sampled_from(["replace", "replace", "delete", "copy"]))
        if action == "delete":
            del at[where[-1]]
        elif action == "copy" and isinstance(at, list):
            at.append(copy.deepcopy(at[where[-1]]))
        else:
            at[where[-1]] = data.draw(JSON)
        records = [r for r in records if r]
    with contextlib.suppress(CheckError, RunFileError):
        check_run(Run.from_jsonl(encoded(records)))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.lists(JSON, max_size=4).map(lambda v: "\n".join(map(json.dumps, v)).encode()))
def test_no_file_gets_past_the_check_as_another_exception(tmp_path_factory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.jsonl"
    path.write_bytes(content)
    with pytest.raises((CheckError, RunFileError)):
        check_file(path)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="cannot read"):
        check_file(tmp_path / "missing.jsonl")
    (tmp_path / "digits.jsonl").write_text('{"kind": "header", "schema": ' + "1" * 5000 + "}")
    with pytest.raises(RunFileError):
        check_file(tmp_path / "digits.jsonl")
