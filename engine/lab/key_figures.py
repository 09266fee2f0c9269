"""The figures a Run is judged by, in one order, for every table that shows a Run or sets two side by side.

It picks from ``engine.lab.metrics`` and computes nothing of its own but the time the roofline would allow
(``phase_times``). A figure that a Run does not define is None. Words and units are looked up by the figure's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engine.lab import units
from engine.lab.metrics import run_metrics
from engine.lab.prefix_use import prefix_use
from engine.lab.records import Run, StepRecord
from engine.lab.steps import StepKind, duration_s, step_kind
from engine.lab.words import say
from engine.lab.work import moved_bytes, roofline_s

Unit = Literal["count", "seconds", "tokens_per_s", "share"]


@dataclass(frozen=True)
class Figure:
    """One quantity of a Run. ``value`` in the base unit (seconds, share of 1); None where it is undefined."""

    name: str
    unit: Unit
    value: float | None

    def text(self, lang: str) -> str:
        """The value as people read it. Pure."""
        if self.unit == "seconds":
            return units.seconds(self.value, lang)
        if self.unit == "share":
            return units.percent(self.value, lang)
        if self.unit == "tokens_per_s" and self.value is not None:
            return say(lang, "report.tokens_per_s", n=units.number(self.value, lang))
        return units.number(self.value, lang)


def key_figures(run: Run) -> list[Figure]:
    """The figures of one Run, always the same ones in the same order. Pure."""
    found, prefix = run_metrics(run), prefix_use(run)
    figures = [
        Figure("finished", "count", found.num_finished),
        Figure("output_tokens", "count", found.num_output_tokens),
        Figure("makespan", "seconds", found.makespan_s),
        Figure("throughput", "tokens_per_s", found.output_tokens_per_s),
        Figure("queue_mean", "seconds", found.queue_s.mean),
        Figure("ttft_mean", "seconds", found.ttft_s.mean),
        Figure("ttft_p90", "seconds", found.ttft_s.p90),
        Figure("tpot_mean", "seconds", found.tpot_s.mean),
        Figure("e2e_mean", "seconds", found.e2e_s.mean),
        Figure("e2e_p90", "seconds", found.e2e_s.p90),
        Figure("steps", "count", found.num_steps),
        Figure("mean_rows", "count", found.mean_rows),
        Figure("padding_share", "share", found.padding_share),
        Figure("preemptions", "count", found.num_preemptions),
        Figure("cached_tokens", "count", prefix.num_cached_tokens),
        Figure("peak_blocks", "count", found.peak_blocks_in_use),
    ]
    unknown = _unknown(run)
    return [replace(figure, value=None) if figure.name in unknown else figure for figure in figures]


def _unknown(run: Run) -> set[str]:
    """What a Run that was watched from outside cannot say: a zero would be a claim. Pure."""
    if run.header.observed is None:
        return set()
    inside = {"queue_mean", "steps", "mean_rows", "padding_share", "preemptions", "cached_tokens", "peak_blocks"}
    return inside | ({"makespan", "throughput"} if "arrivals" in run.header.observed.lacks else set())


def ratio(first: Figure, second: Figure) -> float | None:
    """Second over first; None where one is missing or the first is zero. Pure."""
    return second.value / first.value if first.value and second.value is not None else None


@dataclass(frozen=True)
class PhaseTime:
    """All steps of one kind: the time they took, and the least the device's ceilings allow for the same work."""

    kind: StepKind
    num_steps: int
    measured_s: float
    modelled_s: float | None  # None while the ceilings are not measured

    @property
    def factor(self) -> float | None:
        """measured ÷ modelled."""
        return self.measured_s / self.modelled_s if self.modelled_s else None


def phase_times(run: Run) -> list[PhaseTime]:
    """Prefill, mixed and decode steps beside the roofline of each step's recorded work. Pure."""
    kinds: dict[StepKind, list[StepRecord]] = {"prefill": [], "mixed": [], "decode": []}
    for step in run.steps:
        kinds.get(step_kind(step), []).append(step)
    read, rate = run.header.device.read_gbps, run.header.device.matmul_tflops
    return [
        PhaseTime(
            kind,
            len(steps),
            sum(duration_s(step) for step in steps),
            sum(roofline_s(s.work.flops, moved_bytes(s.work), read, rate) for s in steps) if read and rate else None,
        )
        for kind, steps in kinds.items()
        if steps
    ]
