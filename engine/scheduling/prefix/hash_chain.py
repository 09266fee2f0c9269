"""Prefix cache as a chain of hashes: one flat table, one look-up per block.

The key of a block is a hash of its tokens and of the key before it, so equal keys should mean equal prefixes. They need
not: a hit is believed only when the tokens are the same and the block before it is the one just matched. A collision
thus costs a miss, never somebody else's keys and values, and the hash need not be cryptographic. Follows vLLM's block
hashes and nano-vllm, which verifies; compare ``radix.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.scheduling.blocks import BlockPool
from engine.scheduling.prefix.base import BlockTokens, Origin, PrefixCache
from engine.scheduling.requests import Request

HashBlock = Callable[[object, BlockTokens], int]  # (key of the block before, or the namespace; tokens) -> key


def chain_hash(before: object, tokens: BlockTokens) -> int:
    return hash((before, tokens))


@dataclass(frozen=True, slots=True)
class _Entry:
    key: int
    block_id: int
    origin: Origin
    tokens: BlockTokens


class HashChain(PrefixCache):
    """``hash_block`` may be any function: a worse one finds less."""

    def __init__(self, pool: BlockPool, namespace: str = "", hash_block: HashBlock = chain_hash) -> None:
        super().__init__(pool, namespace)
        self._hash_block = hash_block
        self._by_key: dict[int, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}

    def match(self, token_ids: Sequence[int]) -> list[int]:
        hit: list[int] = []
        before: object = self.namespace
        origin: Origin = self.namespace
        for index in range(self._num_matchable(token_ids)):
            tokens = self._tokens(token_ids, index)
            before = self._hash_block(before, tokens)
            entry = self._by_key.get(before)
            if entry is None or entry.tokens != tokens or entry.origin != origin:
                break
            origin = entry.block_id
            hit.append(origin)
        return hit

    def _insert(self, request: Request, index: int) -> bool:
        tokens = self._tokens(request.token_ids, index)
        origin: Origin = request.block_ids[index - 1] if index else self.namespace
        key = self._hash_block(self._by_block[origin].key if index else origin, tokens)
        if key in self._by_key:  # the same content, or a collision: in both cases the older entry stays
            return False
        block_id = request.block_ids[index]
        self._by_key[key] = self._by_block[block_id] = _Entry(key, block_id, origin, tokens)
        return True

    def forget(self, block_id: int) -> None:
        del self._by_key[self._by_block.pop(block_id).key]

    def content(self, block_id: int) -> tuple[Origin, BlockTokens]:
        entry = self._by_block[block_id]
        assert self._by_key[entry.key] is entry, f"block {block_id} cannot be found by its key"
        return entry.origin, entry.tokens
