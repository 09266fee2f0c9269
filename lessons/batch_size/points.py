"""One decode step of a batch in numbers: measured from the step records of a Run, and modelled from shapes alone.

It decides which steps count (pure decode steps in which all requests of the part run; their median), what is divided by
what, and how the roofline prices a batch on any device. It measures nothing. Invariant: throughput and utilization of a
point stand on the same seconds, those of the whole step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.lab.metrics import all_request_metrics, duration_s, kv_after_steps, num_rows, spread, step_kind
from engine.lab.records import ModelInfo, Run
from engine.lab.work import decode_step_bytes, decode_step_flops, intensity, moved_bytes, roofline_s
from lessons.batch_size.scenarios import BATCHES, size_of

MOST_REQUESTS = 4096  # where the search for the crossing gives up
PAYS = 1.5  # a doubling of the batch pays if it raises tokens/s by half or more; by 2 would be all of it


@dataclass(frozen=True)
class BatchPoint:
    """Decode steps with ``size`` requests. Times in seconds; ``step_s`` is the median of the whole step."""

    size: int
    run: Run
    count: int
    step_s: float
    low_s: float  # p10
    high_s: float  # p90
    flops: float
    num_bytes: float
    ttft_s: float  # median over the requests, which all arrive at once
    kv_bytes: int  # of the blocks in use at the fullest
    kv_filled_bytes: int  # of the positions that held a token then

    @property
    def tokens_per_s(self) -> float:
        """All requests together."""
        return self.size / self.step_s

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.num_bytes

    def utilization(self, matmul_tflops: float) -> float:
        """Arithmetic done over the most the device could have done in the time of the step."""
        return self.flops / self.step_s / (matmul_tflops * 1e12)

    def modelled_s(self, read_gbps: float, matmul_tflops: float) -> float:
        """The least time the two ceilings allow. Pure."""
        return roofline_s(self.flops, self.num_bytes, read_gbps, matmul_tflops)


def batch_points(runs: Mapping[str, Run]) -> dict[int, BatchPoint]:
    """The points by size, smallest first; a Run without such steps gives none. Pure."""
    found = {size: _point(size, runs[f"batch_{size}"]) for size in BATCHES if f"batch_{size}" in runs}
    return {size: point for size, point in found.items() if point is not None}


def _point(size: int, run: Run) -> BatchPoint | None:
    steps = [s for s in run.steps if step_kind(s) == "decode" and num_rows(s) == size and duration_s(s) > 0]
    steps = [s for s in steps if intensity(s.work)]
    first_tokens = [m.ttft_s for m in all_request_metrics(run).values() if m.ttft_s is not None]
    if not steps or not first_tokens:
        return None
    times = spread(duration_s(s) for s in steps)
    fullest = max(kv_after_steps(run), key=lambda use: (use.reserved_bytes, use.filled_bytes))
    return BatchPoint(
        size=size,
        run=run,
        count=len(steps),
        step_s=times.median,
        low_s=times.low,
        high_s=times.high,
        flops=statistics.median(s.work.flops for s in steps),
        num_bytes=statistics.median(moved_bytes(s.work) for s in steps),
        ttft_s=statistics.median(first_tokens),
        kv_bytes=fullest.reserved_bytes,
        kv_filled_bytes=fullest.filled_bytes,
    )


# ------------------------------------------------------------------ where it stops paying
def last_that_pays(sizes: Sequence[int], tokens_per_s: Sequence[float]) -> int | None:
    """The size up to which every doubling paid (``PAYS``); None if the last one still did. Pure."""
    for index in range(1, len(sizes)):
        if tokens_per_s[index] < PAYS * tokens_per_s[index - 1]:
            return sizes[index - 1]
    return None


def step_line(points: Iterable[BatchPoint]) -> tuple[float, float]:
    """(base, added per request) in seconds: the straight line through step time over batch, by least squares. Pure.

    Base is what a step costs whoever is in it, foremost the reading of the weights.
    """
    points = list(points)
    sizes, times = [p.size for p in points], [p.step_s for p in points]
    slope, base = statistics.linear_regression(sizes, times)
    return base, slope


# ------------------------------------------------------------------ modelled, for any model on any device
@dataclass(frozen=True)
class SharedStep:
    """A decode step of ``batch`` requests as the roofline prices it."""

    batch: int
    flops: int
    num_bytes: int
    seconds: float
    utilization: float

    @property
    def intensity(self) -> float:
        return self.flops / self.num_bytes

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.seconds


def shared_step(model: ModelInfo, batch: int, context: int, read_gbps: float, matmul_tflops: float) -> SharedStep:
    """Weights and cache share a dtype; each request sees ``context`` positions. Pure. Rates are decimal."""
    flops = decode_step_flops(model, context, batch)
    num_bytes = decode_step_bytes(model, context, batch=batch)
    seconds = roofline_s(flops, num_bytes, read_gbps, matmul_tflops)
    return SharedStep(batch, flops, num_bytes, seconds, flops / seconds / (matmul_tflops * 1e12))


def crossing_batch(model: ModelInfo, context: int, ridge: float) -> int | None:
    """The smallest batch whose decode step reaches the ridge (FLOP/byte); None where none does. Pure.

    FLOP and bytes are both straight lines over the batch: b·f against W + b·k. With long contexts b·k outgrows W before
    the ridge is reached, and more requests no longer raise the intensity.
    """
    flops, weights = decode_step_flops(model, context), model.weight_bytes
    own = decode_step_bytes(model, context) - weights
    if flops <= ridge * own:
        return None
    batch = math.ceil(ridge * weights / (flops - ridge * own))
    return max(batch, 1) if batch <= MOST_REQUESTS else None


__all__ = [
    "PAYS",
    "BatchPoint",
    "SharedStep",
    "batch_points",
    "crossing_batch",
    "last_that_pays",
    "shared_step",
    "size_of",
    "step_line",
]
