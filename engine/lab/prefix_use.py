"""What a prefix cache was worth in a Run: tokens found instead of computed, read from the records alone.

A request looks its tokens up when it is admitted; its first chunk then says how many it found (``num_cached_tokens``).
The hit rate counts first admissions only, so it says how much of the prompts was shared: a request that comes back
after a preemption finds its own work again, and is counted beside it (as vLLM does). Measures nothing, fills no gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.lab.records import Run


@dataclass(frozen=True)
class PrefixUse:
    """``hit_rate`` is None while nothing was looked up. ``num_evicted_blocks`` were cached and had to make room."""

    num_prompt_tokens: int  # of all requests that were ever admitted
    num_cached_tokens: int  # of those, found: prefill tokens saved
    num_requests_with_hit: int
    num_cached_tokens_after_preemption: int
    num_evicted_blocks: int

    @property
    def hit_rate(self) -> float | None:
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None


def prefix_use(run: Run) -> PrefixUse:
    """Pure."""
    num_prompt_tokens = {record.request_id: record.num_prompt_tokens for record in run.requests}
    first: dict[str, int] = {}
    again = 0
    waiting_for_first_chunk: set[str] = set()
    for step in run.steps:
        waiting_for_first_chunk |= set(step.admitted)
        for row in step.scheduled:
            if row.request_id not in waiting_for_first_chunk:
                continue
            waiting_for_first_chunk.discard(row.request_id)
            if row.request_id in first:
                again += row.num_cached_tokens
            else:
                first[row.request_id] = row.num_cached_tokens
    return PrefixUse(
        num_prompt_tokens=sum(num_prompt_tokens[request_id] for request_id in first),
        num_cached_tokens=sum(first.values()),
        num_requests_with_hit=sum(cached > 0 for cached in first.values()),
        num_cached_tokens_after_preemption=again,
        num_evicted_blocks=sum(event.op == "evict" for step in run.steps for event in step.block_events),
    )
