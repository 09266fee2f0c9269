"""What every policy shares: the two queues and the few verbs that change them.

A policy is one method, ``schedule(plan)``, written with these verbs: ``find_cached``, ``fits_budget``, ``has_room``,
``admit``, ``grow``, ``make_room``, ``preempt``, ``refuse_waiting``. It may say in which order newcomers are considered
(``candidates``) and what becomes of a request that ends (``end``, ``drop``). This module owns the queues' order
(waiting: first come, first served, preempted ones at the head; running: oldest first) and holds the only call of
``BlockPool.release``. It reads no clock and knows nothing of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from engine.lab.records import Reason
from engine.lab.scenario import Limits
from engine.scheduling.blocks import BlockPool
from engine.scheduling.decision import Plan
from engine.scheduling.prefix import PrefixCache
from engine.scheduling.requests import Request, Status


class Policy(ABC):
    """Base of all policies. ``waiting`` holds arrived requests only; ``running`` those admitted and not finished."""

    name: ClassVar[str]
    first_come_first_served: ClassVar[bool] = True  # whether requests are first scheduled in order of arrival

    def __init__(self, limits: Limits, pool: BlockPool, prefix: PrefixCache) -> None:
        """Raises: ScenarioError for limits the policy cannot work under."""
        self.limits = limits
        self.pool = pool
        self.prefix = prefix
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @abstractmethod
    def schedule(self, plan: Plan) -> None:
        """Fill the plan of one step. Effect: admits, preempts, allocates. Names a reason for all who still wait."""

    @property
    def expects_blocks(self) -> bool:
        """Whether blocks will come back though nothing runs, so that work may wait for them. Pure."""
        return False

    # ---- verbs -------------------------------------------------------------------------------------------------

    def candidates(self) -> Sequence[Request]:
        """Who waits, in the order in which they are considered. Pure. The queue's own order unless overridden."""
        return list(self.waiting)

    def find_cached(self, request: Request) -> list[int]:
        """The blocks that hold the longest published prefix of the request's tokens, all but the last. Pure."""
        return self.prefix.match(request.token_ids)

    def fits_budget(self, plan: Plan, request: Request, cached: Sequence[int]) -> bool:
        """Whether a newcomer's tokens behind ``cached`` can be computed whole in this step. Pure.

        If they are more than any step can take, it is enough that there is budget left: such a prompt has to be cut.
        """
        num_tokens = request.num_tokens - len(cached) * self.pool.block_size
        if num_tokens > self.limits.max_batch_tokens:
            return plan.budget_left > 0
        return num_tokens <= plan.budget_left

    def has_room(self, num_tokens: int, cached: Sequence[int] = (), spare: int = 0) -> bool:
        """Whether a newcomer's positions [0, num_tokens), the first of them ``cached``, leave ``spare`` blocks. Pure.

        A cached block without users counts as available, but not once it is shared: hence "beside".
        """
        missing = self.pool.blocks_for(num_tokens) - len(cached)
        return missing + spare <= self.pool.num_available_beside(cached)

    def admit(self, plan: Plan, request: Request, cached: Sequence[int] = ()) -> None:
        """Move a waiting request to the running ones, where it begins behind its cached prefix."""
        in_order = not self.first_come_first_served or self.waiting[0] is request
        assert in_order, "requests are admitted in the order of the waiting queue"
        self.waiting.remove(request)
        request.status = Status.RUNNING
        request.num_refusals = 0
        self.running.append(request)
        plan.admitted.append(request.request_id)
        if cached:
            self.pool.share(request, cached)
            request.begin_cached(len(cached), self.pool.block_size)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Give the request blocks for its positions [0, num_tokens). False, and no effect, if there are too few."""
        missing = self.pool.blocks_for(num_tokens) - len(request.block_ids)
        if missing > self.pool.num_available:
            return False
        if missing > 0:
            self.pool.allocate(request, missing)
        return True

    def make_room(self, plan: Plan, request: Request, num_tokens: int) -> bool:
        """As ``grow``, preempting the youngest running request until it fits. False if that was the request itself.

        The oldest is never preempted for a younger one and fits the pool alone, so it always advances: no deadlock.
        """
        while not self.grow(request, num_tokens):
            youngest = self.running[-1]
            self.preempt(plan, youngest)
            if youngest is request:
                return False
        return True

    def preempt(self, plan: Plan, request: Request) -> None:
        """Send a running request back to the head of the queue, to be computed again from its tokens ("recompute")."""
        assert request.request_id not in plan.scheduled, "a request that has its tokens is preempted in the same step"
        self.running.remove(request)
        plan.preempted.append(request.request_id)
        self.release(request)
        request.forget_computed()
        request.num_preemptions += 1
        request.status = Status.WAITING
        self.waiting.appendleft(request)

    def forget(self, plan: Plan) -> None:
        """Without a KV cache: whoever has just got a token is preempted, and computed again from its first position.

        A request in the middle of a long pass keeps what it has done. Youngest first: so the oldest gets to the head.
        """
        for request in list(reversed(self.running)):
            if request.phase == "decode" and request.num_computed_tokens > request.num_recompute_tokens:
                self.preempt(plan, request)

    def refuse_waiting(self, plan: Plan, why: Reason | None) -> None:
        """Record why everybody who still waits does: the queue is in order, so what stops its head stops the rest.

        Effect: each of them has been refused once more.
        """
        assert why is not None or not self.waiting, "a request waits and the policy has no reason"
        for request in self.waiting:
            request.num_refusals += 1
            plan.refused.append((request.request_id, why))

    # ---- the end of a request ----------------------------------------------------------------------------------

    def end(self, request: Request) -> None:
        """A running request has produced its last token. Effect: it leaves, and so do its blocks."""
        self.running.remove(request)
        self.release(request)

    def drop(self, request: Request) -> None:
        """A request is aborted, wherever it is. Effect: it leaves, and so do its blocks, at once."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self.running.remove(request)
        self.release(request)

    def release(self, request: Request) -> None:
        """The one place that gives blocks back."""
        self.pool.release(request)
