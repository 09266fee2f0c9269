"""One rung of the ladder in numbers: what its Run was worth, and what it wasted, counted from the records.

It decides what is counted for the table, once: seconds come from ``engine.lab.metrics``, steps and blocks from
``engine.lab.stalls``. It measures nothing. Invariant: counts depend on the schedule alone and so are the same on every
device; only rates and times are not.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.metrics import num_rows, run_metrics
from engine.lab.prefix_use import prefix_use
from engine.lab.records import Reason, Run
from engine.lab.stalls import Gap, empty_blocks, held_steps, worst_gap
from engine.lab.work import moved_bytes, roofline_s
from lessons.facts_error import FactsError
from lessons.scheduling_ladder.scenarios import RUNGS

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Rung:
    """``held_steps``: steps that left a running request out between two of its tokens, summed over requests.

    ``mean_empty_blocks``: blocks that were somebody's and held nothing yet, after a step on average.
    """

    policy: str
    run: Run
    makespan_s: float
    tokens_per_s: float
    ttft_s: float
    worst: Gap
    num_steps: int
    held_steps: int
    num_preemptions: int
    padding_tokens: int
    computed_tokens: int
    cached_tokens: int
    mean_empty_blocks: float
    most_at_once: int
    admitted_midway: int

    def refusals(self) -> Counter[Reason]:
        """How often each reason was recorded: once per waiting request and step. Pure."""
        return Counter(refused.why for step in self.run.steps for refused in step.refused)

    def modelled_s(self) -> float | None:
        """The least time the device's ceilings allow for these very steps; None while they are not measured. Pure."""
        device = self.run.header.device
        if not device.read_gbps or not device.matmul_tflops:
            return None
        rates = device.read_gbps, device.matmul_tflops
        return sum(roofline_s(step.work.flops, moved_bytes(step.work), *rates) for step in self.run.steps)


def rungs(runs: Runs) -> dict[str, Rung]:
    """The rungs there are, from the bottom up. Pure. Raises: FactsError for a Run that did not finish."""
    return {policy: _rung(policy, runs[policy]) for policy in RUNGS if policy in runs}


def _rung(policy: str, run: Run) -> Rung:
    worst = worst_gap(run)
    if worst is None or any(r.completion_s is None or r.finish_reason == "abort" for r in run.requests):
        raise FactsError(f"the run {policy} did not finish; run the ladder again")
    metrics = run_metrics(run)
    return Rung(
        policy=policy,
        run=run,
        makespan_s=metrics.makespan_s,
        tokens_per_s=metrics.output_tokens_per_s,
        ttft_s=metrics.ttft_s.mean,
        worst=worst,
        num_steps=len(run.steps),
        held_steps=sum(held_steps(run).values()),
        num_preemptions=metrics.num_preemptions,
        padding_tokens=sum(step.work.padding_tokens for step in run.steps),
        computed_tokens=sum(step.work.tokens for step in run.steps),
        cached_tokens=prefix_use(run).num_cached_tokens,
        mean_empty_blocks=statistics.fmean(empty_blocks(run)),
        most_at_once=max(num_rows(step) for step in run.steps),
        admitted_midway=admitted_midway(run),
    )


def admitted_midway(run: Run) -> int:
    """Requests that were admitted for the first time while one admitted in an earlier step was still unfinished. Pure.

    Under static batching there are none: a batch has to drain first.
    """
    alive: set[str] = set()
    seen: set[str] = set()
    count = 0
    for step in run.steps:
        count += len(set(step.admitted) - seen) if alive else 0
        seen |= set(step.admitted)
        alive = (alive | set(step.admitted)) - {o.request_id for o in step.outputs if o.finish_reason}
    return count


def recomputed_tokens(run: Run) -> int:
    """Tokens that were computed again after a preemption. Pure."""
    return sum(row.num_tokens for step in run.steps for row in step.scheduled if row.phase == "recompute")


def refused_steps(run: Run, request_id: str) -> Counter[Reason]:
    """In how many steps each reason kept a request from being admitted, preemptions included. Pure."""
    return Counter(r.why for step in run.steps for r in step.refused if r.request_id == request_id)
