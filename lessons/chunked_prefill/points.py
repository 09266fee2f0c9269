"""One Run with the long prompt as one point: its TTFT, the others' worst gap, and what was computed in between.

It decides which gap counts (the longest of any decoder that was there when the prompt arrived) and how the roofline
prices both sides from the recorded work of the very same steps. It measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.lab.metrics import request_metrics, request_record
from engine.lab.records import Run, StepRecord
from engine.lab.stalls import Gap, token_gaps
from engine.lab.work import moved_bytes, roofline_s
from lessons.chunked_prefill.scenarios import CHUNKED, LONG, WHOLE, WITHOUT, budget_of
from lessons.facts_error import FactsError

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Point:
    """``steps``: those in which a part of the long prompt was computed. Times in seconds."""

    role: str
    run: Run
    budget: int
    length: int
    ttft_s: float
    queue_s: float
    worst: Gap
    steps: tuple[StepRecord, ...]
    held_steps: int  # the most steps that one decoder was left out of, one after the other

    @property
    def num_chunks(self) -> int:
        return len(self.steps)

    @property
    def most_tokens(self) -> int:
        """The most tokens in a step that computed a part of the prompt."""
        return max(step.work.tokens for step in self.steps)

    @property
    def weight_reads(self) -> int:
        """Bytes of weights read by the steps of the prompt."""
        return sum(step.work.weight_bytes for step in self.steps)

    def modelled_ttft_s(self) -> float | None:
        """The waiting as it was, and for each step of the prompt the least time the ceilings allow. Pure."""
        seconds = modelled_s(self.run, self.steps)
        return None if seconds is None else self.queue_s + seconds

    def modelled_gap_s(self) -> float | None:
        """The least time the ceilings allow for the steps of the worst gap. Pure."""
        return modelled_s(self.run, self.worst.steps)


def modelled_s(run: Run, steps: Iterable[StepRecord]) -> float | None:
    """The sum over steps of the slower of moving the bytes and doing the FLOPs; None without ceilings. Pure."""
    device = run.header.device
    if not device.read_gbps or not device.matmul_tflops:
        return None
    return sum(roofline_s(s.work.flops, moved_bytes(s.work), device.read_gbps, device.matmul_tflops) for s in steps)


def usual_gap_s(runs: Runs) -> float:
    """The median gap of the others when nobody disturbs them. Raises: FactsError."""
    run = runs.get(WITHOUT)
    gaps = [gap.seconds for found in token_gaps(run).values() for gap in found] if run is not None else []
    if len(gaps) < 2:
        raise FactsError("there is no finished run of the others alone yet; run the whole study")
    return statistics.median(gaps)


def points(runs: Runs) -> list[Point]:
    """The Runs with the long prompt, whole first, then by budget, largest first. Pure.

    Raises: FactsError when one of them is unfinished, or the prompt came when the others were done.
    """
    roles = [role for role in (WHOLE, *reversed(CHUNKED)) if role in runs]
    return [_point(role, runs[role]) for role in roles]


def _point(role: str, run: Run) -> Point:
    if any(r.completion_s is None or r.finish_reason == "abort" for r in run.requests) or not run.steps:
        raise FactsError(f"the run {role} did not finish; run the study again")
    record = request_record(run, LONG)
    steps = tuple(s for s in run.steps if any(r.request_id == LONG and r.phase == "prefill" for r in s.scheduled))
    gaps = [
        gap
        for name, found in token_gaps(run).items()
        for gap in found
        if name != LONG and gap.t_end_s > steps[0].t_begin_s and gap.t_begin_s < steps[-1].t_end_s
    ]
    if not gaps:
        raise FactsError("the long prompt came when the others were done; run the study again")
    metrics = request_metrics(record)
    return Point(
        role=role,
        run=run,
        budget=budget_of(role),
        length=record.num_prompt_tokens,
        ttft_s=metrics.ttft_s,
        queue_s=metrics.queue_s,
        worst=max(gaps, key=lambda gap: gap.seconds),
        steps=steps,
        held_steps=max(gap.num_held_steps for gap in gaps),
    )


def prompt_rows(run: Run) -> list[tuple[StepRecord, int, int]]:
    """(step, tokens of the long prompt in it, decodes beside them) for each step of the prompt. Pure."""
    found = []
    for step in run.steps:
        mine = [row.num_tokens for row in step.scheduled if row.request_id == LONG and row.phase == "prefill"]
        if mine:
            found.append((step, mine[0], sum(row.phase == "decode" for row in step.scheduled)))
    return found
