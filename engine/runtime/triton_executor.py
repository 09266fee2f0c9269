"""The executor of a GPU: Triton kernels over the paged cache, decode steps in CUDA graphs, sampling on the device.

It differs from ``TorchExecutor`` in how a step runs, never in what it means: same cache, same batch order, same
greedy tokens within rounding. Sampled tokens differ from torch's, because the noise is another generator's; they
follow from the same seed and position, so they do not depend on batch, bucket or preemption. A step is replayed from
a graph when it is single tokens only; any other runs eagerly. ``backend`` says which it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.lab.records import Backend
from engine.lab.scenario import Limits
from engine.model.load import LoadedModel
from engine.runtime.executor import TorchExecutor
from engine.runtime.graphs import DecodeGraphs, Recorder
from engine.runtime.paged_batch import HostBatch, PagedBatch, host_batch, to_device
from engine.runtime.sampling import noise_seed, scores_of
from engine.runtime.triton_attention import TritonAttention, num_processors
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from kernels import triton as kernels

PREFILL_TILE_ROWS = (16, 32, 64, 640)  # (query, head) rows, one number for each tile that the prefill kernel has


class TritonExecutor(TorchExecutor):
    """Runs steps with Triton kernels. ``recorder`` None: without graphs."""

    def __init__(
        self, loaded: LoadedModel, limits: Limits, block_size: int = 16, *, seed: int = 0, recorder: Recorder | None
    ) -> None:
        """Raises: ScenarioError for a number of blocks that cannot be had here."""
        super().__init__(loaded, limits, block_size, seed=seed)
        self.backend: Backend = "eager"
        device, cache = loaded.decoder.device, self.cache
        width = min(-(-loaded.max_positions // block_size), limits.num_blocks)  # blocks of the longest context
        processors = num_processors(device)

        # Not a method: graphs that held this executor would keep its cache until Python looks for cycles.
        def compute(batch: PagedBatch) -> torch.Tensor:
            attend = TritonAttention(cache, batch, width * block_size, processors)
            return loaded.decoder.forward(batch.token_ids, batch.positions, batch.logit_rows, attend)

        self._compute = compute
        self._graphs = None
        if recorder is not None:
            rows = min(limits.max_requests, limits.max_batch_tokens)
            self._graphs = DecodeGraphs(compute, recorder, rows, width, device)

    def prepare(self, chunks: Sequence[Chunk]) -> HostBatch:
        """The step's numbers, still on the host: a graph has its own place for them. Pure."""
        return host_batch(chunks, self.layout.block_size)

    def forward(self, batch: HostBatch) -> torch.Tensor:
        """Logits [R, V] float32 of the rows that sample, valid until the next step.

        Effect: writes the step's keys and values; sets ``backend`` to how the step ran.
        """
        device = self.loaded.decoder.device
        if self._graphs is not None and self._graphs.holds(batch):
            self.backend = "graph"
            logits = self._graphs.run(batch)
        else:
            self.backend = "eager"
            logits = self._compute(to_device(batch, device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # so that the record's time is the device's time
        return logits

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> list[int]:
        """One token for each chunk that samples, in order. Pure."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        if not sampling:
            return []
        params = [self._params(chunk.request) for chunk in sampling]
        indices = [chunk.start + chunk.num_tokens - chunk.request.num_prompt_tokens for chunk in sampling]
        temperatures = [0.0 if request.is_greedy else request.temperature for request in params]
        seeds = [noise_seed(request.seed, index) for request, index in zip(params, indices, strict=True)]
        narrowed = [row for row, request in enumerate(params) if not request.is_greedy and request.narrows]
        if narrowed:
            logits = logits.clone()
            for row in narrowed:
                logits[row] = scores_of(logits[row], params[row])
                temperatures[row] = 1.0
        device = logits.device
        token_ids = kernels.sample(
            logits, torch.tensor(temperatures).to(device), torch.tensor(seeds, dtype=torch.int64).to(device)
        )
        return token_ids.tolist()

    def warm_up(self) -> None:
        """Compile every kernel that a run may need and record the graphs.

        Effect: writes no slot. The first time takes up to a minute; compiled kernels are kept on disk by Triton.
        """
        super().warm_up()
        group = self.loaded.spec.group_size
        for rows in PREFILL_TILE_ROWS:  # each size of tile is a kernel of its own
            self._compute(to_device(self._padding_chunk(max(2, rows // group)), self.loaded.decoder.device))
        if self._graphs is not None:
            self._graphs.record_all()

    def _padding_chunk(self, num_tokens: int) -> HostBatch:
        """A chunk that is written nowhere and reads block 0, whatever that holds."""
        blocks = [0] * -(-num_tokens // self.layout.block_size)
        chunk = Chunk(
            Request("warm-up", [0] * num_tokens, max_tokens=1), 0, num_tokens, "padding", blocks, samples=True
        )
        return host_batch([chunk], self.layout.block_size)
