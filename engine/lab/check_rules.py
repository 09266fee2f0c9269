"""The rules a Run must keep, by name, and the state of one request that the check carries from step to step.

Nothing is checked here: ``engine.lab.check_step`` and ``engine.lab.check`` do that. A rule's sentence says what holds
in every true Run, so that an error message can end with what should have been.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.lab.scenario import RequestSpec

TIME_SLACK_S = 1e-6  # times are written as decimal text; a microsecond is far below what a step takes
TIME_SLACK_MS = 0.1  # the parts of a step are read by separate clock calls

INVARIANTS: dict[str, str] = {
    "numbers": "every number is finite",
    "header_scenario": "the header agrees with its scenario",
    "header_id": "the run has an id and a date",
    "header_device": "the device has threads, memory and rates above 0",
    "header_model": "the model's sizes are possible",
    "request_known": "records and steps speak of the scenario's requests, each once",
    "prompt_tokens": "a prompt has the length the scenario gives it",
    "arrival": "a request arrives when the scenario says, and nothing happens to it before",
    "step_order": "steps are numbered 0, 1, 2 ... and follow the scenario's policy",
    "time_order": "steps do not overlap and time does not run backwards",
    "time_parts": "the parts of a step take no longer than the step",
    "observed": "a run watched from outside says only what can be seen from there",
    "admitted": "only a waiting request is admitted",
    "preempted": "only a running request is preempted",
    "scheduled": "a step runs at least one token of each of its requests, each once, and only of running ones",
    "positions": "a request's chunks follow one another; after a preemption it starts over",
    "phase": "prefill, decode, recompute and padding mean what they say",
    "drafts": "only greedy decodes guess, at most as many tokens as the scenario allows",
    "last_chunk": "is_last_chunk is true where the chunk reaches the request's last token",
    "token_budget": "a step runs at most max_batch_tokens tokens",
    "request_limit": "at most max_requests requests run at once",
    "block_id": "a block is one of the pool's",
    "block_user": "a block event names a request of the run",
    "alloc_free": "only a free block is allocated",
    "share_published": "only a published block is shared, once per request",
    "publish_known": "a user publishes its block once",
    "publish_full": "only a full, computed block is published",
    "release_user": "only a user releases a block, once",
    "evict_unused": "only a cached block is evicted",
    "block_cover": "a request's blocks cover its computed tokens",
    "block_owner": "only a running request (or one whose static batch still runs) holds blocks",
    "block_counts": "free, cached and in use sum to the pool and equal the replay of the events",
    "outputs": "a last chunk gives one token and one for each right guess, a partial chunk none, a finished request "
    "nothing more",
    "finish": "a request ends by length at max_tokens, not before and not after",
    "refused": "a refused request has arrived and waits; every arrived waiting request is refused with a reason",
    "queues": "waiting, running and finished follow from arrivals and events",
    "work": "the recorded work follows from the shapes",
    "workers": "several engine processes are told where the scenario asks for them, each with blocks of its own",
    "transfer": "what is sent between two workers is a computed prompt: all of its blocks, once, before it decodes",
    "ring": "each worker of a ring keeps its part of the positions, and what it sends and computes follows from that",
    "record_num_output_tokens": "a request's record counts its outputs",
    "record_finish_reason": "a request's record ends as its last output did",
    "record_num_preemptions": "a request's record counts its preemptions",
    "record_num_cached_tokens": "a request's record counts its cached tokens",
    "record_times": "a request's moments lie in the steps in which they happened, in order",
    "end_empty": "at the end no block is in use and no request waits or runs",
}


class CheckError(ValueError):
    """A record that cannot be true. ``record`` names it (``step 12``, ``request r0``), ``invariant`` the rule."""

    def __init__(self, record: str, invariant: str, message: str) -> None:
        super().__init__(f"{record}: {message} ({invariant}: {INVARIANTS[invariant]})")
        self.record = record
        self.invariant = invariant
        self.message = message


def require(condition: object, record: str, invariant: str, message: str) -> None:
    """Raises: CheckError unless the condition holds."""
    if not condition:
        raise CheckError(record, invariant, message)


@dataclass
class RequestTrack:
    """What the steps so far imply about one request. A moment is (step, t_begin_s, t_end_s) of where it happened."""

    request_id: str
    spec: RequestSpec
    num_prompt_tokens: int | None
    arrival_s: float = 0.0
    state: Literal["waiting", "running", "finished"] = "waiting"
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    high_water: int = 0  # positions computed before the last preemption: below it, work is done again
    begins: bool = False  # the next chunk is the first since the last admission
    outputs: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    first_scheduled: tuple[int, float, float] | None = None
    first_token: tuple[int, float, float] | None = None
    last_token: tuple[int, float, float] | None = None

    @property
    def num_tokens(self) -> int:
        return (self.num_prompt_tokens or 0) + len(self.outputs)
