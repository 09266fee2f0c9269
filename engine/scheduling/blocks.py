"""The pool of KV blocks: who uses which block, and the log of every change.

A block is in exactly one of three places: in use (it has users), cached (published, no users) or free. This module
decides nothing about requests; it moves blocks between the three and writes each move down as an event, so that a
replay of the events gives the state after every step. ``release`` is the only way to free a block. After the block
manager of vLLM (PagedAttention, Kwon et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.lab.records import BlockOp
from engine.scheduling.requests import Request

Event = tuple[BlockOp, int, str | None]  # op, block_id, request_id


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` positions. An operation costs the blocks it touches, never the pool."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_users = [0] * num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is used next
        self.cached: dict[int, None] = {}  # published blocks without users, least recently used first
        self.published: set[int] = set()
        self.on_evict: Callable[[int], None] | None = None  # how a prefix cache learns that a block's content is gone
        self._events: list[Event] = []

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def num_cached(self) -> int:
        return len(self.cached)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - len(self.free) - len(self.cached)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can hand out: the free ones, and the cached ones once evicted."""
        return len(self.free) + len(self.cached)

    def num_available_beside(self, block_ids: Sequence[int]) -> int:
        """Blocks that ``allocate`` could hand out once these are shared: sharing a cached block keeps it. Pure."""
        return self.num_available - sum(block_id in self.cached for block_id in block_ids)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` positions. Pure."""
        return -(-num_tokens // self.block_size)

    def allocate(self, request: Request, num_blocks: int) -> None:
        """Append ``num_blocks`` empty blocks to the request's table. Effect: evicts cached blocks if none is free."""
        assert num_blocks <= self.num_available, f"{num_blocks} blocks asked, {self.num_available} available"
        for _ in range(num_blocks):
            if not self.free:
                self.evict(next(iter(self.cached)))
            block_id = self.free.pop()
            self.num_users[block_id] = 1
            request.block_ids.append(block_id)
            self._events.append(("alloc", block_id, request.request_id))

    def share(self, request: Request, block_ids: Sequence[int]) -> None:
        """Append published blocks to the request's table: their content is read, never written. Effect: adds a user."""
        for block_id in block_ids:
            assert block_id in self.published, f"block {block_id} is not published and cannot be shared"
            self.cached.pop(block_id, None)
            self.num_users[block_id] += 1
            request.block_ids.append(block_id)
            self._events.append(("share", block_id, request.request_id))

    def publish(self, request: Request, index: int) -> None:
        """Make the request's block ``index``, full and computed, findable by others. Effect: it outlives its users."""
        block_id, end = request.block_ids[index], (index + 1) * self.block_size
        assert end <= request.num_computed_tokens, f"block {block_id} is not full yet and cannot be published"
        assert block_id not in self.published, f"block {block_id} is published already"
        self.published.add(block_id)
        self._events.append(("publish", block_id, request.request_id))

    def evict(self, block_id: int) -> None:
        """Forget the content of a cached block. Effect: it becomes free, and the prefix cache is told."""
        assert block_id in self.cached, f"block {block_id} is not cached and cannot be evicted"
        if self.on_evict is not None:
            self.on_evict(block_id)
        del self.cached[block_id]
        self.published.remove(block_id)
        self.free.append(block_id)
        self._events.append(("evict", block_id, None))

    def release(self, request: Request) -> None:
        """Take the request off all its blocks. Effect: a block without users becomes cached or free; the table empties.

        Safe to repeat: a released request holds no blocks. The tail goes first, so that a cached prefix outlives what
        was appended to it.
        """
        while request.block_ids:
            block_id = request.block_ids.pop()
            self.num_users[block_id] -= 1
            assert self.num_users[block_id] >= 0, f"block {block_id} was released more often than used"
            self._events.append(("release", block_id, request.request_id))
            if self.num_users[block_id]:
                continue
            if block_id in self.published:
                self.cached[block_id] = None
            else:
                self.free.append(block_id)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """The changes since the last call, in order. Effect: the log begins anew."""
        events, self._events = self._events, []
        return events
