"""Paged blocks on demand, prompts first: a step is prompts or decodes, never both.

Against ``orca.py``: a newcomer needs blocks for the tokens it has, not for those it may come to have, so more run at
once; the price is that blocks can run out, and then the youngest is preempted and later recomputed. A few blocks are
kept back at admission, the watermark, lest a newcomer take the one that somebody needs next. Whenever prompts can be
computed they are, in a step of their own, and every decode stands still meanwhile. Prompts go whole; one longer than
the whole budget is cut. Follows vLLM before its V1 (PagedAttention, Kwon et al. 2023). Compare ``chunked.py``.
"""

from __future__ import annotations

from engine.lab.records import Reason
from engine.scheduling.decision import Plan
from engine.scheduling.policies.base import Policy
from engine.scheduling.requests import Status

WATERMARK = 0.01  # of all blocks, kept for the growth of those who run


class Paged(Policy):
    """Prefill-first batching with blocks on demand and preemption by recompute."""

    name = "paged"

    def schedule(self, plan: Plan) -> None:
        for request in self.running:  # only a prompt longer than the budget is not over after its first step
            if request.phase != "decode" and plan.budget_left:
                plan.give(request, min(request.num_remaining_tokens, plan.budget_left))
        why = self._admit_waiting(plan)
        if not plan.scheduled and self._decode(plan):
            why = "no_blocks"
        self.refuse_waiting(plan, why)

    def _decode(self, plan: Plan) -> bool:
        """One token for everybody, oldest first. Returns whether blocks ran out and somebody was preempted."""
        num_running = len(self.running)
        for request in list(self.running):
            if not plan.budget_left or request.status is not Status.RUNNING:
                continue  # an older request has just preempted this one
            if self.make_room(plan, request, request.num_tokens):
                plan.give(request, 1)
        return len(self.running) < num_running

    def _admit_waiting(self, plan: Plan) -> Reason | None:
        """Admit while requests, tokens and blocks last, for a step of prompts only. Returns what stopped it."""
        for request in self.candidates():
            if len(self.running) >= self.limits.max_requests:
                return "request_limit"
            cached = self.find_cached(request)
            if not self.fits_budget(plan, request, cached):
                return "token_budget"
            if not self.has_room(request.num_tokens, cached, spare=self._watermark()):
                return "no_blocks"
            self.admit(plan, request, cached)
            self.grow(request, request.num_tokens)
            plan.give(request, min(request.num_remaining_tokens, plan.budget_left))
        return None

    def _watermark(self) -> int:
        """Blocks a newcomer must leave. None if nobody runs: a request that fills the pool must be servable."""
        return max(1, round(WATERMARK * self.pool.num_blocks)) if self.running else 0
