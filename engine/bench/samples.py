"""From single measurements to what can be said: medians, spreads, ratios, shares of the roof. Pure, no clock.

A sample is one number of one system in one round. Rounds pair the systems: within a round they ran minutes apart at
most, so a ratio is taken round by round and its median is told with its lowest and highest. That way a machine that is
slower for a while, slow for all, does not make a ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LEAST_COUNT = 5  # below, a median is called preliminary


@dataclass(frozen=True)
class Sample:
    """``value`` in ``unit``; ``round`` counts from 0."""

    suite: str
    case: str
    system: str
    precision: str
    round: int
    value: float
    unit: str
    bytes_read: float | None = None  # by one step of a decode case: weights and KV, for its share of the roof
    flops: float | None = None  # of a prefill case


@dataclass(frozen=True)
class Spread:
    """A median with its lowest, its highest and how many there were."""

    median: float
    low: float
    high: float
    count: int


LOWER_IS_BETTER = ("s", "ms", "MB")


def spread(values: Sequence[float]) -> Spread | None:
    """None without values. Pure."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))


def of(samples: Iterable[Sample], case: str, system: str, precision: str) -> list[Sample]:
    """The samples of one cell, in the order of rounds. Pure."""
    found = [s for s in samples if (s.case, s.system, s.precision) == (case, system, precision)]
    return sorted(found, key=lambda sample: sample.round)


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Spread | None:
    """How many times better the first is, round by round; above 1 always means better. None without a pair. Pure."""
    by_round = {sample.round: sample for sample in theirs}
    pairs = [(mine, by_round[mine.round]) for mine in ours if mine.round in by_round]
    pairs = [(mine, other) for mine, other in pairs if mine.value > 0 and other.value > 0]
    return spread([_times_better(mine, other) for mine, other in pairs])


def _times_better(mine: Sample, other: Sample) -> float:
    assert mine.unit == other.unit, "two units cannot be compared"
    return other.value / mine.value if mine.unit in LOWER_IS_BETTER else mine.value / other.value


def share_of_roof(
    samples: Sequence[Sample], roofs: Sequence[Sample], rate: Callable[[Sample], float | None]
) -> Spread | None:
    """``rate`` of each sample over the highest roof of all rounds (each is a median of many passes). Pure.

    The highest, because a roof that was measured while others were busy is too low, and would flatter every share.
    """
    if not roofs:
        return None
    roof = max(sample.value for sample in roofs)
    reached = [rate(sample) for sample in samples]
    return spread([value / roof for value in reached if value is not None])


def read_gbps(sample: Sample) -> float | None:
    """What a decode step read per second: its bytes times steps per second. Pure."""
    return None if sample.bytes_read is None else sample.bytes_read * sample.value / 1e9


def tflops(sample: Sample) -> float | None:
    """What a prefill computed per second, from FLOPs per token and tokens per second. Pure."""
    return None if sample.flops is None else sample.flops * sample.value / 1e12
