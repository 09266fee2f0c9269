"""A Run for other tools: Chrome trace JSON (open it in Perfetto or chrome://tracing) and CSV.

It decides only how records become tracks and columns: a track per request, one for the engine's steps with the parts of
their time, counters for the batch, the queues and the blocks. It computes no metric of its own and reads no clock.
Invariant: every bar lies inside the run and no two bars of one request overlap. The format is the Trace Event Format.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, Literal

from engine.lab.draft_use import accepted_tokens
from engine.lab.latency import waits
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.steps import duration_s, num_rows, step_kind
from engine.lab.tables import request_rows, step_rows

ENGINE, REQUESTS, BETWEEN = 1, 2, 3  # the processes of the trace; the last where workers send to each other
Event = dict[str, Any]


def to_chrome(run: Run) -> dict[str, Any]:
    """The Run as a Chrome trace. Pure; the result is JSON. Times in it are microseconds, as the format wants."""
    tracks = {record.request_id: index for index, record in enumerate(run.requests)}
    lanes = list(dict.fromkeys(step.worker for step in run.steps))  # one, or one for each worker that tells steps
    events = [*_names(run, tracks, lanes)]
    for step in run.steps:
        events += _step_bars(step, lanes.index(step.worker))
        events += _counters(step)
        events += _request_bars(step, tracks)
    for record in run.requests:
        events += _lifeline(run, record, tracks[record.request_id])
    events += _between(run)
    header = run.header
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": run.run_id,
            "created_utc": header.created_utc,
            "model": header.model.name,
            "dtype": header.dtype,
            "device": header.device.name,
            "policy": str(header.scenario.get("policy", "")),
        },
    }


def to_csv(run: Run, table: Literal["steps", "requests"] = "steps") -> str:
    """One row per step, or per request, with a header line. Pure. An undefined value is an empty cell."""
    rows = step_rows(run) if table == "steps" else request_rows(run)
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _bar(name: str, process: int, track: int, begin_s: float, seconds: float, kind: str, **args: Any) -> Event:
    times = {"ts": _us(begin_s), "dur": _us(seconds)}
    return {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": track, **times, "args": args}


def _mark(name: str, track: int, moment_s: float, **args: Any) -> Event:
    where = {"pid": REQUESTS, "tid": track, "ts": _us(moment_s), "s": "t"}
    return {"ph": "i", "name": name, "cat": "mark", **where, "args": args}


def _names(run: Run, tracks: dict[str, int], lanes: list[str | None]) -> Iterator[Event]:
    for process, name in ((ENGINE, f"engine: {run.header.model.name}"), (REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for lane, worker in enumerate(lanes):
        name = f"steps: {worker}" if worker else "steps"
        yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": lane, "args": {"name": name}}
    for request_id, track in tracks.items():
        place = {"pid": REQUESTS, "tid": track}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": request_id}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": track}}


def _step_bars(step: StepRecord, lane: int) -> Iterator[Event]:
    """The step, and inside it the parts of its time in the order in which they happen."""
    kind, tokens = step_kind(step), step.work.tokens
    yield _bar(
        f"step {step.step}: {kind}",
        ENGINE,
        lane,
        step.t_begin_s,
        duration_s(step),
        kind,
        tokens=tokens,
        padding_tokens=step.work.padding_tokens,
        flops=step.work.flops,
        weight_bytes=step.work.weight_bytes,
        kv_read_bytes=step.work.kv_read_bytes,
        kv_write_bytes=step.work.kv_write_bytes,
        admitted=step.admitted,
        preempted=step.preempted,
    )
    begin_s = step.t_begin_s
    for part in type(step.time_ms).model_fields:
        seconds = min(getattr(step.time_ms, part) / 1e3, max(step.t_end_s - begin_s, 0))
        if seconds > 0:
            yield _bar(part, ENGINE, lane, begin_s, seconds, "part")
        begin_s += seconds


def _counters(step: StepRecord) -> Iterator[Event]:
    blocks, queues = step.blocks, step.queues
    padding = len(step.scheduled) - num_rows(step)
    during = {"rows": num_rows(step), "padding": padding}
    after = {
        "KV blocks": {"in use": blocks.in_use, "cached": blocks.cached, "free": blocks.free},
        "queues": {"running": queues.running, "waiting": queues.waiting},
    }
    yield {"ph": "C", "name": "batch", "pid": ENGINE, "ts": _us(step.t_begin_s), "args": during}
    for name, values in after.items():
        yield {"ph": "C", "name": name, "pid": ENGINE, "ts": _us(step.t_end_s), "args": values}


def _request_bars(step: StepRecord, tracks: dict[str, int]) -> Iterator[Event]:
    tokens = {output.request_id: output.token_id for output in step.outputs}
    accepted = accepted_tokens(step)
    for row in step.scheduled:
        if row.request_id not in tracks:
            continue
        name = row.phase if row.phase in ("decode", "padding") else f"{row.phase} {row.num_tokens}"
        guesses = {}
        if row.num_draft_tokens:
            right = accepted[row.request_id]
            name = f"decode, {right} of {row.num_draft_tokens} guesses right"
            guesses = {"num_draft_tokens": row.num_draft_tokens, "num_accepted_tokens": right}
        yield _bar(
            name,
            REQUESTS,
            tracks[row.request_id],
            step.t_begin_s,
            duration_s(step),
            row.phase,
            step=step.step,
            start=row.start,
            num_tokens=row.num_tokens,
            num_cached_tokens=row.num_cached_tokens,
            token_id=tokens.get(row.request_id),
            **guesses,
        )
    for request_id in step.preempted:
        if request_id in tracks:
            yield _mark("preempted", tracks[request_id], step.t_begin_s, step=step.step)


def _between(run: Run) -> Iterator[Event]:
    """What workers sent to each other: prompts on one track, or for each worker of a ring its arithmetic and sends."""
    names: dict[int, str] = {}
    for step in run.steps:
        for sent in step.received:
            names[0] = "wire"
            seconds = sent.t_end_s - sent.t_begin_s
            yield _bar(sent.request_id, BETWEEN, 0, sent.t_begin_s, seconds, "send", num_bytes=sent.num_bytes)
        for span in step.ring.spans if step.ring else ():
            track = 2 * span.worker + (span.op == "send")
            names[track] = f"ring {span.worker}: {span.op}"
            where = {"layer": span.layer, "source": span.source, "num_bytes": span.num_bytes}
            name = f"layer {span.layer}, part {span.source}"
            yield _bar(name, BETWEEN, track, span.t_begin_s, span.t_end_s - span.t_begin_s, span.op, **where)
    if names:
        yield {"ph": "M", "name": "process_name", "pid": BETWEEN, "args": {"name": "between workers"}}
    for track, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": BETWEEN, "tid": track, "args": {"name": name}}


def _lifeline(run: Run, record: RequestRecord, track: int) -> Iterator[Event]:
    for wait in waits(run, record.request_id):
        yield _bar(f"waiting: {wait.why}", REQUESTS, track, wait.t_begin_s, wait.seconds, "waiting", why=wait.why)
    yield _mark("arrival", track, record.arrival_s)
    if record.first_token_s is not None:
        yield _mark("first token", track, record.first_token_s)
    if record.completion_s is not None:
        yield _mark(f"finished: {record.finish_reason}", track, record.completion_s, reason=record.finish_reason)
