"""The points of a roofline from the step records of Runs: intensity, rate, and the roof above each.

It decides which steps make a point (steps of one kind and size, their median) and measures nothing. A rate is FLOPs
over the time of the forward pass alone; a modelled rate is the lower of the two ceilings. Invariant: a point stands on
the work its steps recorded, never on a formula of its own. The roofline is that of Williams, Waterman and Patterson.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.lab.metrics import num_rows, spread, step_kind
from engine.lab.records import ModelInfo, Run, StepRecord
from engine.lab.work import (
    ChunkShape,
    bytes_per_element,
    element_sizes,
    intensity,
    moved_bytes,
    roofline_s,
    step_work,
    stored_bytes_per_element,
)
from lessons.roofline.scenarios import ROLES, size_of

Kind = Literal["prefill", "decode"]
LONGEST_PROMPT = 131_072  # where the search for the ridge gives up


@dataclass(frozen=True)
class Point:
    """Like steps of one Run. ``size``: prompt tokens of a prefill, requests of a decode step. Times in seconds."""

    role: str
    kind: Kind
    size: int
    run: Run
    count: int
    flops: float
    num_bytes: float
    forward_s: float  # median
    low_s: float  # p10
    high_s: float  # p90
    noisy: bool

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.num_bytes

    @property
    def tflops(self) -> float:
        """Achieved rate."""
        return self.flops / self.forward_s / 1e12

    @property
    def gbps(self) -> float:
        """Achieved rate of moving bytes."""
        return self.num_bytes / self.forward_s / 1e9

    def modelled_s(self, read_gbps: float, matmul_tflops: float) -> float:
        """The least time the two ceilings allow. Pure."""
        return roofline_s(self.flops, self.num_bytes, read_gbps, matmul_tflops)

    def in_dtype(self, dtype: str) -> float:
        """The intensity of the same step with weights and cache in ``dtype``. Pure.

        Exact as long as both are of one dtype, as they are here: then every byte moved scales with the element.
        """
        return self.intensity * element_sizes(self.run.header)[0] / bytes_per_element(dtype)


def points(runs: Mapping[str, Run]) -> dict[str, Point]:
    """The points by role, prefill first, each in order of size; a Run without such steps gives none. Pure."""
    found = {role: _point(role, runs[role]) for role in ROLES if role in runs}
    return {role: point for role, point in found.items() if point is not None}


def _point(role: str, run: Run) -> Point | None:
    kind: Kind = "prefill" if role.startswith("prefill") else "decode"
    size = size_of(role)
    steps = [s for s in run.steps if step_kind(s) == kind and _size(s, kind) == size and s.time_ms.forward > 0]
    steps = [s for s in steps if intensity(s.work)]
    if not steps:
        return None
    times = spread(s.time_ms.forward / 1e3 for s in steps)
    return Point(
        role=role,
        kind=kind,
        size=size,
        run=run,
        count=len(steps),
        flops=statistics.median(s.work.flops for s in steps),
        num_bytes=statistics.median(moved_bytes(s.work) for s in steps),
        forward_s=times.median,
        low_s=times.low,
        high_s=times.high,
        noisy=times.noisy,
    )


def _size(step: StepRecord, kind: Kind) -> int:
    return step.work.tokens if kind == "prefill" else num_rows(step)


# ------------------------------------------------------------------ the ridge
def ridge_of(read_gbps: float, matmul_tflops: float) -> float:
    """FLOP per byte at which both ceilings meet. Pure."""
    return matmul_tflops * 1e3 / read_gbps


def prefill_intensity(model: ModelInfo, num_tokens: int, element_bytes: float) -> float:
    """FLOP per byte of the prefill of a fresh prompt. Pure."""
    work = step_work(model, [ChunkShape(0, num_tokens, "prefill", True)], element_bytes, element_bytes)
    return work.flops / moved_bytes(work)


def crossing_tokens(model: ModelInfo, ridge: float) -> int | None:
    """The shortest prompt whose prefill reaches the ridge; None where none does. Pure.

    Intensity only grows with the length: its FLOPs grow at least in proportion, its bytes less.
    """
    size = stored_bytes_per_element(model)
    low, high = 1, LONGEST_PROMPT
    if prefill_intensity(model, high, size) < ridge:
        return None
    while low < high:
        middle = (low + high) // 2
        if prefill_intensity(model, middle, size) < ridge:
            low = middle + 1
        else:
            high = middle
    return low


def measured_crossing(decode: Point, longest: Point) -> float:
    """Prompt tokens whose arithmetic takes as long as one pass must take anyway, from two measured times. Pure.

    The floor is the decode step of one request; the pace is that of the longest prefill, per token.
    """
    return decode.forward_s / (longest.forward_s / longest.size)
