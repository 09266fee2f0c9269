"""From a step's chunks to flat tensors: token ids, positions, slots, who attends to what, which rows sample.

It is a pure function of the chunks; nothing is scheduled or stored here. All tokens of a step lie in one flat row
order, T in all: chunks of one token first (decode, padding, tiny prefill chunks), grouped by similar context length so
that they attend together, then each longer chunk on its own. Follows the flat batches of vLLM and nano-vllm.
Invariant: the slot of position p is block_ids[p // B] * B + p % B, except that padding rows write to the trash slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

SMALLEST_GROUP_BLOCKS = 8  # contexts up to this many blocks attend in one group: splitting costs more than it saves


class BatchRequest(Protocol):
    """What a chunk's request must offer: its prompt and output ids in one list."""

    token_ids: list[int]


class BatchChunk(Protocol):
    """What the batch reads of a chunk (``engine.scheduling.decision.Chunk`` has it)."""

    request: BatchRequest
    start: int
    num_tokens: int
    phase: str
    block_ids: list[int]
    samples: bool


@dataclass(frozen=True)
class CacheLayout:
    """Where slots are: block size and the two slots outside the pool (``KVCache`` has the same names)."""

    block_size: int
    zero_slot: int
    trash_slot: int


@dataclass(frozen=True)
class DecodeGroup:
    """Rows [start, end) of the batch, one token each, that attend together over contexts of similar length.

    ``context_slots`` [R, S]: the slots of each row's context, the zero slot beyond its end.
    ``mask`` [R, 1, 1, S]: 0 where the context is, -inf beyond it; None when all contexts have length S.
    """

    start: int
    end: int
    context_slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class PrefillChunk:
    """Rows [start, end) of the batch: consecutive positions of one request, attending over [0, S).

    ``context_slots`` [S]; ``mask`` [end - start, S] is causal at the bottom right; None when the chunk begins at
    position 0, where queries and keys are the same positions and the plain causal rule holds.
    """

    start: int
    end: int
    context_slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input. ``logit_rows`` are the rows to sample from, in the order of the chunks."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64, where each token's key and value go
    logit_rows: torch.Tensor  # [R] int64
    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]


def build_batch(
    chunks: Sequence[BatchChunk], layout: CacheLayout, dtype: torch.dtype, device: torch.device
) -> ForwardBatch:
    """The batch of a step. ``dtype`` is that of the masks. Pure."""
    order = _row_order(chunks, layout.block_size)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    last_row: dict[int, int] = {}
    prefill_chunks: list[PrefillChunk] = []
    for index in order:
        chunk, first_row = chunks[index], len(token_ids)
        end = chunk.start + chunk.num_tokens
        token_ids += chunk.request.token_ids[chunk.start : end]
        positions += range(chunk.start, end)
        slots += _slots(chunk, layout)
        last_row[index] = len(token_ids) - 1
        assert len(token_ids) == first_row + chunk.num_tokens, "a chunk lies within its request's tokens"
        if chunk.num_tokens > 1:
            prefill_chunks.append(_prefill_chunk(chunk, first_row, layout, dtype, device))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return ForwardBatch(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        slots=tensor(slots),
        logit_rows=tensor([last_row[index] for index, chunk in enumerate(chunks) if chunk.samples]),
        decode_groups=_decode_groups([chunks[i] for i in order if chunks[i].num_tokens == 1], layout, dtype, device),
        prefill_chunks=tuple(prefill_chunks),
    )


def _row_order(chunks: Sequence[BatchChunk], block_size: int) -> list[int]:
    """Indices of the chunks in row order: single tokens by context class, then the longer ones as they came."""
    single = [i for i, chunk in enumerate(chunks) if chunk.num_tokens == 1]
    single.sort(key=lambda i: _context_class(chunks[i], block_size))  # stable: within a class as they came
    return single + [i for i, chunk in enumerate(chunks) if chunk.num_tokens > 1]


def _context_class(chunk: BatchChunk, block_size: int) -> int:
    """Contexts of one class differ by less than a factor of two in blocks, so at most half a group is filling."""
    num_blocks = -(-(chunk.start + 1) // block_size)
    return (max(num_blocks, SMALLEST_GROUP_BLOCKS) - 1).bit_length()


def _slots(chunk: BatchChunk, layout: CacheLayout) -> list[int]:
    if chunk.phase == "padding":
        return [layout.trash_slot] * chunk.num_tokens
    size, table = layout.block_size, chunk.block_ids
    return [table[p // size] * size + p % size for p in range(chunk.start, chunk.start + chunk.num_tokens)]


def _decode_groups(
    chunks: list[BatchChunk], layout: CacheLayout, dtype: torch.dtype, device: torch.device
) -> tuple[DecodeGroup, ...]:
    groups: list[DecodeGroup] = []
    first = 0
    while first < len(chunks):
        kind = _context_class(chunks[first], layout.block_size)
        end = first + 1
        while end < len(chunks) and _context_class(chunks[end], layout.block_size) == kind:
            end += 1
        slots, mask = decode_context(
            [chunk.block_ids for chunk in chunks[first:end]],
            [chunk.start + 1 for chunk in chunks[first:end]],
            layout,
            dtype,
        )
        moved = None if mask is None else mask.to(device)
        groups.append(DecodeGroup(first, end, slots.to(device), moved))
        first = end
    return tuple(groups)


def decode_context(
    tables: list[list[int]], context_lens: list[int], layout: CacheLayout, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(context_slots [R, S], mask [R, 1, 1, S] or None) of rows with these block tables and context lengths. Pure.

    A row without context attends to the zero slot alone, which gives zeros: no row is ever masked as a whole.
    """
    size, longest = layout.block_size, max(max(context_lens), 1)
    num_blocks = -(-longest // size)
    zero_block = [0] * num_blocks  # any block: masked out below
    table = torch.tensor([(blocks + zero_block)[:num_blocks] for blocks in tables], dtype=torch.int64)
    slots = (table[:, :, None] * size + torch.arange(size)).flatten(1)[:, :longest]  # [R, S]
    if all(length == longest for length in context_lens):
        return slots, None
    lengths = torch.tensor(context_lens, dtype=torch.int64)[:, None]
    position = torch.arange(longest)
    slots = torch.where(position < lengths, slots, layout.zero_slot)
    mask = torch.zeros(slots.shape, dtype=dtype).masked_fill_(position >= lengths.clamp(min=1), float("-inf"))
    return slots, mask[:, None, None, :]


def _prefill_chunk(
    chunk: BatchChunk, first_row: int, layout: CacheLayout, dtype: torch.dtype, device: torch.device
) -> PrefillChunk:
    end = chunk.start + chunk.num_tokens
    num_blocks = -(-end // layout.block_size)
    table = torch.tensor(chunk.block_ids[:num_blocks], dtype=torch.int64)
    slots = (table[:, None] * layout.block_size + torch.arange(layout.block_size)).flatten()[:end]
    mask = None if chunk.start == 0 else bottom_right_mask(chunk.num_tokens, end, dtype).to(device)
    return PrefillChunk(first_row, first_row + chunk.num_tokens, slots.to(device), mask)


def bottom_right_mask(num_queries: int, num_keys: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_queries, num_keys]: 0 where a query may look, -inf elsewhere; the last query sees every key. Pure."""
    allowed = torch.ones((num_queries, num_keys), dtype=torch.bool).tril(num_keys - num_queries)
    return torch.zeros((num_queries, num_keys), dtype=dtype).masked_fill_(~allowed, float("-inf"))
