"""What one pool served three ways (reserved, on demand, shared) says about memory, as values for sentences.

All that is counted here comes from block events and steps: blocks and positions, requests at once, positions computed
twice. Seconds are quoted beside them and never stand in for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.lab.kv_use import KvUse, kv_after_steps, kv_of_request
from engine.lab.metrics import duration_s, makespan_s, run_metrics, step_spread
from engine.lab.prefix_use import prefix_use
from engine.lab.records import Run
from engine.lab.steps import computed_ends
from engine.lab.work import element_sizes, kv_bytes_per_token, moved_bytes, roofline_s
from lessons.facts_error import FactsError
from lessons.paged_attention.scenarios import PARTS
from lessons.text import Fact, format_bytes, format_seconds

NOISY = 0.5  # spread of like decode steps, relative to their median, beyond which seconds are not compared
CLEAR = 1.1  # two times nearer than this are not spoken of as different


@dataclass(frozen=True)
class Loss:
    """A preemption: the step in which it was decided, whom it hit, and how many positions were thrown away."""

    step: int
    request_id: str
    num_positions: int


@dataclass(frozen=True)
class Side:
    """One of the Runs, and what became of its pool."""

    run: Run

    @property
    def block_size(self) -> int:
        return self.run.header.block_size

    @property
    def position_bytes(self) -> float:
        return kv_bytes_per_token(self.run.header.model, element_sizes(self.run.header)[1])

    @cached_property
    def use(self) -> tuple[KvUse, ...]:
        """The pool after each step."""
        return kv_after_steps(self.run)

    @cached_property
    def peak(self) -> int:
        """Requests that held a place at once, at most."""
        return max(step.queues.running for step in self.run.steps)

    @cached_property
    def share_used(self) -> float:
        """Of the positions in blocks that belong to somebody, over all steps: the share that holds a token."""
        return sum(u.filled_bytes for u in self.use) / sum(u.reserved_bytes for u in self.use)

    @property
    def mean_empty_bytes(self) -> float:
        """Bytes that belong to somebody and hold nothing, mean over the steps in which anybody has any."""
        return statistics.fmean(u.reserved_bytes - u.filled_bytes for u in self.use if u.num_blocks)

    @cached_property
    def last(self) -> dict[str, KvUse]:
        """What each request held in the step that gave its last token."""
        return {r.request_id: kv_of_request(self.run, r.request_id)[-1] for r in self.run.requests}

    @cached_property
    def never_used(self) -> dict[str, int]:
        """Positions of each request's blocks that held nothing to the end."""
        return {name: use.num_blocks * self.block_size - use.num_tokens for name, use in self.last.items()}

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        return losses(self.run)

    @property
    def num_lost(self) -> int:
        """Positions that had been computed and were thrown away."""
        return sum(loss.num_positions for loss in self.losses)

    @property
    def recompute_s(self) -> float:
        """Seconds of the steps in which somebody's lost positions were computed again."""
        again = [s for s in self.run.steps if any(row.phase == "recompute" for row in s.scheduled)]
        return sum(duration_s(step) for step in again)

    @property
    def num_computed(self) -> int:
        return sum(step.work.tokens for step in self.run.steps)

    @property
    def modelled_s(self) -> float | None:
        """All steps by the roofline of the device, None without measured ceilings."""
        device = self.run.header.device
        if not device.read_gbps or not device.matmul_tflops:
            return None
        rates = device.read_gbps, device.matmul_tflops
        return sum(roofline_s(s.work.flops, moved_bytes(s.work), *rates) for s in self.run.steps)


def losses(run: Run) -> tuple[Loss, ...]:
    """Every preemption with what it cost. Pure."""
    computed: dict[str, int] = {}
    found = []
    for step in run.steps:
        for request_id in step.preempted:
            found.append(Loss(step.step, request_id, computed.get(request_id, 0)))
        computed |= computed_ends(step)
    return tuple(found)


@dataclass(frozen=True)
class Three:
    """The same requests on the same pool: blocks reserved, on demand, and on demand with equal beginnings shared."""

    orca: Side
    paged: Side
    shared: Side

    @property
    def sides(self) -> dict[str, Side]:
        return {"orca": self.orca, "paged": self.paged, "shared": self.shared}

    @property
    def times_sooner(self) -> float:
        return makespan_s(self.orca.run) / makespan_s(self.paged.run)

    @property
    def num_same_answers(self) -> int:
        """Requests whose three answers are the same tokens."""
        answers = [{r.request_id: r.output_token_ids for r in s.run.requests} for s in self.sides.values()]
        return sum(answers[0][name] == answers[1][name] == answers[2][name] for name in answers[0])

    @property
    def is_noisy(self) -> bool:
        """Whether like steps took unlike times in one of the two runs whose seconds are compared."""
        return any((step_spread(side.run, "decode").relative or 0.0) > NOISY for side in (self.orca, self.paged))


def three(runs: Mapping[str, Run]) -> Three:
    """Raises: FactsError when a Run is missing, unfinished, or of other requests or another pool than the rest."""
    for part in PARTS:
        run = runs.get(part)
        if run is None:
            raise FactsError(f"there is no {part} run yet; run the lesson first")
        unfinished = [r.request_id for r in run.requests if r.completion_s is None or r.finish_reason == "abort"]
        if unfinished or not run.requests:
            raise FactsError(f"request {(unfinished or ['?'])[0]} did not finish; run the lesson again")
    pools = {(r.header.num_blocks, r.header.block_size, tuple(q.request_id for q in r.requests)) for r in runs.values()}
    if len(pools) > 1:
        raise FactsError("the runs served different requests or had different pools; run the lesson again")
    return Three(*(Side(runs[part]) for part in PARTS))


def limit_of(run: Run) -> int:
    """max_tokens, which is the same for all requests of this lesson."""
    return int(run.header.scenario["requests"][0]["max_tokens"])


def modelled_at_once(run: Run) -> int:
    """How many requests a pool has room for when each reserves its prompt (of mean length) and its limit. Pure."""
    prompt = statistics.fmean(r.num_prompt_tokens for r in run.requests)
    each = -(-(prompt + limit_of(run)) // run.header.block_size)
    return int(min(run.header.num_blocks // each, len(run.requests)))


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    found = three(runs)
    return (
        _size_facts(found) | _waste_facts(found) | _preemption_facts(found) | _time_facts(found) | _share_facts(found)
    )


def sections(runs: Mapping[str, Run]) -> list[str]:
    found = three(runs)
    shown = ["after", "why"]
    shown.append("note_preempted" if found.paged.losses else "note_not_preempted")
    shown.append("note_block_size")
    shown.append("note_shared" if prefix_use(found.shared.run).num_cached_tokens else "note_nothing_shared")
    if prefix_use(found.shared.run).num_cached_tokens_after_preemption:
        shown.append("note_found_again")
    shown.append("note_same" if found.num_same_answers == len(found.orca.run.requests) else "note_not_same")
    if found.is_noisy:
        shown.append("note_noisy")
    else:
        shown.append("note_sooner" if found.times_sooner > CLEAR else "note_not_sooner")
    return [*shown, "note_contiguous"]


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    orca = three(runs).orca
    return {"at_once": float(orca.peak), "used_percent": 100 * orca.share_used}


def _size_facts(found: Three) -> dict[str, Fact]:
    run = found.orca.run
    prompt = statistics.fmean(r.num_prompt_tokens for r in run.requests)
    limit, size = limit_of(run), run.header.block_size
    output = statistics.fmean(r.num_output_tokens for r in run.requests)
    return {
        "num_requests": len(run.requests),
        "num_blocks": run.header.num_blocks,
        "block_size": size,
        "num_positions": run.header.num_blocks * size,
        "pool_bytes": format_bytes(run.header.num_blocks * size * found.orca.position_bytes),
        "limit": limit,
        "mean_prompt": round(prompt),
        "mean_output": round(output),
        "shortest": min(r.num_output_tokens for r in run.requests),
        "longest": max(r.num_output_tokens for r in run.requests),
        "blocks_reserved": int(-(-(prompt + limit) // size)),
        "modelled_at_once": modelled_at_once(run),
        "orca_peak": found.orca.peak,
        "paged_peak": found.paged.peak,
        "shared_peak": found.shared.peak,
    }


def _waste_facts(found: Three) -> dict[str, Fact]:
    orca, paged = found.orca, found.paged
    worst = max(orca.never_used, key=lambda name: orca.never_used[name])
    size = paged.block_size
    return {
        "orca_used": 100 * orca.share_used,
        "paged_used": 100 * paged.share_used,
        "orca_empty": format_bytes(orca.mean_empty_bytes),
        "paged_empty": format_bytes(paged.mean_empty_bytes),
        "worst": worst,
        "worst_reserved": orca.last[worst].num_blocks * size,
        "worst_filled": orca.last[worst].num_tokens,
        "worst_never": orca.never_used[worst],
        "worst_never_bytes": format_bytes(orca.never_used[worst] * orca.position_bytes),
        "never_total": format_bytes(sum(orca.never_used.values()) * orca.position_bytes),
        "paged_never_total": format_bytes(sum(paged.never_used.values()) * paged.position_bytes),
        "paged_never_mean": statistics.fmean(paged.never_used.values()),
        "half_block": (size - 1) / 2,
    }


def _preemption_facts(found: Three) -> dict[str, Fact]:
    paged = found.paged
    values: dict[str, Fact] = {"num_preemptions": len(paged.losses), "num_lost": paged.num_lost}
    if paged.losses:
        first = paged.losses[0]
        values |= {
            "first_victim": first.request_id,
            "first_step": first.step,
            "first_lost": first.num_positions,
            "lost_percent": 100 * paged.num_lost / paged.num_computed,
            "recompute_time": format_seconds(paged.recompute_s),
        }
    return values


def _time_facts(found: Three) -> dict[str, Fact]:
    times = {part: makespan_s(side.run) for part, side in found.sides.items()}
    waits = {part: run_metrics(side.run).ttft_s.mean for part, side in found.sides.items()}
    return {
        "orca_time": format_seconds(times["orca"]),
        "paged_time": format_seconds(times["paged"]),
        "times_sooner": found.times_sooner,
        "orca_ttft": format_seconds(waits["orca"]),
        "paged_ttft": format_seconds(waits["paged"]),
        "orca_steps": len(found.orca.run.steps),
        "paged_steps": len(found.paged.run.steps),
    }


def _share_facts(found: Three) -> dict[str, Fact]:
    use, run = prefix_use(found.shared.run), found.shared.run
    events = [event for step in run.steps for event in step.block_events]
    return {
        "shared_tokens": use.num_cached_tokens,
        "shared_requests": use.num_requests_with_hit,
        "num_shares": sum(event.op == "share" for event in events),
        "num_evictions": use.num_evicted_blocks,
        "shared_lost": found.shared.num_lost,
        "found_again": use.num_cached_tokens_after_preemption,
        "same_answers": found.num_same_answers,
        "other_answers": len(run.requests) - found.num_same_answers,
    }
