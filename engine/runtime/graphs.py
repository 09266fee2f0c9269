"""Decode steps as CUDA graphs: the launches of a whole forward pass recorded once, replayed with one call.

A decode step of a small model is some 200 kernels of a few microseconds; launched one by one from Python they take
longer than they run. A graph has fixed shapes and addresses, so there is one per *bucket* of batch size, with input
buffers of its own: a step copies its rows in, fills the rest with padding, and replays the smallest bucket that holds
it. Padding rows have slot -1 and context 0: they write nowhere and attend to nothing. They may not point at a real
slot: a row that "does not count" would overwrite some request's keys. Invariant: a replay reads nothing but the
bucket's buffers, which for this step hold this step's numbers. Follows the graph runner of nano-vllm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from engine.runtime.paged_batch import NOWHERE, HostBatch, PagedBatch

SMALL_BUCKETS = (1, 2, 4, 8)
BUCKET_STEP = 16  # beyond 8 rows: a padding row costs little beside 16 real ones

Forward = Callable[[PagedBatch], torch.Tensor]  # -> logits [rows, V]


class Recorder(Protocol):
    """Records what a function launches. ``CudaRecorder`` does; a test may bring one that only calls again."""

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """(the tensor that each replay overwrites, the replay). Effect: runs the function at least once."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiling, choosing algorithms and allocating must not happen while recording
            function()
            function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = function()
        return out, graph.replay


class DecodeGraphs:
    """Graphs for decode steps of up to ``max_rows`` rows with contexts of up to ``table_width`` blocks."""

    def __init__(
        self, forward: Forward, recorder: Recorder, max_rows: int, table_width: int, device: torch.device
    ) -> None:
        """Pure: recording begins with ``record_all`` or the first step of a bucket."""
        self.sizes = bucket_sizes(max_rows)
        self._forward = forward
        self._recorder = recorder
        self._device = device
        self._table_width = table_width
        self._buckets: dict[int, _Bucket] = {}

    def holds(self, batch: HostBatch) -> bool:
        """Whether the step is single tokens only and no larger than the largest bucket. Pure."""
        return batch.is_decode and batch.num_rows <= self.sizes[-1] and batch.table_width <= self._table_width

    def record_all(self) -> None:
        """Effect: records every bucket that is not there yet, the largest first, so that the others fit its memory."""
        for size in reversed(self.sizes):
            self._bucket(size)

    def run(self, batch: HostBatch) -> torch.Tensor:
        """Logits [R, V] of the rows that sample; overwritten by the next call. Effect: that of the forward pass."""
        assert self.holds(batch), "a step that no graph holds runs without one"
        bucket = self._bucket(next(size for size in self.sizes if size >= batch.num_rows))
        return bucket.run(batch)

    def _bucket(self, size: int) -> _Bucket:
        if size not in self._buckets:
            self._buckets[size] = _Bucket(size, self._table_width, self._forward, self._recorder, self._device)
        return self._buckets[size]


class _Bucket:
    """One graph with its input buffers on the device, and their copies on the host from which they are filled."""

    def __init__(self, size: int, width: int, forward: Forward, recorder: Recorder, device: torch.device) -> None:
        """Effect: records. The recording runs on padding rows alone, which change nothing."""
        self.size, self._width = size, width
        self._host_longs = torch.zeros((4, size), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host_ints = torch.zeros((size, width + 1), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._tables: list[list[int]] = [[] for _ in range(size)]  # what each row of the host's table holds
        self._host_longs[2] = NOWHERE
        self._longs = self._host_longs.to(device)
        self._ints = self._host_ints.to(device)
        step = PagedBatch(
            token_ids=self._longs[0],
            positions=self._longs[1],
            slots=self._longs[2],
            logit_rows=torch.arange(size, device=device),
            tables=self._ints.flatten()[: size * width].view(size, width),
            contexts=self._ints.flatten()[size * width :],
            query_starts=torch.zeros(1, dtype=torch.int32, device=device),
            longest_chunk=0,
        )
        self._logits, self._replay = recorder(lambda: forward(step))

    def run(self, batch: HostBatch) -> torch.Tensor:
        """Logits [R, V] of the rows that sample. Effect: fills the buffers, replays."""
        n, missing = batch.num_rows, [0] * (self.size - batch.num_rows)
        rows = batch.logit_rows
        self._host_longs[:3] = torch.tensor(
            [batch.token_ids + missing, batch.positions + missing, batch.slots + [NOWHERE] * len(missing)]
        )
        self._host_longs[3, : len(rows)] = torch.tensor(rows, dtype=torch.int64)
        tables, contexts = self._host_ints.flatten()[: self.size * self._width], self._host_ints.flatten()[-self.size :]
        contexts[:] = torch.tensor(batch.contexts + missing)
        for row, table in enumerate(batch.tables):
            if table != self._tables[row]:  # a request that stays in its row brings a new block every 16th step
                tables[row * self._width : row * self._width + len(table)] = torch.tensor(table)
                self._tables[row] = list(table)
        self._longs.copy_(self._host_longs, non_blocking=True)
        self._ints.copy_(self._host_ints, non_blocking=True)
        self._replay()
        return self._logits[:n] if rows == list(range(n)) else self._logits.index_select(0, self._longs[3, : len(rows)])


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 32, 48 ... and the largest batch itself. Pure."""
    steps = (*SMALL_BUCKETS, *range(BUCKET_STEP, max_rows + BUCKET_STEP, BUCKET_STEP))
    return tuple(sorted({min(size, max_rows) for size in steps}))
