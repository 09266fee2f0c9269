"""A request as the scheduler sees it: token ids, counters, blocks, times and a status whose transitions are enforced.

The one idea to hold on to: ``num_computed_tokens`` chases ``num_tokens``. A new prompt, a chunk of a long prompt, one
decoded token and the recomputation after a preemption are all the same thing, "the next positions to compute", so there
is no prefill mode and no decode mode (the token-budget rule of vLLM V1). This module never decides who runs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum

from engine.lab.records import FinishReason, Phase


class Status(Enum):
    """Where a request is. A preempted request is WAITING again; nothing leaves FINISHED.

    WAITING -> RUNNING -> FINISHED, with RUNNING -> WAITING (preempted) and WAITING -> FINISHED (aborted).
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_ALLOWED = {
    (Status.WAITING, Status.RUNNING),
    (Status.WAITING, Status.FINISHED),
    (Status.RUNNING, Status.WAITING),
    (Status.RUNNING, Status.FINISHED),
}


@dataclass(eq=False, slots=True)
class Request:
    """One request. Times are seconds since the start of the run; ``block_ids[i]`` holds positions [i*B, (i+1)*B)."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    arrival_s: float = 0.0
    ignore_eos: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None

    token_ids: list[int] = field(init=False)  # prompt, then output
    block_ids: list[int] = field(init=False, default_factory=list)
    num_computed_tokens: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)  # of the computed ones, taken from a prefix cache
    num_published_blocks: int = field(init=False, default=0)  # leading blocks of the table that others can find
    num_refusals: int = field(init=False, default=0)  # steps it has waited since it came, or came back
    num_preemptions: int = field(init=False, default=0)
    num_recompute_tokens: int = field(init=False, default=0)  # positions below this were computed once already
    first_scheduled_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    completion_s: float | None = field(init=False, default=None)
    finish_reason: FinishReason | None = field(init=False, default=None)
    _status: Status = field(init=False, default=Status.WAITING)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def status(self) -> Status:
        return self._status

    @status.setter
    def status(self, new: Status) -> None:
        assert (self._status, new) in _ALLOWED, f"{self.request_id}: {self._status.value} -> {new.value} cannot happen"
        self._status = new

    @property
    def is_finished(self) -> bool:
        return self._status is Status.FINISHED

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output together: what ``num_computed_tokens`` has to reach to sample the next token."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_remaining_tokens(self) -> int:
        """Positions still to compute before the next token can be sampled: 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_total_tokens(self) -> int:
        """The longest this request can get, prompt and output together."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def phase(self) -> Phase:
        """What its next chunk is called in the record. A label for readers: no rule of the scheduler needs it."""
        if self.num_computed_tokens < self.num_recompute_tokens:
            return "recompute"
        return "prefill" if self.num_computed_tokens < len(self.prompt_token_ids) else "decode"

    def with_drafts(self, draft_token_ids: list[int]) -> Request:
        """A view of it for one step, whose text goes on with guesses: what an executor reads of a request. Pure."""
        view = copy.copy(self)
        view.token_ids = self.token_ids + draft_token_ids
        return view

    def begin_cached(self, num_blocks: int, block_size: int) -> None:
        """Effect: the first blocks of its table, full of other requests' work, count as computed (a prefix hit)."""
        self.num_published_blocks = num_blocks
        self.num_computed_tokens = self.num_cached_tokens = num_blocks * block_size

    def forget_computed(self) -> None:
        """Effect: back to nothing computed, remembering how much of it will be work done twice (preemption)."""
        self.num_recompute_tokens = max(self.num_recompute_tokens, self.num_computed_tokens)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_published_blocks = 0
