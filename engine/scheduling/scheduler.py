"""The scheduler: one door to queues, blocks and policy. ``decide`` what a step does, ``commit`` what it did.

It knows requests, blocks and a token budget; it knows no model, no text and reads no clock (times are handed in). The
two calls, and ``abort`` between them, are the only things that change scheduling state. The shape follows the scheduler
of vLLM V1: a decision is ``{request_id: num_tokens}``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.lab.records import FinishReason
from engine.lab.scenario import Limits, ScenarioError, Speculation
from engine.scheduling.blocks import BlockPool
from engine.scheduling.decision import Chunk, Decision, Plan
from engine.scheduling.policies import POLICIES
from engine.scheduling.policies.base import Policy
from engine.scheduling.prefix import PREFIX_CACHES
from engine.scheduling.requests import Request, Status
from engine.scheduling.speculation import PromptLookup

FinishRule = Callable[[Request, int], FinishReason | None]  # (request, its new token) -> why it ends, or None


class NewToken(NamedTuple):
    """A token that a request has got in a step; a request with right guesses gets several. The last one may end it."""

    request: Request
    token_id: int
    finish_reason: FinishReason | None


def ends_at_max_tokens(request: Request, token_id: int) -> FinishReason | None:
    """The finish rule without a model: only the number of tokens counts. Pure."""
    return "length" if request.num_output_tokens >= request.max_tokens else None


class Scheduler:
    """One policy over one block pool. ``requests`` holds every request until ``forget``."""

    def __init__(
        self,
        policy: str,
        limits: Limits,
        block_size: int,
        namespace: str = "",
        speculation: Speculation | None = None,
        policies: Mapping[str, type[Policy]] = POLICIES,
    ) -> None:
        """``namespace``: whose keys and values the blocks hold, see ``PrefixCache``. Raises: ScenarioError."""
        if policy not in policies:
            raise ScenarioError(f"policy is {policy!r}; this engine has {', '.join(policies)}", "policy")
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, block_size)
        self.prefix = PREFIX_CACHES[limits.prefix_cache](self.pool, namespace)
        self.policy = policies[policy](limits, self.pool, self.prefix)
        self.lookup = PromptLookup(speculation.ngram, speculation.num_draft_tokens) if speculation else None
        self.requests: dict[str, Request] = {}
        self.num_finished = 0
        self.future: list[tuple[float, int, Request]] = []  # heap of requests that have not arrived yet
        self._num_added = 0

    # ---- requests come and go ----------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Take a request, to be considered from its ``arrival_s`` on. Raises: ScenarioError if it can never run."""
        self._refuse_impossible(request)
        self.requests[request.request_id] = request
        heapq.heappush(self.future, (request.arrival_s, self._num_added, request))
        self._num_added += 1

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request in whatever state it is. Effect: its blocks are released before this returns, once.

        Returns whether anything changed: false for an unknown id and for one that is over and holds nothing. A finished
        row that static batching still runs as padding leaves its batch and keeps its finish reason.
        """
        request = self.requests.get(request_id)
        if request is None or (request.is_finished and not request.block_ids):
            return False
        if not request.is_finished:
            self.future = [entry for entry in self.future if entry[2] is not request]
            heapq.heapify(self.future)
            request.completion_s = max(now_s, request.arrival_s)  # one that never arrived ends as it would have begun
            self._finish(request, "abort")
        self.policy.drop(request)
        return True

    def forget(self, request_id: str) -> None:
        """Drop a finished request that holds nothing, so that a long-lived engine stays small."""
        request = self.requests[request_id]
        assert request.is_finished and not request.block_ids, f"{request_id} is still in the engine"
        del self.requests[request_id]

    @property
    def next_arrival_s(self) -> float | None:
        """When the next request that has not arrived will, or None."""
        return self.future[0][0] if self.future else None

    @property
    def has_unfinished(self) -> bool:
        return bool(self.future or self.policy.waiting or self.policy.running)

    # ---- decide and commit -------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Decision:
        """Choose what the next step computes. Effect: queues and blocks change; nothing counts as computed yet."""
        while self.future and self.future[0][0] <= now_s:
            self.policy.waiting.append(heapq.heappop(self.future)[2])
        plan = Plan(self.limits.max_batch_tokens)
        if self.limits.kv_cache == "none":
            self.policy.forget(plan)
        self.policy.schedule(plan)
        if self.lookup is not None:
            self._draft(plan, self.lookup)
        has_work = bool(self.policy.waiting or self.policy.running)
        assert plan.scheduled or not has_work or self.policy.expects_blocks, "work waits and nothing can run"
        for request_id in plan.scheduled:
            request = self.requests[request_id]
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
        return Decision(plan.scheduled, plan.admitted, plan.preempted, plan.refused, plan.drafts)

    def _draft(self, plan: Plan, lookup: PromptLookup) -> None:
        """Let greedy decodes guess ahead with the budget and the free blocks that nobody wanted.

        Effect: the plan gives them more tokens, and their tables grow. Nobody waits and nothing is evicted for a guess.
        """
        for request_id in list(plan.scheduled):
            request = self.requests[request_id]
            if request.temperature > 0 or request.phase != "decode" or request.is_finished:
                continue
            room = (len(request.block_ids) + self.pool.num_free) * self.pool.block_size - request.num_tokens
            most = min(plan.budget_left, room, request.max_tokens - request.num_output_tokens - 1)
            guess = lookup.propose(request, most) if most > 0 else []
            if guess:
                self.policy.grow(request, request.num_tokens + len(guess))
                plan.give_drafts(request, guess)

    def chunks(self, decision: Decision) -> list[Chunk]:
        """The decision as frozen views, in batch order, for an executor and for ``commit``. Pure.

        Each draft is a row of its own, so that the model says after each what it would have said.
        """
        chunks = []
        for request_id, num_tokens in decision.scheduled.items():
            request, drafts = self.requests[request_id], decision.drafts.get(request_id)
            if drafts is None:
                chunks.append(self._chunk(request, num_tokens))
                continue
            first = replace(self._chunk(request, 1), request=request.with_drafts(drafts))
            chunks += [first, *(replace(first, start=first.start + i, is_draft=True) for i in range(1, num_tokens))]
        return chunks

    def _chunk(self, request: Request, num_tokens: int) -> Chunk:
        start, phase = request.num_computed_tokens, request.phase
        if request.is_finished:  # computes its last position again, to no effect: a row of a fixed batch is never empty
            start, phase = start - 1, "padding"
        samples = start + num_tokens == request.num_tokens
        return Chunk(request, start, num_tokens, phase, list(request.block_ids), samples, request.num_cached_tokens)

    def commit(self, chunks: Sequence[Chunk], token_ids: Sequence[int], ends: FinishRule) -> list[NewToken]:
        """Count the chunks as computed and append the sampled tokens, one for each chunk that samples, in order.

        Effect: requests for which ``ends`` gives a reason finish and leave. Returns the tokens that were appended.
        A request aborted since the decision is passed over: its blocks are gone and its token is dropped. So is what
        follows a wrong guess: its slots are written again when the right token comes.
        """
        assert len(token_ids) == sum(chunk.samples for chunk in chunks), "one token for each chunk that samples"
        tokens = iter(token_ids)
        produced: list[NewToken] = []
        for chunk in chunks:
            request = self.requests.get(chunk.request.request_id, chunk.request)  # the chunk's may be a view of it
            token_id = next(tokens) if chunk.samples else None
            if request.is_finished:
                continue
            if chunk.is_draft and request.token_ids[chunk.start :] != chunk.token_ids:
                continue  # the model has said something else, or ended, before this row
            request.num_computed_tokens += chunk.num_tokens
            self.prefix.publish(request)  # only now: what a step has not committed, the next one must not read
            if token_id is None:
                continue
            request.token_ids.append(token_id)
            reason = ends(request, token_id)
            produced.append(NewToken(request, token_id, reason))
            if reason is not None:
                self._finish(request, reason)
                self.policy.end(request)
        return produced

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.status = Status.FINISHED
        request.finish_reason = reason
        self.num_finished += 1
        if self.lookup is not None:
            self.lookup.forget(request.request_id)

    def _refuse_impossible(self, request: Request) -> None:
        """Raises: ScenarioError with the numbers and a remedy, for a request no order of steps could serve."""
        name, pool = request.request_id, self.pool
        if name in self.requests:
            raise ScenarioError(f"request_id {name!r} is in use; give every request its own", "request_id")
        if not request.prompt_token_ids:
            raise ScenarioError(f"request {name} has an empty prompt; give it at least one token", "prompt")
        if request.max_tokens < 1:
            raise ScenarioError(f"request {name}: max_tokens is {request.max_tokens}; allowed: 1 or more", "max_tokens")
        if request.max_total_tokens > pool.num_blocks * pool.block_size:
            raise ScenarioError(
                f"request {name} needs {request.max_total_tokens} positions ({request.num_prompt_tokens} of prompt and "
                f"max_tokens {request.max_tokens}) but all {pool.num_blocks} KV blocks of {pool.block_size} together "
                f"hold {pool.num_blocks * pool.block_size}; raise limits.num_blocks to "
                f"{pool.blocks_for(request.max_total_tokens)} or shorten the request",
                "limits.num_blocks",
            )
