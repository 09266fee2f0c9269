"""What every prefix cache promises: find the longest published prefix of some tokens, and publish what is committed.

A prefix cache is an index over the block pool: it knows which published block holds which tokens behind which other
block. It owns no block, frees none and chooses none to evict; the pool does, least recently used first. The invariant
of both kinds: a request publishes only behind its own published blocks, so whoever uses a block uses all before it, and
eviction in the pool's order takes the end of a prefix before its beginning. After the prefix cache of vLLM V1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.scheduling.blocks import BlockPool
from engine.scheduling.requests import Request

BlockTokens = tuple[int, ...]  # the token ids of one full block
Origin = int | str  # what a block stands behind: the block before it, or for the first one the namespace


class PrefixCache(ABC):
    """``namespace`` says whose keys and values the blocks hold (model and KV dtype): another's are never found."""

    def __init__(self, pool: BlockPool, namespace: str = "") -> None:
        """Effect: the pool reports evictions to this cache from now on."""
        self.pool = pool
        self.namespace = namespace
        pool.on_evict = self.forget

    @abstractmethod
    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The published blocks, in order, that hold the longest prefix of ``token_ids``; each verified. Pure.

        The last token is never part of a hit: there is always one left to compute, whose logits are needed.
        """

    def publish(self, request: Request) -> None:
        """Make findable what the request has filled and committed. Effect: the pool's published blocks grow.

        Where another block with the same content is known already, the request keeps its own to itself, and what
        follows it too: tables are append-only, and to publish behind a block one must hold it.
        """
        num_full = request.num_computed_tokens // self.pool.block_size
        while request.num_published_blocks < num_full:
            if not self._insert(request, request.num_published_blocks):
                return
            self.pool.publish(request, request.num_published_blocks)
            request.num_published_blocks += 1

    @abstractmethod
    def _insert(self, request: Request, index: int) -> bool:
        """Index the request's block ``index``; all before it are. False, and no effect, if the content is known."""

    @abstractmethod
    def forget(self, block_id: int) -> None:
        """A block is about to be evicted. Effect: it is found no more."""

    @abstractmethod
    def content(self, block_id: int) -> tuple[Origin, BlockTokens]:
        """What a published block stands behind and which tokens it holds. Pure. For checks. Raises: KeyError."""

    def _tokens(self, token_ids: Sequence[int], index: int) -> BlockTokens:
        size = self.pool.block_size
        return tuple(token_ids[index * size : (index + 1) * size])

    def _num_matchable(self, token_ids: Sequence[int]) -> int:
        return (len(token_ids) - 1) // self.pool.block_size


class NoPrefixCache(PrefixCache):
    """Finds nothing and publishes nothing: every prompt is computed from its first token."""

    def match(self, token_ids: Sequence[int]) -> list[int]:
        return []

    def publish(self, request: Request) -> None:
        pass

    def _insert(self, request: Request, index: int) -> bool:
        return False

    def forget(self, block_id: int) -> None:
        pass

    def content(self, block_id: int) -> tuple[Origin, BlockTokens]:
        raise KeyError(block_id)
