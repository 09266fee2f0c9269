"""What the Runs of a load sweep say: load, throughput and latency of each, the knee, and a queue to compare them with.

It decides how a load is read from a Run (arrivals alone), where the knee is (the load with the most throughput per
second of latency, Kleinrock's power) and what the model of the queue is; every latency is ``engine.lab.metrics``'s.
Invariant: a point depends on its own Run and nothing else, so points can appear one by one.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.lab.metrics import all_request_metrics, duration_s, inter_token_gaps, makespan_s, percentile
from engine.lab.records import RequestRecord, Run
from lessons.metrics.scenarios import SHARES, capacity_rps

FEWEST_POINTS = 3  # a knee needs a point on either side


@dataclass(frozen=True)
class Load:
    """One load. Rates per second, times in seconds, means over its requests."""

    role: str
    run: Run
    num_requests: int
    offered_rps: float
    requests_per_s: float
    tokens_per_s: float
    ttft_s: float
    ttft_p90_s: float
    tpot_s: float
    e2e_s: float
    queue_s: float
    in_system: float  # requests waiting or running, mean over time, from the step records

    @property
    def power(self) -> float:
        """Throughput over latency; the knee is where it is largest."""
        return self.tokens_per_s / self.e2e_s


def loads(runs: Mapping[str, Run]) -> list[Load]:
    """The loads there are, the smallest first; an unfinished Run gives none. Pure."""
    found = [_load(role, runs[role]) for role in SHARES if role in runs]
    return sorted((load for load in found if load is not None), key=lambda load: load.offered_rps)


def _load(role: str, run: Run) -> Load | None:
    each = list(all_request_metrics(run).values())
    span = makespan_s(run)
    if not span or len(each) < 2 or any(m.e2e_s is None or m.tpot_s is None for m in each):
        return None
    tokens = sum(m.num_output_tokens for m in each)
    return Load(
        role=role,
        run=run,
        num_requests=len(each),
        offered_rps=offered_rps(run),
        requests_per_s=len(each) / span,
        tokens_per_s=tokens / span,
        ttft_s=statistics.fmean(m.ttft_s for m in each),
        ttft_p90_s=percentile([m.ttft_s for m in each], 90),
        tpot_s=statistics.fmean(m.tpot_s for m in each),
        e2e_s=statistics.fmean(m.e2e_s for m in each),
        queue_s=statistics.fmean(m.queue_s for m in each),
        in_system=in_system(run),
    )


def offered_rps(run: Run) -> float:
    """Arrivals per second, from the gaps between them. Pure."""
    times = [r.arrival_s for r in run.requests]
    return (len(times) - 1) / (max(times) - min(times))


def in_system(run: Run) -> float:
    """Requests waiting or running, mean over the makespan, counted step by step. Pure.

    A request that arrives while a step runs is counted from the next step on, so this is a little low.
    """
    return sum((len(s.scheduled) + len(s.refused)) * duration_s(s) for s in run.steps) / makespan_s(run)


def knee(found: Sequence[Load]) -> Load | None:
    """The load with the most throughput per second of latency; None for too few points. Pure."""
    return max(found, key=lambda load: load.power) if len(found) >= FEWEST_POINTS else None


# ------------------------------------------------------------------ the model beside the measurement
def service_s(runs: Mapping[str, Run]) -> float:
    """Seconds a request holds its place when all places are taken: places ÷ capacity. Pure. Raises: FactsError."""
    return places(runs["burst"]) / capacity_rps(runs)


def places(run: Run) -> int:
    """How many requests one step may serve. Pure."""
    return int(run.header.scenario["limits"]["max_requests"])


def modelled_queue_s(run: Run, held_s: float) -> float:
    """Mean wait if each request held one of the places for ``held_s`` seconds, with the Run's arrivals. Pure."""
    free = [0.0] * places(run)
    waits = []
    for arrival in sorted(r.arrival_s for r in run.requests):
        start = max(arrival, heapq.heappop(free))
        waits.append(start - arrival)
        heapq.heappush(free, start + held_s)
    return statistics.fmean(waits)


def mean_gap_s(run: Run, request_id: str) -> float:
    """The mean gap between a request's tokens, from the step records alone. Pure."""
    return statistics.fmean(inter_token_gaps(run, request_id))


def slowest_start(run: Run) -> RequestRecord:
    """The request that waited longest for its first token. Pure."""
    return max(run.requests, key=lambda r: (r.first_token_s or 0.0) - r.arrival_s)
