"""The KV block map, rebuilt from a Run's block events alone: which block is free, cached or in use, and whose it is.

It decides what each event may do to which block and refuses the rest with a sentence; it never looks at the recorded
counts (``engine.lab.check`` compares them) and never guesses a missing event. The rules are those of a paged KV cache
with reference counts (PagedAttention, vLLM): a block is free, or in use with at least one user, or cached, which means
published with no user. Invariant: those three always sum to the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.lab.records import BlockEvent, Blocks, Run


class BlockRuleError(ValueError):
    """An event that the state of its block does not allow. ``invariant`` names the rule, the text what happened."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(message)
        self.invariant = invariant


@dataclass
class BlockMap:
    """Blocks [0, total) with their users. ``tables[request_id]`` lists a request's blocks in position order."""

    total: int
    users: dict[int, list[str]] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)
    tables: dict[str, list[int]] = field(default_factory=dict)

    def apply(self, event: BlockEvent) -> None:
        """Carry out one event. Effect: users, published and tables change. Raises: BlockRuleError, state unchanged."""
        block, request = event.block_id, event.request_id
        if not 0 <= block < self.total:
            raise BlockRuleError("block_id", f"block {block} is not one of the {self.total} blocks of the pool")
        if event.op == "evict":
            self._evict(block)
        elif request is None:
            raise BlockRuleError("block_user", f"{event.op} of block {block} names no request")
        elif event.op == "alloc":
            self._alloc(block, request)
        elif event.op == "share":
            self._share(block, request)
        elif event.op == "publish":
            self._publish(block, request)
        else:
            self._release(block, request)

    def counts(self) -> Blocks:
        """How many blocks are free, cached and in use now. Pure."""
        in_use = len(self.users)
        cached = sum(1 for b in self.published if b not in self.users)
        return Blocks(total=self.total, free=self.total - in_use - cached, cached=cached, in_use=in_use)

    def _alloc(self, block: int, request: str) -> None:
        if block in self.users:
            raise BlockRuleError("alloc_free", f"alloc of block {block}, which {self.users[block]} still use")
        if block in self.published:
            raise BlockRuleError("alloc_free", f"alloc of block {block}, which is cached and was not evicted first")
        self.users[block] = [request]
        self.tables.setdefault(request, []).append(block)

    def _share(self, block: int, request: str) -> None:
        if block not in self.published:
            raise BlockRuleError("share_published", f"share of block {block}, which was never published")
        if request in self.users.get(block, ()):
            raise BlockRuleError("share_published", f"share of block {block} with {request}, which has it already")
        self.users.setdefault(block, []).append(request)
        self.tables.setdefault(request, []).append(block)

    def _publish(self, block: int, request: str) -> None:
        if request not in self.users.get(block, ()):
            raise BlockRuleError("publish_known", f"publish of block {block} by {request}, which does not use it")
        if block in self.published:
            raise BlockRuleError("publish_known", f"publish of block {block}, which is published already")
        self.published.add(block)

    def _release(self, block: int, request: str) -> None:
        users = self.users.get(block, [])
        if request not in users:
            raise BlockRuleError("release_user", f"release of block {block} by {request}, which does not use it")
        users.remove(request)
        if not users:
            del self.users[block]
        self.tables[request].remove(block)
        if not self.tables[request]:
            del self.tables[request]

    def _evict(self, block: int) -> None:
        if block in self.users:
            raise BlockRuleError("evict_unused", f"evict of block {block}, which {self.users[block]} still use")
        if block not in self.published:
            raise BlockRuleError("evict_unused", f"evict of block {block}, which is not cached")
        self.published.discard(block)


@dataclass(frozen=True)
class BlockSnapshot:
    """The pool after a step: users of every block in use, and the cached blocks. All other blocks are free."""

    step: int
    users: dict[int, tuple[str, ...]]
    published: frozenset[int]
    tables: dict[str, tuple[int, ...]]

    def state(self, block_id: int) -> str:
        """``free``, ``in_use``, ``shared`` (two or more users) or ``cached``. Pure."""
        count = len(self.users.get(block_id, ()))
        if count:
            return "shared" if count > 1 else "in_use"
        return "cached" if block_id in self.published else "free"


def block_snapshots(run: Run) -> Iterator[BlockSnapshot]:
    """The block map after each step, for views. Pure. Raises: BlockRuleError where the events contradict themselves."""
    blocks = BlockMap(run.header.num_blocks)
    for step in run.steps:
        for event in step.block_events:
            blocks.apply(event)
        yield BlockSnapshot(
            step=step.step,
            users={b: tuple(u) for b, u in blocks.users.items()},
            published=frozenset(blocks.published),
            tables={r: tuple(t) for r, t in blocks.tables.items()},
        )
