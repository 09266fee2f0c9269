"""Is this Run possible? Replays the records of a Run and names the first one that breaks a rule.

It decides only from the file: the scenario says what was asked, the events and rows are carried out one by one, and
every recorded sum, count and time is recomputed and compared. It never runs a model, trusts no derived field, and
raises nothing but CheckError (or RunFileError for a file that is not a Run), whatever it is fed. The rules are the
invariants that vLLM, mini-sglang and vidur assert about a scheduler, applied to a record instead of a live object.

Invariant: a Run that passes can be replayed by any view without meeting a contradiction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from engine.lab.check_handover import HandoverReplay
from engine.lab.check_ring import RingReplay
from engine.lab.check_rules import INVARIANTS, TIME_SLACK_S, CheckError, RequestTrack, require
from engine.lab.check_step import StepReplay
from engine.lab.observed import check_observed
from engine.lab.records import Header, RequestRecord, Run, RunFileError
from engine.lab.scenario import RequestSpec, Scenario, ScenarioError
from engine.lab.work import BYTES_PER_ELEMENT, element_sizes

__all__ = ["INVARIANTS", "CheckError", "check_file", "check_run"]

LARGEST_NUMBER = 2**63
LARGEST_DIMENSION = 2**32


def check_file(path: str | Path) -> Run:
    """Read and check a Run file; returns the Run. Raises: RunFileError if it cannot be read, CheckError if it lies."""
    try:
        run = Run.load(path)
    except RunFileError:
        raise
    except ValueError as error:  # a number with thousands of digits, for one
        raise RunFileError(f"{path} is not a Run file: {error}") from None
    check_run(run)
    return run


def check_run(run: Run) -> None:
    """Check a Run. Pure. Raises: CheckError naming the record and the invariant it breaks."""
    _check_numbers(run)
    if run.header.observed is not None:
        _check_named(run.header)
        check_observed(run)
        return
    scenario = _check_header(run.header)
    tracks = {
        request_id: RequestTrack(request_id, spec, _spec_prompt_tokens(spec))
        for request_id, spec in zip(scenario.request_ids(), scenario.requests, strict=True)
    }
    records = _match_records(run, tracks)
    replay = _replay(run, scenario, tracks)
    for step in run.steps:
        replay.apply(step)
    _check_end(replay, run)
    for request_id, record in records.items():
        _check_request(record, tracks[request_id])


def _replay(run: Run, scenario: Scenario, tracks: dict[str, RequestTrack]) -> StepReplay:
    """The rules of the engine that made the Run: one process, two, or a ring."""
    if scenario.disaggregated is not None:
        return HandoverReplay(run.header, scenario, tracks)
    if scenario.ring is not None:
        return RingReplay(run.header, scenario, tracks)
    alone = not run.header.workers and all(not s.worker and not s.received and not s.ring for s in run.steps)
    require(alone, "header", "workers", "several workers are told, and the scenario asks for one engine")
    return StepReplay(run.header, scenario, tracks)


# ------------------------------------------------------------------------------------------------- numbers
def _check_numbers(run: Run) -> None:
    """Every number finite and of a size that arithmetic survives, so that no later rule meets a surprise."""
    records = [("header", run.header)]
    records += [(f"step {s.step}" if abs(s.step) < LARGEST_NUMBER else "a step", s) for s in run.steps]
    records += [(f"request {r.request_id}", r) for r in run.requests]
    for name, record in records:
        for field, value in _numbers(record):
            fits = math.isfinite(value) if isinstance(value, float) else abs(value) < LARGEST_NUMBER
            require(fits, name, "numbers", f"{field} is not a finite number below 2^63")


def _numbers(value: object, field: str = "") -> Iterator[tuple[str, float | int]]:
    """Every declared number in a record with the name of its field. Fields of later versions are not looked at."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _numbers(getattr(value, name), name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, field)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield field, value


# ------------------------------------------------------------------------------------------------- header
def _check_header(header: Header) -> Scenario:
    """The header agrees with itself and with its scenario. Returns the scenario."""
    try:
        scenario = Scenario.parse(header.scenario)
    except ScenarioError as error:
        raise CheckError("header", "header_scenario", f"the scenario is not valid: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckError("header", "header_scenario", f"the scenario cannot be read: {type(error).__name__}") from None
    _check_named(header)
    _check_agreement(header, scenario)
    _check_model(header)
    return scenario


def _check_named(header: Header) -> None:
    named = re.fullmatch(r"run-[0-9a-f]{12}", header.run_id)
    require(named, "header", "header_id", f"run_id is {header.run_id!r}; it is 'run-' and 12 hexadecimal digits")
    try:
        datetime.fromisoformat(header.created_utc)
    except ValueError:
        raise CheckError("header", "header_id", f"created_utc {header.created_utc!r} is not an ISO time") from None


def _check_agreement(header: Header, scenario: Scenario) -> None:
    pairs = [
        ("block_size", header.block_size, scenario.block_size),
        ("num_blocks", header.num_blocks, scenario.limits.num_blocks),
        ("dtype", header.dtype, scenario.dtype),
    ]
    if scenario.kv_dtype is not None:
        pairs.append(("kv_dtype", header.kv_dtype, scenario.kv_dtype))
    for field, recorded, asked in pairs:
        require(recorded == asked, "header", "header_scenario", f"{field} is {recorded}, the scenario asks for {asked}")
    require(
        header.kv_dtype in BYTES_PER_ELEMENT, "header", "header_scenario", f"kv_dtype {header.kv_dtype!r} is unknown"
    )
    device = header.device
    require(device.threads >= 1, "header", "header_device", f"threads is {device.threads}; it is 1 or more")
    require(device.memory_bytes >= 1, "header", "header_device", f"memory_bytes is {device.memory_bytes}")
    for field in ("read_gbps", "matmul_tflops"):
        rate = getattr(device, field)
        require(rate is None or rate > 0, "header", "header_device", f"{field} is {rate}; it is above 0, or null")


def _check_model(header: Header) -> None:
    model = header.model
    for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size"):
        value = getattr(model, field)
        require(1 <= value < LARGEST_DIMENSION, "header", "header_model", f"{field} is {value}; it is 1 or more")
    require(
        model.num_heads % model.num_kv_heads == 0,
        "header",
        "header_model",
        f"{model.num_heads} query heads cannot share {model.num_kv_heads} KV heads evenly",
    )
    require(
        model.num_parameters >= model.vocab_size * model.hidden_size,
        "header",
        "header_model",
        f"num_parameters is {model.num_parameters}, less than the embedding table alone",
    )
    require(model.weight_bytes >= 1, "header", "header_model", f"weight_bytes is {model.weight_bytes}; it is above 0")
    try:
        element_sizes(header)
    except ValueError as error:
        raise CheckError("header", "header_model", str(error)) from None


# ------------------------------------------------------------------------------------------------- requests
def _spec_prompt_tokens(spec: RequestSpec) -> int | None:
    """Prompt length as far as the scenario alone fixes it."""
    if spec.follows is not None:
        return None
    if spec.prompt_token_ids is not None:
        return len(spec.prompt_token_ids)
    return None if spec.chat else spec.num_prompt_tokens


def _match_records(run: Run, tracks: dict[str, RequestTrack]) -> dict[str, RequestRecord]:
    """One record for each request of the scenario. Effect: tracks learn their prompt length and arrival."""
    records: dict[str, RequestRecord] = {}
    for record in run.requests:
        name = f"request {record.request_id}"
        require(record.request_id in tracks, name, "request_known", "the scenario has no such request")
        require(record.request_id not in records, name, "request_known", "the request has two records")
        records[record.request_id] = record
        track = tracks[record.request_id]
        fixed = track.num_prompt_tokens
        require(
            record.num_prompt_tokens >= 1 and fixed in (None, record.num_prompt_tokens),
            name,
            "prompt_tokens",
            f"num_prompt_tokens is {record.num_prompt_tokens}, the scenario gives {fixed or 'at least 1'}",
        )
        asked = track.spec.arrival_s + _follows_at(name, record, track.spec, records)
        same = abs(record.arrival_s - asked) <= TIME_SLACK_S
        require(same, name, "arrival", f"arrival_s is {record.arrival_s}, the scenario asks for {asked}")
        track.num_prompt_tokens, track.arrival_s = record.num_prompt_tokens, record.arrival_s
    missing = [r for r in tracks if r not in records]
    require(not missing, f"request {missing[0] if missing else None}", "request_known", "the request has no record")
    return records


def _follows_at(name: str, record: RequestRecord, spec: RequestSpec, before: dict[str, RequestRecord]) -> float:
    """When the request was over that this one follows (0 if none); its text is the beginning of this one's prompt."""
    if spec.follows is None:
        return 0.0
    leader = before.get(spec.follows)
    require(leader is not None, name, "request_known", f"it follows {spec.follows}, which has no record before it")
    require(leader.completion_s is not None, name, "arrival", f"it follows {spec.follows}, which was never over")
    text = leader.num_prompt_tokens + leader.num_output_tokens
    own = len(spec.prompt_token_ids) if spec.prompt_token_ids is not None else 0 if spec.prompt is None else None
    fits = record.num_prompt_tokens >= text if own is None else record.num_prompt_tokens == text + own
    told = f"num_prompt_tokens is {record.num_prompt_tokens}; {spec.follows} left {text} tokens"
    require(fits, name, "prompt_tokens", told)
    return leader.completion_s


def _check_end(replay: StepReplay, run: Run) -> None:
    """After the last step nothing is in use and nothing runs or waits."""
    last = f"step {run.steps[-1].step}" if run.steps else "header"
    held = {r: t for r, t in replay.pool.blocks.tables.items() if t}
    require(not held, last, "end_empty", f"blocks are in use after the last step: {dict(list(held.items())[:3])}")
    for track in replay.tracks.values():
        aborted_before_any_step = track.state == "waiting" and not track.num_computed_tokens
        require(
            track.state == "finished" or aborted_before_any_step,
            f"request {track.request_id}",
            "end_empty",
            f"the request is still {track.state} after the last step",
        )


def _check_request(record: RequestRecord, track: RequestTrack) -> None:
    """A request's record says what its steps said."""
    name = f"request {record.request_id}"
    finish = track.finish_reason or "abort"
    require(
        record.output_token_ids == track.outputs, name, "outputs", "output_token_ids differ from the steps' outputs"
    )
    expected = {
        "num_output_tokens": len(track.outputs),
        "finish_reason": finish,
        "num_preemptions": track.num_preemptions,
        "num_cached_tokens": track.num_cached_tokens,
    }
    for field, value in expected.items():
        found = getattr(record, field)
        require(found == value, name, f"record_{field}", f"{field} is {found!r}, the steps say {value!r}")
    _check_moment(name, "first_scheduled_s", record.first_scheduled_s, track.first_scheduled)
    _check_moment(name, "first_token_s", record.first_token_s, track.first_token, at_end=True)
    if finish == "abort":
        require(record.completion_s is not None, name, "record_times", "completion_s is missing")
    else:
        _check_moment(name, "completion_s", record.completion_s, track.last_token, at_end=True)
    moments = [record.arrival_s, record.first_scheduled_s, record.first_token_s, record.completion_s]
    given = [m for m in moments if m is not None]
    ordered = all(a <= b + TIME_SLACK_S for a, b in pairwise(given))
    require(ordered, name, "record_times", f"arrival, first scheduled, first token, completion go backwards: {given}")


def _check_moment(
    name: str, field: str, moment: float | None, step: tuple[int, float, float] | None, at_end: bool = False
) -> None:
    """A recorded moment lies inside the step in which it happened (a token: at its end); null if it never did."""
    if step is None:
        require(moment is None, name, "record_times", f"{field} is {moment}, but no step did it")
        return
    number, begin, end = step[0], step[2] if at_end else step[1], step[2]
    inside = moment is not None and begin - TIME_SLACK_S <= moment <= end + TIME_SLACK_S
    require(inside, name, "record_times", f"{field} is {moment}; step {number} says {begin} to {end}")
