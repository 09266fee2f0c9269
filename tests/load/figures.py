"""Small arithmetic and printing for the load tests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from engine.lab.metrics import percentile, step_kind
from engine.lab.records import Run


def told(name: str, seconds: Sequence[float], target_s: float | None = None, extra: str = "") -> str:
    """One line: median, p95, worst, count, and whether a target on the median is met. Pure."""
    median, p95 = statistics.median(seconds), percentile(list(seconds), 95) or 0.0
    verdict = "" if target_s is None else f", target {target_s:g} s: {'met' if median < target_s else 'MISSED'}"
    numbers = f"median {median * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms, worst {max(seconds) * 1e3:.0f} ms"
    return f"{name}: {numbers} of {len(seconds)}{verdict}{', ' + extra if extra else ''}"


def decode_step_ms(run: Run) -> float:
    """The median step in which rows only decode. Pure."""
    return statistics.median((s.t_end_s - s.t_begin_s) * 1e3 for s in run.steps if step_kind(s) == "decode")


def makespan_s(run: Run) -> float:
    """From the first step's begin to the last one's end. Pure."""
    return run.steps[-1].t_end_s - run.steps[0].t_begin_s
