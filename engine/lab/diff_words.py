"""What another policy or other limits changed, told in sentences: which request got better or worse, and why.

It decides when two times are called the same (``SAME_SHARE``: two measurements of one schedule differ by as much) and
in which order the reasons stand: the largest first. The reasons are the parts of a request's time that changed
(``counterfactual.RequestDiff.causes``), that is the scheduler's recorded refusals; nothing is guessed. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.lab import units
from engine.lab.counterfactual import Change, RequestDiff, RunDiff
from engine.lab.words import say

SAME_SHARE = 0.05  # of the longer of the two times
MOST_CAUSES = 3
MOST_ROWS = 4

Verdict = Literal["better", "worse", "same", "unknown"]


@dataclass(frozen=True)
class Told:
    """One request's change. ``why`` may be empty: nothing that is recorded changed."""

    request_id: str
    verdict: Verdict
    change: Change  # of its end-to-end time
    why: str


def verdict(found: RequestDiff) -> Verdict:
    """Over sooner, later, or about when it was before; unknown where it did not finish in both Runs. Pure."""
    before, after = found.e2e_s.before, found.e2e_s.after
    if before is None or after is None:
        return "unknown"
    if abs(after - before) <= SAME_SHARE * max(before, after):
        return "same"
    return "better" if after < before else "worse"


def told(found: RunDiff, lang: str) -> list[Told]:
    """Every request, those that lost most first, then those that gained, those that stayed last. Pure."""
    everybody = [Told(r.request_id, verdict(r), r.e2e_s, reasons(r, lang)) for r in found.requests]
    rank = {"worse": 0, "better": 1, "same": 2, "unknown": 3}
    return sorted(everybody, key=lambda x: (rank[x.verdict], -abs(x.change.delta or 0)))


def reasons(found: RequestDiff, lang: str) -> str:
    """Why a request's time changed: what it waited for more or less, computed, lost, or found in a cache. Pure."""
    parts = [_cause(part, delta_s, lang) for part, delta_s in found.causes[:MOST_CAUSES]]
    for name in ("num_preemptions", "num_cached_tokens"):
        change: Change = getattr(found, name)
        if change.delta:
            values = {"before": units.number(change.before, lang), "after": units.number(change.after, lang)}
            parts.append(say(lang, f"diff.{name}", **values))
    return say(lang, "report.list").join(parts)


def _cause(part: str, delta_s: float, lang: str) -> str:
    direction = "more" if delta_s > 0 else "less"
    time = units.seconds(round(abs(delta_s), 6), lang)
    if part == "computing":
        return say(lang, f"diff.computed_{direction}", time=time)
    return say(lang, f"diff.waited_{direction}", time=time, why=say(lang, f"player.why_{part}"))


def summary(found: RunDiff, lang: str) -> str:
    """How many requests were over sooner, later, about as before, and how long the whole took. Pure."""
    verdicts = [verdict(r) for r in found.requests]
    counts = {name: units.number(verdicts.count(name), lang) for name in ("better", "worse", "same")}
    before, after = found.makespan_s.before, found.makespan_s.after
    return say(
        lang,
        "diff.summary",
        total=units.number(len(verdicts), lang),
        before=units.seconds(before, lang),
        after=units.seconds(after, lang),
        percent=units.number(SAME_SHARE * 100, lang),
        **counts,
    )


def first_difference(found: RunDiff, lang: str) -> str:
    """The first step at which the two schedules part, and what only one of them did there. Pure."""
    first = found.first_difference
    if first is None:
        return say(lang, "diff.same_schedule")
    return say(
        lang,
        "diff.first_difference",
        step=first.step,
        before=_rows(first.only_before, lang),
        after=_rows(first.only_after, lang),
    )


def _rows(rows: tuple[str, ...], lang: str) -> str:
    if not rows:
        return say(lang, "diff.nothing")
    comma = say(lang, "player.comma")
    shown = comma.join(rows[:MOST_ROWS])
    return shown if len(rows) <= MOST_ROWS else shown + comma + say(lang, "player.more", n=len(rows) - MOST_ROWS)


def told_text(found: RunDiff, lang: str) -> str:
    """The whole comparison as plain lines, for a terminal. Pure."""
    lines = [summary(found, lang), first_difference(found, lang)]
    for one in told(found, lang):
        times = [units.seconds(s, lang) for s in (one.change.before, one.change.after)]
        line = say(lang, f"diff.line_{one.verdict}", id=one.request_id, before=times[0], after=times[1])
        lines.append(line + (say(lang, "diff.because", why=one.why) if one.why else ""))
    return "\n".join(lines)
