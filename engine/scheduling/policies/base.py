"""What every policy shares: the two queues and the few verbs that change them.

A policy is one method, ``schedule(plan)``, written with these verbs: ``admit``, ``grow``, ``make_room``, ``preempt``,
``refuse_waiting``. It may change what becomes of a request that ends (``end``, ``drop``). This module owns the queues'
order (waiting: first come, first served, preempted ones at the head; running: oldest first) and holds the only call of
``BlockPool.release``. It reads no clock and knows nothing of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar

from engine.lab.records import Reason
from engine.lab.scenario import Limits
from engine.scheduling.blocks import BlockPool
from engine.scheduling.decision import Plan
from engine.scheduling.requests import Request, Status


class Policy(ABC):
    """Base of all policies. ``waiting`` holds arrived requests only; ``running`` those admitted and not finished."""

    name: ClassVar[str]
    first_come_first_served: ClassVar[bool] = True  # whether requests are first scheduled in order of arrival

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @abstractmethod
    def schedule(self, plan: Plan) -> None:
        """Fill the plan of one step. Effect: admits, preempts, allocates. Names a reason for all who still wait."""

    # ---- verbs -------------------------------------------------------------------------------------------------

    def admit(self, plan: Plan, request: Request) -> None:
        """Move the head of the waiting queue to the running ones."""
        head = self.waiting.popleft()
        assert head is request, "requests are admitted in the order of the waiting queue"
        request.status = Status.RUNNING
        self.running.append(request)
        plan.admitted.append(request.request_id)

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

    def refuse_waiting(self, plan: Plan, why: Reason | None) -> None:
        """Record why everybody who still waits does: the queue is in order, so what stops its head stops the rest."""
        assert why is not None or not self.waiting, "a request waits and the policy has no reason"
        plan.refused.extend((request.request_id, why) for request in self.waiting)

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
