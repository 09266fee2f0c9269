"""Where a session runs and how it measures: a GPU, or in a rehearsal the interpreter on the CPU with tiny shapes.

GPU times come from CUDA graphs of many calls whose inputs rotate over more memory than the cache holds: launches cost
nothing, and no call finds its data in the cache because the call before it left it there. A rehearsal measures too,
so that every line runs, but its times mean nothing and are marked so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

FLUSH_BYTES = 512 * 2**20  # what the inputs of the calls in a graph cover at least; the largest cache is about 128 MB
MOST_COPIES = 64
REPLAYS = 20


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: 20th, 50th and 80th percentile of so many replays of so many calls."""

    p20_ms: float
    p50_ms: float
    p80_ms: float
    num_replays: int
    num_calls: int

    @property
    def as_dict(self) -> dict[str, float]:
        rounded = {name: round(getattr(self, name), 6) for name in ("p20_ms", "p50_ms", "p80_ms")}
        return {**rounded, "num_replays": self.num_replays, "num_calls": self.num_calls}


class Stage:
    """The device, whether this is a rehearsal, and until when there is time."""

    def __init__(self, is_dry_run: bool, seconds: float) -> None:
        self.is_dry_run = is_dry_run
        self.device = torch.device("cpu" if is_dry_run else "cuda")
        self._begin = time.monotonic()
        self._end = self._begin + seconds

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    def time_left(self) -> float:
        """Seconds until the session has to be over."""
        return self._end - time.monotonic()

    def synchronize(self) -> None:
        if not self.is_dry_run:
            torch.cuda.synchronize()

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
        """Random numbers: zeros would be multiplied with less power, and so faster."""
        noise = torch.Generator(self.device).manual_seed(seed + sum(shape))
        return torch.randn(shape, generator=noise, device=self.device, dtype=torch.float32).to(dtype)

    def copies_for(self, input_bytes: float) -> int:
        """How many sets of inputs a measurement rotates over."""
        return 2 if self.is_dry_run else min(max(int(FLUSH_BYTES // max(input_bytes, 1)), 2), MOST_COPIES)

    def measure(self, calls: Sequence[Callable[[], object]]) -> Timing:
        """Time of one call. Effect: runs each of the calls, which have inputs of their own, many times."""
        for call in calls[:1]:
            call()
        self.synchronize()
        return self._measure_dry(calls) if self.is_dry_run else self._measure_graph(calls)

    def _measure_graph(self, calls: Sequence[Callable[[], object]]) -> Timing:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / len(calls))
        return _percentiles(times, len(calls))

    def _measure_dry(self, calls: Sequence[Callable[[], object]]) -> Timing:
        begin = time.perf_counter()
        for call in calls:
            call()
        return _percentiles([(time.perf_counter() - begin) * 1e3 / len(calls)], len(calls))

    def wall_ms(self, call: Callable[[], object]) -> float:
        """Milliseconds from calling to the device's last work, as a user waits for it."""
        self.synchronize()
        begin = time.perf_counter()
        call()
        self.synchronize()
        return (time.perf_counter() - begin) * 1e3


def _percentiles(times: list[float], num_calls: int) -> Timing:
    ordered = sorted(times)
    p20, p50, p80 = (ordered[round(share * (len(ordered) - 1))] for share in (0.2, 0.5, 0.8))
    return Timing(p20, p50, p80, len(times), num_calls)
