"""What must be true of a scheduler after every step, as code that raises when it is not.

``check_invariants`` looks at one moment and ``StepChecker`` follows an engine from record to record; both are for tests
and for a flag in the app, cost time in proportion to the pool, and change nothing. The numbers are those of the
project's list (I1-I19): I13 and I14 compare whole runs and are tests. The style is that of vLLM's scheduler tests;
that each check bites is tested by corrupting the state by hand.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.lab.records import StepRecord
from engine.lab.replay import BlockMap, BlockRuleError
from engine.scheduling.blocks import BlockPool
from engine.scheduling.prefix import PrefixCache
from engine.scheduling.requests import Request, Status
from engine.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from engine.runtime.engine import Engine


class InvariantError(AssertionError):
    """A bug in the engine. ``invariant`` is the number of the rule that does not hold, the text says how."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


def _require(condition: object, invariant: str, message: str) -> None:
    if not condition:
        raise InvariantError(invariant, message)


# ---- one moment ----------------------------------------------------------------------------------------------------


def check_invariants(scheduler: Scheduler) -> None:
    """Check the state between two steps. Pure. Raises: InvariantError."""
    requests = list(scheduler.requests.values())
    _check_pool(scheduler.pool)
    _check_tables(scheduler.pool, requests)
    _check_queues(scheduler, requests)
    _check_prefix(scheduler.pool, scheduler.prefix, requests)
    for request in requests:
        _check_counters(scheduler.pool, request)
        _check_times(request)
    if scheduler.policy.first_come_first_served and scheduler.limits.kv_cache == "keep":  # who forgets queues again
        _check_order(scheduler, requests)


def check_empty(scheduler: Scheduler) -> None:
    """Check that nothing is left when all work is done. Pure. Raises: InvariantError."""
    _require(not scheduler.has_unfinished, "I15", "a request still waits or runs")
    _require(scheduler.pool.num_in_use == 0, "I15", f"{scheduler.pool.num_in_use} blocks are still in use")
    _require(not any(scheduler.pool.num_users), "I15", "a block still has users")
    held = [r.request_id for r in scheduler.requests.values() if r.block_ids]
    _require(not held, "I15", f"{held} still hold blocks")


def _check_pool(pool: BlockPool) -> None:
    in_use = [b for b in range(pool.num_blocks) if pool.num_users[b] > 0]
    total = pool.num_free + pool.num_cached + len(in_use)
    _require(
        total == pool.num_blocks,
        "I1",
        f"{pool.num_free} free + {pool.num_cached} cached + {len(in_use)} in use are not {pool.num_blocks}",
    )
    places = Counter([*pool.free, *pool.cached, *in_use])
    wrong = [b for b in range(pool.num_blocks) if places[b] != 1]
    _require(not wrong and len(places) == pool.num_blocks, "I2", f"blocks {wrong} are not in exactly one place")
    _require(pool.published >= set(pool.cached), "I2", "a cached block is not published")
    _require(not pool.published & set(pool.free), "I2", "a free block is published")
    _require(min(pool.num_users) >= 0, "I16", "a block was released more often than used")


def _check_tables(pool: BlockPool, requests: list[Request]) -> None:
    holders: Counter[int] = Counter()
    for request in requests:
        if request.block_ids:
            holders.update(request.block_ids)
            _check_table(pool, request)
    for block_id, num_users in enumerate(pool.num_users):
        count = holders[block_id]
        if num_users != count:
            raise InvariantError("I3", f"block {block_id} counts {num_users} users, {count} tables hold it")
        if count > 1 and block_id not in pool.published:
            raise InvariantError("I6", f"block {block_id} is in {count} tables, not published: their slots collide")


def _check_table(pool: BlockPool, request: Request) -> None:
    name, table = request.request_id, request.block_ids
    _require(len(set(table)) == len(table), "I4", f"{name} has a block twice")
    _require(pool.cached.keys().isdisjoint(table), "I4", f"{name} has a block that is cached")
    _require(set(table).isdisjoint(pool.free), "I4", f"{name} has a block that is free")
    for index, block_id in enumerate(table):
        if block_id in pool.published and (index + 1) * pool.block_size > request.num_computed_tokens:
            raise InvariantError("I5", f"published block {block_id} of {name} is not full and will be written")


def _check_queues(scheduler: Scheduler, requests: list[Request]) -> None:
    waiting, running = list(scheduler.policy.waiting), scheduler.policy.running
    future = [entry[2] for entry in scheduler.future]
    queued = Counter(map(id, [*waiting, *running, *future]))
    for request in requests:
        times, status = queued[id(request)], request.status
        if times != (status is not Status.FINISHED):
            raise InvariantError("queues", f"{request.request_id} is {status.value}, queued {times} times")
        if status is Status.WAITING and request.block_ids:
            raise InvariantError("queues", f"{request.request_id} waits and holds blocks")
    for queue, status in ((running, Status.RUNNING), (waiting, Status.WAITING), (future, Status.WAITING)):
        wrong = [r.request_id for r in queue if r.status is not status]
        _require(not wrong, "queues", f"{wrong} stand in a queue of those that are {status.value}")
    most = scheduler.limits.max_requests
    _require(len(running) <= most, "I9", f"{len(running)} requests run; max_requests is {most}")


def _check_prefix(pool: BlockPool, prefix: PrefixCache, requests: list[Request]) -> None:
    """What is published can be found, stands behind something published, and is what its holders' tokens say."""
    contents = {}
    for block_id in pool.published:
        try:
            origin, _ = contents[block_id] = prefix.content(block_id)
        except (KeyError, ValueError, AssertionError) as error:
            raise InvariantError("I7", f"published block {block_id} is not in the prefix cache: {error}") from None
        held = origin in pool.published if isinstance(origin, int) else origin == prefix.namespace
        _require(held, "I7", f"published block {block_id} stands behind {origin!r}, which is not published")
    for request in requests:
        name, table = request.request_id, request.block_ids
        if not table:
            continue
        published = [block_id for block_id in table if block_id in pool.published]
        leading = table[: request.num_published_blocks]
        _require(published == leading, "I7", f"{name} counts {leading} as published, but {published} are")
        for index, block_id in enumerate(published):
            tokens = tuple(request.token_ids[index * pool.block_size : (index + 1) * pool.block_size])
            expected = (table[index - 1] if index else prefix.namespace, tokens)
            _require(contents[block_id] == expected, "I7", f"block {block_id} of {name} holds {contents[block_id]}")


def _check_counters(pool: BlockPool, request: Request) -> None:
    r, num_tokens = request, request.num_tokens

    def require(condition: bool, what: str) -> None:
        if not condition:
            counts = f"cached {r.num_cached_tokens}, computed {r.num_computed_tokens}, tokens {num_tokens}"
            raise InvariantError("I8", f"{r.request_id}: {what}: {counts}, {len(r.block_ids)} blocks")

    require(0 <= r.num_cached_tokens <= r.num_computed_tokens <= num_tokens, "counters are out of order")
    require(r.num_computed_tokens < num_tokens or r.is_finished, "nothing is left to compute")
    require(num_tokens <= r.max_total_tokens, f"more tokens than {r.max_total_tokens}")
    if r.status is Status.RUNNING:
        require(len(r.block_ids) * pool.block_size >= r.num_computed_tokens, "the blocks do not cover what is computed")
        require(len(r.block_ids) <= pool.blocks_for(r.max_total_tokens), "more blocks than it can use")


def _check_times(request: Request) -> None:
    r, moment = request, request.arrival_s
    for later in (r.first_scheduled_s, r.first_token_s, r.completion_s):
        if later is not None:
            if later < moment:
                raise InvariantError("I19", f"{r.request_id}: time runs backwards, {later} after {moment}")
            moment = later
    _require((r.completion_s is not None) == r.is_finished, "I19", "completion is timed, or it is finished, not both")
    _require((r.first_token_s is not None) == (r.num_output_tokens > 0), "I19", "a first token is untimed, or no token")


def _check_order(scheduler: Scheduler, requests: list[Request]) -> None:
    """Who runs came before who waits, and the first to come was the first to be scheduled, unless it was aborted."""
    for earlier, later in pairwise([*scheduler.policy.running, *scheduler.policy.waiting]):
        in_order = earlier.arrival_s <= later.arrival_s
        _require(in_order, "I12", f"{later.request_id} stands behind {earlier.request_id} and arrived before it")
    considered = [r for r in requests if r.first_scheduled_s is not None or not r.is_finished]
    considered.sort(key=lambda r: r.arrival_s)
    for earlier, later in pairwise(considered):
        if later.first_scheduled_s is None:
            continue
        first = earlier.first_scheduled_s
        _require(
            first is not None and first <= later.first_scheduled_s,
            "I12",
            f"{later.request_id} (arrived {later.arrival_s}) was scheduled before {earlier.request_id}",
        )


# ---- from record to record -----------------------------------------------------------------------------------------


class StepChecker:
    """Follows one engine from its first step. ``check`` after each ``Engine.step`` that gave a record."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = engine.scheduler
        self.blocks = BlockMap(engine.scheduler.pool.num_blocks)
        self.num_idle_steps = 0
        self._advanced: dict[str, int] = {}  # the most positions ever computed for a request

    def check(self, record: StepRecord) -> None:
        """Check the record against the rules and against the live state. Raises: InvariantError."""
        self._check_batch(record)
        self._check_samples(record)
        self._check_replay(record)
        self._check_progress(record)
        check_invariants(self.scheduler)

    def _check_batch(self, record: StepRecord) -> None:
        limits, rows = self.scheduler.limits, record.scheduled
        total = sum(row.num_tokens for row in rows)
        _require(total <= limits.max_batch_tokens, "I9", f"{total} tokens; the budget is {limits.max_batch_tokens}")
        _require(len(rows) <= limits.max_requests, "I9", f"{len(rows)} rows; max_requests is {limits.max_requests}")
        _require(all(row.num_tokens >= 1 for row in rows), "I9", "a request is scheduled without a token")
        _require(rows or not record.queues.running, "I9", "requests run and the batch is empty")
        waiting = [request.request_id for request in self.scheduler.policy.waiting]
        refused = [refused.request_id for refused in record.refused]
        _require(set(waiting) <= set(refused), "refused", f"{waiting} wait, reasons are given for {refused}")

    def _check_samples(self, record: StepRecord) -> None:
        whole = [row.request_id for row in record.scheduled if row.is_last_chunk and row.phase != "padding"]
        given = [output.request_id for output in record.outputs if output.token_id is not None]
        aborted = {output.request_id for output in record.outputs if output.finish_reason == "abort"}
        extra = Counter(given) - Counter(whole) - Counter({r.request_id: r.num_draft_tokens for r in record.scheduled})
        _require(not extra, "I10", f"{set(extra)} sampled without a last chunk or a draft")
        _require(set(whole) <= set(given) | aborted, "I10", f"last chunks of {whole}, tokens of {given}")

    def _check_replay(self, record: StepRecord) -> None:
        try:
            for event in record.block_events:
                self.blocks.apply(event)
        except BlockRuleError as error:
            raise InvariantError("I16", str(error)) from None
        pool = self.scheduler.pool
        live = {r.request_id: r.block_ids for r in self.scheduler.requests.values() if r.block_ids}
        if self.blocks.tables != live:
            raise InvariantError("I17", f"the events give {self.blocks.tables}, the tables are {live}")
        _require(self.blocks.published == pool.published, "I17", "the events and the pool differ in published blocks")
        _require(self.blocks.counts() == record.blocks, "I17", "the events and the record differ in counts")

    def _check_progress(self, record: StepRecord) -> None:
        """Within as many steps as the longest request could take to recompute, a request gets further than ever."""
        advanced = bool(record.outputs) or not record.scheduled
        for row in record.scheduled:
            end = row.start + row.num_tokens
            if end > self._advanced.get(row.request_id, 0):
                self._advanced[row.request_id] = end
                advanced = True
        self.num_idle_steps = 0 if advanced else self.num_idle_steps + 1
        most = self.scheduler.pool.num_blocks * self.scheduler.pool.block_size
        _require(self.num_idle_steps <= most, "I11", f"no request has advanced for {self.num_idle_steps} steps")
