"""What a server watched from outside and our own engine made of the same load, as values for the lesson's sentences.

Every number of the server comes from when its pieces arrived; every number of ours from its own records, by the same
functions. What only one of the two can show is left to sentences, not to numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.metrics import all_request_metrics, makespan_s, percentile
from engine.lab.observed import gaps_s, is_observed
from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.real_server.scenarios import SIZES
from lessons.text import Fact

ONE, MOST = SIZES[0], SIZES[-1]
TOGETHER = 1.3  # a throughput that grew by less means that requests were served one after another
SERVED_APART = 0.5  # share of the last TTFT in the last E2E, from which on the last request mainly waited
UNEVEN = 3.0  # longest gap over the median one

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Point:
    """One part: ``size`` requests at once. Means over its requests, in seconds."""

    size: int
    run: Run
    num_tokens: int
    tokens_per_s: float
    ttft_s: float
    last_ttft_s: float
    tpot_s: float
    e2e_s: float
    gaps_s: tuple[float, ...]

    @property
    def little_tps(self) -> float:
        """Little's law: requests at once × their tokens ÷ the time each of them stays."""
        return self.size * (self.num_tokens / self.size) / self.e2e_s


def points(runs: Runs, side: str) -> dict[int, Point]:
    """The parts of one side by size, smallest first; an unfinished part gives none. Pure."""
    found = {size: _point(size, runs.get(f"{side}_{size}")) for size in SIZES}
    return {size: point for size, point in found.items() if point is not None}


def _point(size: int, run: Run | None) -> Point | None:
    if run is None:
        return None
    each, span = list(all_request_metrics(run).values()), makespan_s(run)
    if not span or len(each) != size or any(m.e2e_s is None or m.tpot_s is None for m in each):
        return None
    tokens = sum(m.num_output_tokens for m in each)
    return Point(
        size=size,
        run=run,
        num_tokens=tokens,
        tokens_per_s=tokens / span,
        ttft_s=statistics.fmean(m.ttft_s for m in each),
        last_ttft_s=max(m.ttft_s for m in each),
        tpot_s=statistics.fmean(m.tpot_s for m in each),
        e2e_s=statistics.fmean(m.e2e_s for m in each),
        gaps_s=tuple(gap for m in each for gap in gaps_s(run, m.request_id)),
    )


def too_short(runs: Runs) -> tuple[str, int] | None:
    """(request id, tokens) of the first answer that has no gap between tokens to time, or None. Pure."""
    answers = (record for run in runs.values() for record in run.requests)
    return next(((a.request_id, a.num_output_tokens) for a in answers if a.num_output_tokens < 2), None)


def both(runs: Runs) -> tuple[dict[int, Point], dict[int, Point]]:
    """Points of the server and of ours. Raises: FactsError without the smallest and the largest part of both."""
    sides = points(runs, "server"), points(runs, "ours")
    if any(size not in side for side in sides for size in (ONE, MOST)):
        raise FactsError("there is no finished study yet; run the lesson first")
    if not is_observed(sides[0][ONE].run):
        raise FactsError("the runs of the server were not watched from outside; run the lesson again")
    return sides


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Runs) -> dict[str, Fact]:
    server, ours = both(runs)
    one, most = server[ONE], server[MOST]
    header = one.run.header
    return {
        "server": header.observed.server,
        "url": header.observed.source,
        "server_model": header.model.name,
        "our_model": ours[ONE].run.header.model.name,
        "most": most.size,
        "one_tps": one.tokens_per_s,
        "most_tps": most.tokens_per_s,
        "gain": most.tokens_per_s / one.tokens_per_s,
        "one_ttft_ms": 1e3 * one.ttft_s,
        "most_ttft_ms": 1e3 * most.ttft_s,
        "last_ttft_ms": 1e3 * most.last_ttft_s,
        "one_tpot_ms": 1e3 * one.tpot_s,
        "most_tpot_ms": 1e3 * most.tpot_s,
        "tpot_growth": most.tpot_s / one.tpot_s,
        "our_one_tps": ours[ONE].tokens_per_s,
        "our_most_tps": ours[MOST].tokens_per_s,
        "our_gain": ours[MOST].tokens_per_s / ours[ONE].tokens_per_s,
        "one_ratio": one.tokens_per_s / ours[ONE].tokens_per_s,
        "most_ratio": most.tokens_per_s / ours[MOST].tokens_per_s,
        "num_tokens": most.num_tokens,
        "num_pieces": sum(len(r.token_times_s or ()) for r in most.run.requests),
        "asked_tokens": sum(r["max_tokens"] for r in most.run.header.scenario["requests"]),
        "little_tps": most.little_tps,
        "most_e2e_ms": 1e3 * most.e2e_s,
        **_gap_facts(most),
    }


def _gap_facts(point: Point) -> dict[str, Fact]:
    middle = percentile(point.gaps_s, 50) or 0.0
    return {"gap_ms": 1e3 * middle, "longest_gap_ms": 1e3 * max(point.gaps_s, default=0.0)}


def sections(runs: Runs) -> list[str]:
    server, ours = both(runs)
    one, most = server[ONE], server[MOST]
    lacks = most.run.header.observed.lacks
    shown = ["after", "why"]
    names = {p.run.header.model.name for p in (one, ours[ONE])}
    shown.append("note_same_model" if len(names) == 1 else "note_other_model")
    if most.tokens_per_s / one.tokens_per_s >= TOGETHER:
        shown.append("note_batches")
    elif most.last_ttft_s > SERVED_APART * most.e2e_s:
        shown.append("note_one_by_one")
    else:
        shown.append("note_no_gain")
    middle = percentile(most.gaps_s, 50)
    if middle and max(most.gaps_s) > UNEVEN * middle:
        shown.append("note_gaps")
    if "single_tokens" in lacks:
        shown.append("note_pieces")
    if "ignore_eos" in lacks:
        shown.append("note_short")
    return [*shown, "note_little"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    server, _ = both(runs)
    one, most = server[ONE], server[MOST]
    return {"gain_eight": most.tokens_per_s / one.tokens_per_s, "tpot_growth": most.tpot_s / one.tpot_s}
