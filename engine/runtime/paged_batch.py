"""A step as a GPU's kernels take it: flat rows, block tables and lengths, in as few copies to the device as possible.

The order is that of ``engine.runtime.batch``: rows of one token first (decode, padding, tiny chunks), then the longer
chunks. Unlike there, no list of slots per context is made: the kernels look blocks up themselves. All numbers of a
step travel in two buffers, one of 64 and one of 32 bits, because on a short step each further copy costs as much as a
kernel. Invariant: a padding row has slot -1 and is written nowhere; a row that is not there has context 0 and gives
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.runtime.batch import BatchChunk

NOWHERE = -1  # the slot of a row whose key and value are not stored


@dataclass(frozen=True)
class HostBatch:
    """One step's numbers before they travel. Rows [0, n) are single tokens, the rest belong to C longer chunks."""

    token_ids: list[int]  # [T]
    positions: list[int]  # [T]
    slots: list[int]  # [T]
    logit_rows: list[int]  # [R], in the order of the step's chunks
    tables: list[list[int]]  # [n + C], the blocks of each row's or chunk's context
    contexts: list[int]  # [n + C], tokens each row or chunk sees at its end
    query_starts: list[int]  # [C + 1], counted from row n
    longest_chunk: int  # tokens of the longest of the C chunks, 0 if there is none

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_single(self) -> int:
        return len(self.tables) - len(self.query_starts) + 1

    @property
    def is_decode(self) -> bool:
        """Whether every row is a single token: the steps that a graph can hold."""
        return self.longest_chunk == 0

    @property
    def table_width(self) -> int:
        """Blocks of the longest context."""
        return max(map(len, self.tables), default=0)


@dataclass(frozen=True)
class PagedBatch:
    """The same numbers on the device."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64
    logit_rows: torch.Tensor  # [R] int64
    tables: torch.Tensor  # [n + C, W] int32
    contexts: torch.Tensor  # [n + C] int32
    query_starts: torch.Tensor  # [C + 1] int32
    longest_chunk: int

    @property
    def num_single(self) -> int:
        return self.tables.shape[0] - self.query_starts.shape[0] + 1


def host_batch(chunks: Sequence[BatchChunk], block_size: int) -> HostBatch:
    """The step's numbers. Pure."""
    single = [i for i, chunk in enumerate(chunks) if chunk.num_tokens == 1]
    longer = [i for i, chunk in enumerate(chunks) if chunk.num_tokens > 1]
    found = HostBatch([], [], [], [], [], [], [0], max((chunks[i].num_tokens for i in longer), default=0))
    last_row: dict[int, int] = {}
    for index in single + longer:
        chunk = chunks[index]
        end = chunk.start + chunk.num_tokens
        found.token_ids.extend(chunk.request.token_ids[chunk.start : end])
        found.positions.extend(range(chunk.start, end))
        found.slots.extend(_slots(chunk, block_size))
        found.tables.append(chunk.block_ids[: -(-end // block_size)])
        found.contexts.append(end)
        last_row[index] = len(found.token_ids) - 1
        if chunk.num_tokens > 1:
            found.query_starts.append(len(found.token_ids) - len(single))
    found.logit_rows.extend(last_row[index] for index, chunk in enumerate(chunks) if chunk.samples)
    return found


def _slots(chunk: BatchChunk, block_size: int) -> list[int]:
    if chunk.phase == "padding":
        return [NOWHERE] * chunk.num_tokens
    table, positions = chunk.block_ids, range(chunk.start, chunk.start + chunk.num_tokens)
    return [table[p // block_size] * block_size + p % block_size for p in positions]


def to_device(batch: HostBatch, device: torch.device) -> PagedBatch:
    """Effect: two copies to the device, which do not wait for it."""
    width = batch.table_width
    longs = batch.token_ids + batch.positions + batch.slots + batch.logit_rows
    ints = [block for table in batch.tables for block in table + [0] * (width - len(table))]  # the rest is never read
    ints += batch.contexts + batch.query_starts
    token_ids, positions, slots, logit_rows = _sent(longs, torch.int64, device).split(
        [batch.num_rows] * 3 + [len(batch.logit_rows)]
    )
    num_tables = len(batch.tables)
    tables, contexts, starts = _sent(ints, torch.int32, device).split(
        [num_tables * width, num_tables, len(batch.query_starts)]
    )
    tables = tables.view(num_tables, width)
    return PagedBatch(token_ids, positions, slots, logit_rows, tables, contexts, starts, batch.longest_chunk)


def _sent(values: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
