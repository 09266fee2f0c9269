"""Iteration-level scheduling: requests join and leave between any two steps; blocks are reserved at the door.

Against ``static.py``: nobody waits for a batch to drain and no row is padding. What is left of it is the reservation: a
newcomer needs blocks for the longest output it may have, most of which will stand empty, so few fit at once. A prompt
is computed in one step beside everybody's decodes, and waits until it fits the token budget whole; one longer than the
whole budget is cut, as it could never run otherwise. Follows Orca (Yu et al. 2022). Compare ``paged.py``.
"""

from __future__ import annotations

from engine.lab.records import Reason
from engine.scheduling.decision import Plan
from engine.scheduling.policies.base import Policy
from engine.scheduling.requests import Request


class Orca(Policy):
    """Iteration-level batching with worst-case reservation. Nothing is ever preempted."""

    name = "orca"

    def schedule(self, plan: Plan) -> None:
        for request in self.running:
            self._give(plan, request)
        self.refuse_waiting(plan, self._admit_waiting(plan))

    def _give(self, plan: Plan, request: Request) -> None:
        if plan.budget_left:
            plan.give(request, min(request.num_remaining_tokens, plan.budget_left))

    def _admit_waiting(self, plan: Plan) -> Reason | None:
        """Admit while requests, tokens and blocks last. Returns what stopped it."""
        for request in self.candidates():
            if len(self.running) >= self.limits.max_requests:
                return "request_limit"
            cached = self.find_cached(request)
            if not self.fits_budget(plan, request, cached):
                return "token_budget"
            if not self.has_room(request.max_total_tokens, cached):
                return "no_blocks"
            self.admit(plan, request, cached)
            self.grow(request, request.max_total_tokens)
            self._give(plan, request)
        return None
