"""Runs as a client would have seen them: a genuine Run of the scheduler, looked at from outside, a little later."""

from __future__ import annotations

from collections.abc import Sequence

from engine.lab.latency import token_times
from engine.lab.observed import Seen, observed_run
from engine.lab.records import Run


def from_outside(
    run: Run,
    *,
    late_s: float = 0.001,
    per_event: int = 1,
    stall_s: float = 0.0,
    server: str = "llama.cpp",
    lacks: Sequence[str] = (),
) -> Run:
    """The Run with every token ``late_s`` later, ``per_event`` tokens to an event, and nothing of the inside.

    From the tenth token on all come ``stall_s`` later: the connection had stalled.
    """
    times = token_times(run)
    seen = [
        Seen(
            request_id=record.request_id,
            sent_s=record.arrival_s,
            token_times_s=tuple(t.t_s + late_s + stall_s * (t.index >= 10) for t in times[record.request_id])[
                ::-per_event
            ][::-1],
            finish_reason=record.finish_reason,
            num_prompt_tokens=record.num_prompt_tokens,
            num_output_tokens=record.num_output_tokens,
        )
        for record in run.requests
    ]
    return observed_run(
        run.run_id, "http://127.0.0.1:8000", server, "small", seen, scenario=run.header.scenario, lacks=lacks
    )
