"""The executor of a CPU: a whole step is one call into the C++ kernels, over the same paged cache as torch's.

It differs from ``TorchExecutor`` in how a step runs, never in what it means: same cache layout, same sampling, same
greedy tokens within rounding. No tensor is built per step: the logits of one step lie where those of the last did.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.lab.records import Backend
from engine.lab.scenario import Limits
from engine.model.load import LoadedModel
from engine.model.ops_cpp import CppOps
from engine.runtime.executor import TorchExecutor
from engine.runtime.paged_batch import HostBatch, host_batch
from engine.runtime.sampling import is_greedy, sample
from engine.scheduling.decision import Chunk
from kernels.cpu.decoder import CacheView
from kernels.cpu.library import RowChunk
from kernels.cpu.pack import advise_huge_pages


class CppExecutor(TorchExecutor):
    """Runs steps with the C++ kernels. The model was loaded with ``CppOps`` and can be compiled."""

    backend: Backend = "compiled"
    warm_up_tokens = (1, 2)  # nothing is chosen or compiled at the first call: weights and buffers are touched, no more

    def __init__(self, loaded: LoadedModel, limits: Limits, block_size: int = 16, *, seed: int = 0) -> None:
        """Raises: ScenarioError for a number of blocks that cannot be had here."""
        super().__init__(loaded, limits, block_size, seed=seed)
        ops = loaded.decoder.ops
        assert isinstance(ops, CppOps), "the model was loaded for other kernels"
        self._decoder = ops.compiled(loaded.decoder)
        slots = self.cache.slots  # [L, slots, 2, Hk, D]
        advise_huge_pages(slots)
        self._view = CacheView(list(slots[:, :, 0]), list(slots[:, :, 1]), block_size)

    def prepare(self, chunks: Sequence[Chunk]) -> HostBatch:
        """The step's numbers. Pure."""
        return host_batch(chunks, self.layout.block_size)

    def forward(self, batch: HostBatch) -> torch.Tensor:
        """Logits [R, V] float32 of the rows that sample, good until the model's next step.

        Effect: writes the step's keys and values.
        """
        return self._decoder.forward(
            batch.token_ids, batch.positions, batch.slots, row_chunks(batch), batch.logit_rows, self._view
        )

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> list[int]:
        """One token for each chunk that samples, in order. Pure.

        Greedy rows stay with the kernels: torch would wake threads of its own, which then spin on the kernels' cores.
        """
        sampling = [chunk for chunk in chunks if chunk.samples]
        if all(is_greedy(chunk.request.temperature, chunk.request.top_k) for chunk in sampling):
            return self._decoder.library.argmax(logits)
        params = [self._params(chunk.request) for chunk in sampling]
        indices = [chunk.start + chunk.num_tokens - chunk.request.num_prompt_tokens for chunk in sampling]
        return sample(logits, params, indices)


def row_chunks(batch: HostBatch) -> list[RowChunk]:
    """Which rows belong to which context. Pure."""
    n = batch.num_single
    chunks = [RowChunk(row, 1, batch.contexts[row], batch.tables[row]) for row in range(n)]
    for index, first in enumerate(batch.query_starts[:-1]):
        num_rows = batch.query_starts[index + 1] - first
        chunks.append(RowChunk(n + first, num_rows, batch.contexts[n + index], batch.tables[n + index]))
    return chunks
