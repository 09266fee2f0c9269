"""Prefix cache as a radix tree: tokens lead from the root to the blocks that hold them, nothing is hashed away.

A node holds a run of blocks with no branch between them; where two prompts part, the run is split at that block. A
match compares tokens all the way, so what is found is verified by being found. Only the end of a leaf is ever evicted,
which the pool's order guarantees (see ``base``). Follows the RadixAttention of SGLang (Zheng et al. 2024), with edges
aligned to blocks; compare ``hash_chain.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.scheduling.blocks import BlockPool
from engine.scheduling.prefix.base import BlockTokens, Origin, PrefixCache
from engine.scheduling.requests import Request


@dataclass(eq=False, slots=True)
class _Node:
    """A run of blocks: ``tokens[i]`` are in ``block_ids[i]``. Children are found by their first block's tokens."""

    parent: _Node | None
    tokens: list[BlockTokens] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    children: dict[BlockTokens, _Node] = field(default_factory=dict)


class Radix(PrefixCache):
    """One tree per namespace. ``_nodes`` leads from a published block to the node that holds it."""

    def __init__(self, pool: BlockPool, namespace: str = "") -> None:
        super().__init__(pool, namespace)
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[int, _Node] = {}

    def match(self, token_ids: Sequence[int]) -> list[int]:
        hit: list[int] = []
        node, place = self._roots.get(self.namespace), 0
        for index in range(self._num_matchable(token_ids) if node else 0):
            tokens = self._tokens(token_ids, index)
            if place == len(node.tokens):
                node, place = node.children.get(tokens), 0
                if node is None:
                    break
            elif node.tokens[place] != tokens:
                break
            hit.append(node.block_ids[place])
            place += 1
        return hit

    def _insert(self, request: Request, index: int) -> bool:
        tokens, block_id = self._tokens(request.token_ids, index), request.block_ids[index]
        node = self._nodes[request.block_ids[index - 1]] if index else self._root()
        if index and node.block_ids[-1] != request.block_ids[index - 1]:
            end = node.block_ids.index(request.block_ids[index - 1]) + 1
            if node.tokens[end] == tokens:
                return False
            self._split(node, end)
        if tokens in node.children:
            return False
        if node.children or node.parent is None:
            node.children[tokens] = node = _Node(node)
        node.tokens.append(tokens)
        node.block_ids.append(block_id)
        self._nodes[block_id] = node
        return True

    def _root(self) -> _Node:
        return self._roots.setdefault(self.namespace, _Node(None))

    def _split(self, node: _Node, end: int) -> None:
        """Effect: the node keeps its blocks [0, end); the rest, and all its children, become its one child."""
        tail = _Node(node, node.tokens[end:], node.block_ids[end:], node.children)
        for child in tail.children.values():
            child.parent = tail
        self._nodes.update(dict.fromkeys(tail.block_ids, tail))
        del node.tokens[end:], node.block_ids[end:]
        node.children = {tail.tokens[0]: tail}

    def forget(self, block_id: int) -> None:
        node = self._nodes.pop(block_id)
        assert not node.children and node.block_ids[-1] == block_id, f"block {block_id} is not the end of a leaf"
        node.block_ids.pop()
        tokens = node.tokens.pop()
        if not node.tokens:
            del node.parent.children[tokens]

    def content(self, block_id: int) -> tuple[Origin, BlockTokens]:
        node = self._nodes[block_id]
        place = node.block_ids.index(block_id)
        if place:
            return node.block_ids[place - 1], node.tokens[place]
        parent = node.parent
        assert parent.children[node.tokens[0]] is node, f"block {block_id} cannot be found by its tokens"
        if parent.parent is not None:
            return parent.block_ids[-1], node.tokens[0]
        return next(name for name, root in self._roots.items() if root is parent), node.tokens[0]
