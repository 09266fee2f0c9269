"""Chunked prefill under a token budget: decodes first, then prompts in slices, blocks on demand.

Every step has ``max_batch_tokens``. Each running decode gets its one token first, so no decode ever waits for a prompt;
what is left goes to running prompts and then to newcomers, cut to fit. A request that arrives joins in the next step,
one that finishes leaves at once. When a block is missing the youngest running request is preempted, to be recomputed.
Follows Sarathi-Serve (Agrawal et al. 2024) and vLLM V1. Compare ``static.py``.
"""

from __future__ import annotations

from engine.lab.records import Reason
from engine.scheduling.decision import Plan
from engine.scheduling.policies.base import Policy
from engine.scheduling.requests import Status


class Chunked(Policy):
    """Iteration-level batching with chunked prefill."""

    name = "chunked"

    def schedule(self, plan: Plan) -> None:
        decodes = [r for r in self.running if r.phase == "decode"]
        prompts = [r for r in self.running if r.phase != "decode"]
        for request in decodes + prompts:
            num_tokens = min(request.num_remaining_tokens, plan.budget_left)
            if not num_tokens or request.status is not Status.RUNNING:
                continue  # the budget is spent, or an older request has just preempted this one
            if self.make_room(plan, request, request.num_computed_tokens + num_tokens):
                plan.give(request, num_tokens)
        self.refuse_waiting(plan, self._admit_waiting(plan))

    def _admit_waiting(self, plan: Plan) -> Reason | None:
        """Admit while requests, tokens and blocks last. Returns what stopped it.

        Its first chunk needs few blocks, but a newcomer must find room for all the tokens it has: admitted on less it
        would start, starve, be preempted and start again. No block is promised twice: as long as budget is left,
        everyone before has all its tokens scheduled and holds the blocks for them. Nor does somebody preempted in this
        step come back in it, short of a prefix that others hold: it needs more blocks than it left behind.
        """
        for request in self.candidates():
            if len(self.running) >= self.limits.max_requests:
                return "request_limit"
            if not plan.budget_left:
                return "token_budget"
            cached = self.find_cached(request)
            if not self.has_room(request.num_tokens, cached):
                return "no_blocks"
            self.admit(plan, request, cached)
            num_tokens = min(request.num_remaining_tokens, plan.budget_left)
            self.grow(request, request.num_computed_tokens + num_tokens)
            plan.give(request, num_tokens)
        return None
