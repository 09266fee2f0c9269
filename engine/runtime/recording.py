"""Writes the records: turns what the engine has just done into the lines of a Run.

It copies state that others decided and times the parts of a step; ``engine.lab.records`` says what the fields mean. It
runs between the last reading of a step's clock and the next step, so what it costs itself is in no step's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.lab.records import (
    Backend,
    BlockEvent,
    Blocks,
    Output,
    Queues,
    Refused,
    RequestRecord,
    Scheduled,
    StepRecord,
    TimeMs,
    Work,
)
from engine.scheduling.decision import Chunk, Decision
from engine.scheduling.requests import Request
from engine.scheduling.scheduler import Scheduler


class Laps:
    """Times the parts of a step, one lap after the other: the laps add up to the step."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.begin_s = self.end_s = now_s()
        self._ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Effect: the part called ``name`` ends now."""
        now_s = self._now_s()
        self._ms[name] = (now_s - self.end_s) * 1000
        self.end_s = now_s

    @property
    def time_ms(self) -> TimeMs:
        return TimeMs(**self._ms)


def step_record(
    step: int,
    scheduler: Scheduler,
    backend: Backend,
    decision: Decision,
    chunks: Sequence[Chunk],
    outputs: list[Output],
    laps: Laps,
    work: Work,
) -> StepRecord:
    """The record of a step, from the state after it. Effect: takes the block events, so each is told once."""
    pool = scheduler.pool
    return StepRecord(
        step=step,
        t_begin_s=laps.begin_s,
        t_end_s=laps.end_s,
        policy=scheduler.policy.name,
        backend=backend,
        scheduled=_scheduled(chunks),
        queues=Queues(
            waiting=len(scheduler.policy.waiting),
            running=len(scheduler.policy.running),
            finished=scheduler.num_finished,
        ),
        blocks=Blocks(total=pool.num_blocks, free=pool.num_free, cached=pool.num_cached, in_use=pool.num_in_use),
        block_events=[BlockEvent(op=op, block_id=b, request_id=r) for op, b, r in pool.take_events()],
        admitted=decision.admitted,
        preempted=decision.preempted,
        refused=[Refused(request_id=request_id, why=why) for request_id, why in decision.refused],
        outputs=outputs,
        time_ms=laps.time_ms,
        work=work,
    )


def _scheduled(chunks: Sequence[Chunk]) -> list[Scheduled]:
    """One row for each request: its drafts belong to the row of the token they stand behind."""
    rows: list[Scheduled] = []
    for chunk in chunks:
        if chunk.is_draft:
            rows[-1].num_tokens += 1
            rows[-1].num_draft_tokens += 1
            continue
        rows.append(
            Scheduled(
                request_id=chunk.request.request_id,
                start=chunk.start,
                num_tokens=chunk.num_tokens,
                phase=chunk.phase,
                num_cached_tokens=chunk.num_cached_tokens,
                is_last_chunk=chunk.samples,
            )
        )
    return rows


def request_record(request: Request) -> RequestRecord:
    """A request's line at the end of the Run. Pure."""
    return RequestRecord(
        request_id=request.request_id,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        arrival_s=request.arrival_s,
        first_scheduled_s=request.first_scheduled_s,
        first_token_s=request.first_token_s,
        completion_s=request.completion_s,
        num_preemptions=request.num_preemptions,
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=request.finish_reason,
        output_token_ids=request.output_token_ids,
    )
