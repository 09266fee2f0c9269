"""What a prefix cache holds, as a tree, rebuilt from a Run's block events alone.

A published block stands behind the block before it in its publisher's table, so the events say which block continues
which; texts are not needed. The tree is the same for both kinds of cache: a hash chain has one entry for each block of
it, a radix tree one node for each run of blocks without a branch (RadixAttention, Zheng et al. 2024). Invariant: who
uses a block uses all before it, and only a block that nothing continues is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.lab.records import BlockEvent, Run, StepRecord
from engine.lab.replay import BlockMap, BlockRuleError


@dataclass(frozen=True)
class Node:
    """A run of published blocks without a branch. ``start`` is its first position; ``parent`` a place in the list.

    ``users[i]`` use block i now; ``readers`` have published or found a block of it since it was published.
    """

    block_ids: tuple[int, ...]
    start: int
    parent: int | None
    users: tuple[tuple[str, ...], ...]
    readers: tuple[str, ...]

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids)


@dataclass
class PrefixTree:
    """The published blocks of a pool. ``before[block]`` is the block it stands behind, None at a beginning."""

    num_blocks: int
    block_size: int
    before: dict[int, int | None] = field(default_factory=dict)
    readers: dict[int, list[str]] = field(default_factory=dict)
    pool: BlockMap = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockMap(self.num_blocks)

    def apply(self, event: BlockEvent) -> None:
        """Carry out one event. Effect: pool and tree change. Raises: BlockRuleError."""
        self.pool.apply(event)
        block, request = event.block_id, event.request_id
        if event.op == "publish":
            table = self.pool.tables[request]
            place = table.index(block)
            origin = table[place - 1] if place else None
            if origin is not None and origin not in self.before:
                raise BlockRuleError(
                    "publish_known", f"publish of block {block} behind {origin}, which is not published"
                )
            self.before[block] = origin
            self.readers[block] = [request]
        elif event.op == "share":
            if request not in self.readers[block]:
                self.readers[block].append(request)
        elif event.op == "evict":
            if block in self.before.values():
                raise BlockRuleError("evict_unused", f"evict of block {block}, which others stand behind")
            del self.before[block], self.readers[block]

    def nodes(self) -> tuple[Node, ...]:
        """The runs without a branch, each behind its parent, children in the order of their publication. Pure."""
        children: dict[int | None, list[int]] = {}
        for block, origin in self.before.items():
            children.setdefault(origin, []).append(block)
        found: list[Node] = []
        todo: list[tuple[int, int, int | None]] = [(first, 0, None) for first in reversed(children.get(None, []))]
        while todo:
            block, depth, parent = todo.pop()
            run = [block]
            while len(after := children.get(run[-1], [])) == 1:
                run.append(after[0])
            found.append(self._node(run, depth, parent))
            here = len(found) - 1
            todo += [(child, depth + len(run), here) for child in reversed(after)]
        return tuple(found)

    def _node(self, run: Sequence[int], depth: int, parent: int | None) -> Node:
        return Node(
            block_ids=tuple(run),
            start=depth * self.block_size,
            parent=parent,
            users=tuple(tuple(self.pool.users.get(block, ())) for block in run),
            readers=tuple(dict.fromkeys(name for block in run for name in self.readers[block])),
        )


def tree_after(num_blocks: int, block_size: int, steps: Iterable[StepRecord]) -> PrefixTree:
    """The tree after the last of ``steps``, for views. Pure. Raises: BlockRuleError where the events contradict."""
    tree = PrefixTree(num_blocks, block_size)
    for step in steps:
        for event in step.block_events:
            tree.apply(event)
    return tree


def tree_sizes(run: Run) -> Iterator[tuple[int, int]]:
    """(published blocks, runs without a branch) after each step. Pure. Raises: BlockRuleError."""
    tree = PrefixTree(run.header.num_blocks, run.header.block_size)
    for step in run.steps:
        for event in step.block_events:
            tree.apply(event)
        yield len(tree.before), len(tree.nodes())
