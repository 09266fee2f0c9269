"""What a step will do: the Decision (plain ids and numbers, for the record) and its Chunks (what the executor runs).

A decision is ``{request_id: num_tokens}`` in batch order, with who was admitted, preempted and refused, and why.
Nothing here decides; ``Plan`` is the sheet a policy writes on, and it refuses to give more tokens than the budget has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.lab.records import Phase, Reason
from engine.scheduling.requests import Request


@dataclass(frozen=True, slots=True)
class Decision:
    """One step. ``refused`` names every request that waits after it, with the reason the policy had."""

    scheduled: dict[str, int]  # request_id -> num_tokens, in batch order
    admitted: list[str]
    preempted: list[str]
    refused: list[tuple[str, Reason]]
    drafts: dict[str, list[int]] = field(default_factory=dict)  # request_id -> guessed tokens, part of num_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """A frozen view of one request's positions [start, start + num_tokens) in this step.

    ``block_ids`` is the table at the time of the decision: it covers [0, start + num_tokens). ``samples`` is true when
    the chunk reaches the request's last token, so that its logits give the next one; a padding row never samples.
    """

    request: Request
    start: int
    num_tokens: int
    phase: Phase
    block_ids: list[int]
    samples: bool
    num_cached_tokens: int = 0  # positions [0, num_cached_tokens) that a prefix cache saved since the last admission
    is_draft: bool = (
        False  # a guessed token, in a row of its own behind the request's newest; it counts if it was right
    )

    @property
    def token_ids(self) -> list[int]:
        return self.request.token_ids[self.start : self.start + self.num_tokens]


@dataclass(slots=True)
class Plan:
    """A decision in the making. ``budget_left`` counts tokens of this step, padding rows and drafts included."""

    budget_left: int
    scheduled: dict[str, int] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    refused: list[tuple[str, Reason]] = field(default_factory=list)
    drafts: dict[str, list[int]] = field(default_factory=dict)

    def give(self, request: Request, num_tokens: int) -> None:
        """Schedule the next ``num_tokens`` positions of a request. Effect: takes them from the budget."""
        assert 1 <= num_tokens <= self.budget_left, f"{num_tokens} tokens given, {self.budget_left} left in the budget"
        assert request.request_id not in self.scheduled, f"{request.request_id} is scheduled twice in a step"
        self.scheduled[request.request_id] = num_tokens
        self.budget_left -= num_tokens

    def give_drafts(self, request: Request, draft_token_ids: list[int]) -> None:
        """Schedule guesses behind a request's newest token. Effect: takes them from the budget."""
        assert self.scheduled[request.request_id] == 1, "drafts stand behind one decoded token"
        assert 1 <= len(draft_token_ids) <= self.budget_left, "drafts take only what everybody has left over"
        self.scheduled[request.request_id] += len(draft_token_ids)
        self.budget_left -= len(draft_token_ids)
        self.drafts[request.request_id] = draft_token_ids
