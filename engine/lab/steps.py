"""What one step was: how long, how many real rows, which kind, and how fast it moved and computed. Pure, no torch."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from engine.lab.records import StepRecord
from engine.lab.work import moved_bytes

StepKind = Literal["prefill", "decode", "mixed", "empty"]


def duration_s(step: StepRecord) -> float:
    return step.t_end_s - step.t_begin_s


def num_rows(step: StepRecord) -> int:
    """Requests that really ran in the step (padding rows do not). Pure."""
    return sum(1 for row in step.scheduled if row.phase != "padding")


def step_kind(step: StepRecord) -> StepKind:
    """``prefill`` (recompute is prefill done again), ``decode`` (padding beside it or not), ``mixed`` or ``empty``."""
    phases = {"prefill" if row.phase == "recompute" else row.phase for row in step.scheduled} - {"padding"}
    return "mixed" if len(phases) > 1 else next(iter(phases), "empty")


def computed_ends(step: StepRecord) -> dict[str, int]:
    """Where the computed positions of each real row's request end after the step: wrong guesses do not count. Pure."""
    outputs = Counter(output.request_id for output in step.outputs if output.token_id is not None)
    ends = {}
    for row in step.scheduled:
        if row.phase != "padding":
            num_wrong = row.num_draft_tokens - max(outputs[row.request_id] - 1, 0)
            ends[row.request_id] = row.start + row.num_tokens - max(num_wrong, 0)
    return ends


def achieved_gbps(step: StepRecord) -> float | None:
    """Bytes the step moved over its forward pass, in GB/s (decimal). None if the pass took no time. Pure."""
    return _per_second(moved_bytes(step.work) / 1e9, step)


def achieved_tflops(step: StepRecord) -> float | None:
    """FLOPs of the step over its forward pass, in TFLOP/s. None if the pass took no time. Pure."""
    return _per_second(step.work.flops / 1e12, step)


def _per_second(amount: float, step: StepRecord) -> float | None:
    return amount / (step.time_ms.forward / 1e3) if step.time_ms.forward else None
