"""The executor: runs a step's chunks through the decoder and samples. It decides nothing and schedules nothing.

``prepare`` turns chunks into tensors, ``forward`` gives logits of the rows that sample, ``sample`` gives their tokens,
``work`` counts what the step had to do. The KV tensors live here; one executor belongs to one engine, while the
loaded model may be shared by several.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.lab.records import Backend, Work
from engine.lab.scenario import Limits, ScenarioError
from engine.lab.work import ChunkShape, step_work
from engine.model.load import LoadedModel
from engine.runtime.attention import PagedAttention
from engine.runtime.batch import CacheLayout, ForwardBatch, build_batch
from engine.runtime.kv_cache import KVCache
from engine.runtime.kv_cache_quant import QuantizedKVCache
from engine.runtime.kv_quant import KV_BITS, kv_format
from engine.runtime.sampling import SamplingParams, sample, seed_of
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request


class TorchExecutor:
    """Runs steps eagerly in torch. ``backend`` goes into every step's record."""

    backend: Backend = "eager"
    warm_up_tokens: tuple[int, ...] = (1, 32)  # a decode row and a small prefill chunk

    def __init__(
        self,
        loaded: LoadedModel,
        limits: Limits,
        block_size: int = 16,
        kv_dtype: str | None = None,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        """``kv_dtype``: None or the model's own dtype, int8, int4.

        Raises: ScenarioError for a KV dtype or a number of blocks that cannot be had here.
        """
        decoder = loaded.decoder
        assert device is None or torch.device(device).type == decoder.device.type, "the model was loaded elsewhere"
        self.loaded = loaded
        self.seed = seed
        self.cache = make_cache(loaded, limits, block_size, kv_dtype)
        self.layout = CacheLayout(block_size, self.cache.zero_slot, self.cache.trash_slot)
        self.weight_bytes_per_element = loaded.weight_bytes_per_element
        self.kv_bytes_per_element = self.cache.bytes_per_element

    def prepare(self, chunks: Sequence[Chunk]) -> ForwardBatch:
        """The step as tensors on the device. Effect: a quantized cache settles which blocks fill up in it."""
        batch = build_batch(chunks, self.layout, self.loaded.decoder.dtype, self.loaded.decoder.device)
        self.cache.begin_step(chunks, batch.slots)
        return batch

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [R, V] float32 of the rows that sample. Effect: writes the step's keys and values."""
        attend = PagedAttention(self.cache, batch)
        logits = self.loaded.decoder.forward(batch.token_ids, batch.positions, batch.logit_rows, attend)
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)  # so that the record's time is the device's time
        return logits

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> list[int]:
        """One token for each chunk that samples, in order. Pure."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        indices = [chunk.start + chunk.num_tokens - chunk.request.num_prompt_tokens for chunk in sampling]
        return sample(logits, [self._params(chunk.request) for chunk in sampling], indices)

    def work(self, chunks: Sequence[Chunk]) -> Work:
        """What the step has to compute and move, from its shapes alone. Pure."""
        shapes = [ChunkShape(c.start, c.num_tokens, c.phase, c.samples) for c in chunks]
        return step_work(self.loaded.info, shapes, self.weight_bytes_per_element, self.kv_bytes_per_element)

    def release(self, request_id: str) -> None:
        """Nothing to forget: noise follows from seed and position, and blocks belong to the pool."""

    def warm_up(self) -> None:
        """Before a run: each kind of row once, so that its first step pays for no lazy initialisation.

        Effect: writes the trash slot only; what an earlier run left half done is forgotten.
        """
        self.cache.begin_run()
        for num_tokens in self.warm_up_tokens:
            request = Request("warm-up", [0] * num_tokens, max_tokens=1)
            block_ids = [0] * -(-num_tokens // self.layout.block_size)
            chunk = Chunk(request, 0, num_tokens, "padding", block_ids, samples=True)
            logits = self.forward(self.prepare([chunk]))
            self.sample(logits, [chunk])

    def _params(self, request: Request) -> SamplingParams:
        seed = seed_of(self.seed, request.request_id) if request.seed is None else request.seed
        return SamplingParams(request.temperature, request.top_p, request.top_k, seed)


def make_cache(
    loaded: LoadedModel, limits: Limits, block_size: int, kv_dtype: str | None
) -> KVCache | QuantizedKVCache:
    """The KV tensors of an executor. Raises: ScenarioError for a dtype or a number of blocks that cannot be had."""
    spec, dtype, device = loaded.spec, loaded.decoder.dtype, loaded.decoder.device
    if kv_dtype in (None, loaded.dtype):
        return KVCache(spec, limits.num_blocks, block_size, dtype, device)
    if kv_dtype not in KV_BITS:
        raise ScenarioError(
            f"kv_dtype is {kv_dtype!r}; allowed: null (keys and values in the model's own dtype), {', '.join(KV_BITS)}",
            "kv_dtype",
        )
    return QuantizedKVCache(
        spec, limits.num_blocks, block_size, dtype, device, kv_format(kv_dtype), limits.max_requests
    )
