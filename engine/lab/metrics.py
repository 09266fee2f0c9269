"""What a Run says in numbers: every rate, percentile, share and table a page shows, as pure functions of the records.

It decides what is counted over what (rates over the makespan, shares over computed tokens, phase rates over the steps
that did nothing else), measures nothing and fills no gap: what is undefined is None, never 0. Latencies of single
requests are in ``engine.lab.latency``, KV memory in ``engine.lab.kv_use``; both can be had from here. Goodput follows
DistServe.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from engine.lab.kv_use import KvUse, kv_after_steps, kv_of_request
from engine.lab.latency import (
    RequestMetrics,
    TokenTime,
    Wait,
    WaitReason,
    all_request_metrics,
    inter_token_gaps,
    request_metrics,
    request_record,
    token_times,
    waits,
)
from engine.lab.records import Run
from engine.lab.steps import StepKind, achieved_gbps, achieved_tflops, duration_s, num_rows, step_kind
from engine.lab.tables import request_rows, request_table, step_rows, step_table

__all__ = [
    "Goodput",
    "KvUse",
    "Percentiles",
    "PhaseRate",
    "RequestMetrics",
    "RunMetrics",
    "Spread",
    "StepKind",
    "TokenTime",
    "Wait",
    "WaitReason",
    "achieved_gbps",
    "achieved_tflops",
    "all_request_metrics",
    "duration_s",
    "goodput",
    "inter_token_gaps",
    "kv_after_steps",
    "kv_of_request",
    "makespan_s",
    "num_rows",
    "percentile",
    "percentiles",
    "phase_rate",
    "request_metrics",
    "request_record",
    "request_rows",
    "request_table",
    "run_metrics",
    "spread",
    "step_kind",
    "step_rows",
    "step_spread",
    "step_table",
    "token_times",
    "waits",
]

NOISY_SPREAD = 0.10  # measured values that differ by more than this are not drawn as one number
FEWEST_SAMPLES = 3


# ------------------------------------------------------------------------------------------------- the whole run
@dataclass(frozen=True)
class Percentiles:
    """Of a list of values; None for all when the list is empty. Linear interpolation between neighbours."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    maximum: float | None


@dataclass(frozen=True)
class RunMetrics:
    """A Run in one glance. Rates are per second of makespan: from the first arrival to the last completion."""

    num_requests: int
    num_finished: int
    num_output_tokens: int
    makespan_s: float | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    queue_s: Percentiles
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    num_steps: int
    num_preemptions: int
    mean_rows: float | None  # real rows in a step, weighted by the step's duration
    padding_share: float | None  # padding tokens over all tokens computed
    peak_blocks_in_use: int


@dataclass(frozen=True)
class Goodput:
    """Requests that met the objective. A request with one token has no TPOT and cannot miss it."""

    num_within: int
    share: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None


def percentile(values: Iterable[float], q: float) -> float | None:
    """The q-th percentile, q in [0, 100], by linear interpolation; None of nothing. Pure."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * q / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return min(low + (high - low) * (place - math.floor(place)), high)  # rounding must not step over the neighbour


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Percentiles of the values that are defined. Pure."""
    known = [v for v in values if v is not None]
    p50, p90, p99 = (percentile(known, q) for q in (50, 90, 99))
    return Percentiles(len(known), p50, p90, p99, statistics.fmean(known) if known else None, max(known, default=None))


def makespan_s(run: Run) -> float | None:
    """Seconds from the first arrival to the last completion. None while nothing has completed. Pure."""
    ends = [r.completion_s for r in run.requests if r.completion_s is not None]
    return max(ends) - min(r.arrival_s for r in run.requests) if ends else None


def run_metrics(run: Run) -> RunMetrics:
    """The Run in one glance. Pure."""
    each = list(all_request_metrics(run).values())
    finished = sum(1 for m in each if m.e2e_s is not None)
    tokens = sum(m.num_output_tokens for m in each)
    span = makespan_s(run)
    busy = sum(duration_s(step) for step in run.steps)
    rows = sum(num_rows(step) * duration_s(step) for step in run.steps)
    padding = sum(step.work.padding_tokens for step in run.steps)
    computed = padding + sum(step.work.tokens for step in run.steps)
    return RunMetrics(
        num_requests=len(each),
        num_finished=finished,
        num_output_tokens=tokens,
        makespan_s=span,
        output_tokens_per_s=_rate(tokens, span),
        requests_per_s=_rate(finished, span),
        queue_s=percentiles(m.queue_s for m in each),
        ttft_s=percentiles(m.ttft_s for m in each),
        tpot_s=percentiles(m.tpot_s for m in each),
        e2e_s=percentiles(m.e2e_s for m in each),
        num_steps=len(run.steps),
        num_preemptions=sum(m.num_preemptions for m in each),
        mean_rows=_rate(rows, busy),
        padding_share=_rate(padding, computed),
        peak_blocks_in_use=max((step.blocks.in_use for step in run.steps), default=0),
    )


def goodput(run: Run, ttft_s: float, tpot_s: float) -> Goodput:
    """Requests and tokens per second that met both objectives (DistServe's goodput). Pure."""
    each = [m for m in all_request_metrics(run).values() if m.finish_reason != "abort"]
    good = [m for m in each if m.ttft_s is not None and m.ttft_s <= ttft_s and (m.tpot_s is None or m.tpot_s <= tpot_s)]
    span = makespan_s(run)
    return Goodput(
        num_within=len(good),
        share=_rate(len(good), len(each)),
        requests_per_s=_rate(len(good), span),
        output_tokens_per_s=_rate(sum(m.num_output_tokens for m in good), span),
    )


def _rate(amount: float, per: float | None) -> float | None:
    return amount / per if per else None


# ------------------------------------------------------------------------------------------------- steps
@dataclass(frozen=True)
class PhaseRate:
    """Tokens per second of the steps that did nothing but this phase."""

    num_steps: int
    num_tokens: int
    seconds: float
    tokens_per_s: float | None


def phase_rate(run: Run, kind: StepKind) -> PhaseRate:
    """How fast steps of one kind computed tokens, all requests together. Pure."""
    steps = [step for step in run.steps if step_kind(step) == kind]
    tokens = sum(step.work.tokens for step in steps)
    seconds = sum(duration_s(step) for step in steps)
    return PhaseRate(len(steps), tokens, seconds, _rate(tokens, seconds))


# ------------------------------------------------------------------------------------------------- noise
@dataclass(frozen=True)
class Spread:
    """How far repeated measurements lie apart: (p90 − p10)/median. ``noisy`` ones are not to be drawn as one number."""

    count: int
    median: float | None
    low: float | None  # p10
    high: float | None  # p90
    relative: float | None
    noisy: bool


def spread(values: Iterable[float]) -> Spread:
    """Spread of repeated measurements; too few of them are noisy by definition. Pure."""
    known = list(values)
    low, median, high = (percentile(known, q) for q in (10, 50, 90))
    relative = (high - low) / median if median else None
    noisy = len(known) < FEWEST_SAMPLES or relative is None or relative > NOISY_SPREAD
    return Spread(len(known), median, low, high, relative, noisy)


def step_spread(run: Run, kind: StepKind = "decode") -> Spread:
    """Spread of the durations of like steps: each over the median of the steps of its kind with as many tokens. Pure.

    The median of the result is 1 by construction; ``relative`` is what the machine, not the workload, added.
    """
    alike: dict[int, list[float]] = {}
    for step in run.steps:
        if step_kind(step) == kind:
            alike.setdefault(step.work.tokens + step.work.padding_tokens, []).append(duration_s(step))
    ratios: list[float] = []
    for durations in alike.values():
        middle = statistics.median(durations)
        if len(durations) >= FEWEST_SAMPLES and middle > 0:
            ratios += [duration / middle for duration in durations]
    return spread(ratios)
