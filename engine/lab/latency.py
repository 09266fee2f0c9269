"""One request's time: how long it queued, when each token came out, and why it waited whenever it did not run.

It decides each latency's definition once (those of vLLM and vidur: queue = first scheduled − arrival, TTFT = first
token − arrival, TPOT = (completion − first token)/(n − 1)). It measures nothing and fills no gap: what is undefined is
None, never 0, and a reason is the scheduler's own. Invariant: E2E = TTFT + (n − 1)·TPOT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.lab.records import FinishReason, Reason, RequestRecord, Run, StepRecord

WaitReason = Reason | Literal["step_running", "not_its_turn"]


@dataclass(frozen=True)
class RequestMetrics:
    """Latencies of one request in seconds. None where undefined: no token, one token only (TPOT), an abort (E2E)."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: float
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    num_preemptions: int
    num_cached_tokens: int
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class TokenTime:
    """One output token. ``latency_s`` is TTFT for the first (from arrival), for the others the gap before it."""

    request_id: str
    index: int  # 0 = the first output token
    token_id: int
    step: int
    t_s: float
    latency_s: float


def request_record(run: Run, request_id: str) -> RequestRecord:
    """The record of a request. Pure. Raises: KeyError."""
    for record in run.requests:
        if record.request_id == request_id:
            return record
    raise KeyError(request_id)


def request_metrics(record: RequestRecord) -> RequestMetrics:
    """Latencies of one request. Pure."""
    first, done = record.first_token_s, record.completion_s
    ended = record.finish_reason in ("stop", "length")
    tpot = None
    if ended and first is not None and done is not None and record.num_output_tokens > 1:
        tpot = (done - first) / (record.num_output_tokens - 1)
    return RequestMetrics(
        request_id=record.request_id,
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        arrival_s=record.arrival_s,
        queue_s=_since(record.first_scheduled_s, record.arrival_s),
        ttft_s=_since(first, record.arrival_s),
        tpot_s=tpot,
        e2e_s=_since(done, record.arrival_s) if ended else None,
        num_preemptions=record.num_preemptions,
        num_cached_tokens=record.num_cached_tokens,
        finish_reason=record.finish_reason,
    )


def all_request_metrics(run: Run) -> dict[str, RequestMetrics]:
    """Latencies by request id, in the order of the records. Pure."""
    return {record.request_id: request_metrics(record) for record in run.requests}


def token_times(run: Run) -> dict[str, tuple[TokenTime, ...]]:
    """When each token of each request came out; a token's time is the end of its step. Pure."""
    times: dict[str, list[TokenTime]] = {record.request_id: [] for record in run.requests}
    arrivals = {record.request_id: record.arrival_s for record in run.requests}
    for step in run.steps:
        for output in step.outputs:
            if output.token_id is None or output.request_id not in times:
                continue
            mine = times[output.request_id]
            since = mine[-1].t_s if mine else arrivals[output.request_id]
            latency = step.t_end_s - since
            mine.append(TokenTime(output.request_id, len(mine), output.token_id, step.step, step.t_end_s, latency))
    return {request_id: tuple(tokens) for request_id, tokens in times.items()}


def inter_token_gaps(run: Run, request_id: str) -> tuple[float, ...]:
    """Seconds between neighbouring tokens of a request; their mean is its TPOT. Pure. Raises: KeyError."""
    return tuple(token.latency_s for token in token_times(run)[request_id][1:])


def _since(moment: float | None, arrival: float) -> float | None:
    return None if moment is None else moment - arrival


@dataclass(frozen=True)
class Wait:
    """A request did not run in [t_begin_s, t_end_s), and why.

    ``step_running``: it arrived while a step ran, and was first considered at the next. ``not_its_turn``: it had been
    admitted, but the step's tokens went to others. All other reasons are the scheduler's own, as recorded.
    """

    t_begin_s: float
    t_end_s: float
    why: WaitReason

    @property
    def seconds(self) -> float:
        return self.t_end_s - self.t_begin_s


def waits(run: Run, request_id: str) -> tuple[Wait, ...]:
    """When a request was there and did not run, in order, neighbours with one reason joined. Pure. Raises: KeyError."""
    record = request_record(run, request_id)
    return _waits(record, _services_for(record, _lanes(run)))


def all_waits(run: Run) -> dict[str, tuple[Wait, ...]]:
    """The waits of every request; for many requests far cheaper than one by one. Pure."""
    lanes = _lanes(run)
    return {record.request_id: _waits(record, _services_for(record, lanes)) for record in run.requests}


@dataclass(frozen=True, slots=True)
class _Service:
    """A step and the pause after it: [t_begin_s, t_end_s), who ran in it and why others did not."""

    t_begin_s: float
    t_end_s: float
    served: frozenset[str]
    refused: dict[str, Reason]


def _lanes(run: Run) -> list[list[_Service]]:
    """The services of the one engine, or of each worker: first that for prompts, then that for decoding."""
    names = [worker.name for worker in run.header.workers] if any(step.worker for step in run.steps) else [None]
    return [_services([step for step in run.steps if step.worker == name]) for name in names]


def _services_for(record: RequestRecord, lanes: list[list[_Service]]) -> list[_Service]:
    """What a request had before it: with two workers the first one's services up to its first token, then the other's.

    Between the two it is on its way, which belongs to neither.
    """
    if len(lanes) == 1 or record.first_token_s is None:
        return lanes[0]
    moved_s = record.first_token_s
    before = [service for service in lanes[0] if service.t_begin_s < moved_s]
    before[-1:] = [replace(service, t_end_s=min(service.t_end_s, moved_s)) for service in before[-1:]]
    mine = (service.t_begin_s for service in lanes[1] if record.request_id in service.served)
    goes_on_s = min(mine, default=math.inf)
    on_its_way = _Service(moved_s, goes_on_s, frozenset(), {})
    return [*before, on_its_way, *(service for service in lanes[1] if service.t_begin_s >= goes_on_s)]


def _services(steps: Sequence[StepRecord]) -> list[_Service]:
    ends = [step.t_begin_s for step in steps[1:]] + [step.t_end_s for step in steps[-1:]]
    return [
        _Service(
            step.t_begin_s,
            end_s,
            frozenset(row.request_id for row in step.scheduled),
            {refused.request_id: refused.why for refused in step.refused},
        )
        for step, end_s in zip(steps, ends, strict=True)
    ]


def _waits(record: RequestRecord, services: list[_Service]) -> tuple[Wait, ...]:
    if not services:
        return ()
    found: list[Wait] = []
    end_s = record.completion_s if record.completion_s is not None else math.inf
    first = next((s.t_begin_s for s in services if s.t_begin_s >= record.arrival_s), services[-1].t_end_s)
    _append(found, Wait(record.arrival_s, min(first, end_s), "step_running"))
    for service in services:
        if service.t_begin_s < record.arrival_s or record.request_id in service.served:
            continue
        if service.t_begin_s >= end_s:
            break
        why = service.refused.get(record.request_id, "not_its_turn")
        _append(found, Wait(service.t_begin_s, min(service.t_end_s, end_s), why))
    return tuple(found)


def _append(found: list[Wait], wait: Wait) -> None:
    if wait.seconds <= 0:
        return
    if found and found[-1].why == wait.why and found[-1].t_end_s == wait.t_begin_s:
        wait = Wait(found.pop().t_begin_s, wait.t_end_s, wait.why)
    found.append(wait)
