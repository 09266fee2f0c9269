"""Static batching: a batch is fixed when the one before has drained, and held until its last row is done.

As a plain ``generate()`` loop does it. Prompts are computed first; then every step decodes one token of every row, and
a row that has finished keeps running as padding, because the batch has a shape and the shape does not change. Blocks
for the longest possible output are reserved at admission, so nothing is ever preempted. A request that arrives one step
late waits for the whole batch. Compare ``chunked.py``.
"""

from __future__ import annotations

from engine.lab.records import Reason
from engine.lab.scenario import Limits, ScenarioError
from engine.scheduling.blocks import BlockPool
from engine.scheduling.decision import Plan
from engine.scheduling.policies.base import Policy
from engine.scheduling.prefix import PrefixCache
from engine.scheduling.requests import Request


class Static(Policy):
    """Request-level batching. ``batch`` holds the rows, finished ones too, until the batch has drained."""

    name = "static"

    def __init__(self, limits: Limits, pool: BlockPool, prefix: PrefixCache) -> None:
        super().__init__(limits, pool, prefix)
        if limits.max_batch_tokens < limits.max_requests:
            raise ScenarioError(
                f"limits.max_batch_tokens is {limits.max_batch_tokens} but static batching decodes up to "
                f"{limits.max_requests} rows in one step; raise it to {limits.max_requests} or more, "
                "or lower limits.max_requests",
                "limits.max_batch_tokens",
            )
        self.batch: list[Request] = []

    def schedule(self, plan: Plan) -> None:
        if not self.batch:
            self.refuse_waiting(plan, self._fix_batch(plan))
        else:
            self.refuse_waiting(plan, "batch_not_drained")

        prompts = [r for r in self.running if r.num_computed_tokens < r.num_prompt_tokens]
        for request in prompts:
            if plan.budget_left:
                plan.give(request, min(request.num_remaining_tokens, plan.budget_left))
        if not prompts:
            for request in self.batch:
                plan.give(request, 1)

    def _fix_batch(self, plan: Plan) -> Reason | None:
        """Admit from the queue while rows and blocks last. Returns what stopped it."""
        for request in self.candidates():
            if len(self.batch) == self.limits.max_requests:
                return "request_limit"
            cached = self.find_cached(request)
            if not self.has_room(request.max_total_tokens, cached):
                return "no_blocks"
            self.admit(plan, request, cached)
            self.grow(request, request.max_total_tokens)
            self.batch.append(request)
        return None

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self._drain()

    def drop(self, request: Request) -> None:
        super().drop(request)
        if request in self.batch:
            self.batch.remove(request)
        self._drain()

    def _drain(self) -> None:
        """Give back the blocks of the batch once no row of it is alive."""
        if not self.running:
            for request in self.batch:
                self.release(request)
            self.batch.clear()
