"""Small random models and a way to run token ids through ours, chunk by chunk, with no scheduler in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.model.decoder import Decoder
from engine.model.load import decoder_from
from engine.model.spec import ModelSpec, RopeSpec, spec_from_config
from engine.model.weights import MemoryTensors, expected_shapes
from engine.runtime.attention import PagedAttention
from engine.runtime.batch import CacheLayout, build_batch
from engine.runtime.kv_cache import KVCache
from engine.runtime.kv_cache_quant import QuantizedKVCache
from engine.runtime.kv_quant import KVFormat
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request


def small_spec(**changes) -> ModelSpec:
    """Two layers, head_dim 12 (not hidden / heads), 4 query heads on 2 KV heads."""
    values = {
        "architecture": "LlamaForCausalLM",
        "num_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 12,
        "vocab_size": 256,
        "max_positions": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeSpec(),
    }
    return ModelSpec(**{**values, **changes})


def random_tensors(spec: ModelSpec, seed: int = 0) -> MemoryTensors:
    generator = torch.Generator().manual_seed(seed)
    return MemoryTensors(
        {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in expected_shapes(spec).items()}
    )


def hugging_face_pair(config) -> tuple[torch.nn.Module, Decoder]:
    """A randomly initialised transformers model of this config and our decoder with the same weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            scale = 0.3 if parameter.dim() > 1 else 0.1
            parameter.copy_(torch.randn_like(parameter) * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    raw = {**config.to_dict(), "architectures": [type(theirs).__name__]}
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    return theirs, decoder_from(spec_from_config(raw), MemoryTensors(state))


def poison(cache: QuantizedKVCache) -> QuantizedKVCache:
    """Effect: what is read from the pool without having been written is NaN."""
    for stored in (cache.keys.stored, cache.values.stored):
        end = (
            stored.scale.shape[1] // (cache.num_blocks + 2) * cache.num_blocks
        )  # slots or blocks, without the last two
        stored.codes[:, :end] = 77
        stored.scale[:, :end] = float("nan")
    return cache


class Rig:
    """A decoder with a paged cache of its own. ``fill`` is what every slot holds before it is written."""

    def __init__(
        self,
        decoder: Decoder,
        num_blocks: int = 64,
        block_size: int = 4,
        fill: float = float("nan"),
        kv_format: KVFormat | None = None,
    ) -> None:
        self.decoder = decoder
        self.block_size = block_size
        shape = (decoder.spec, num_blocks, block_size, decoder.dtype, decoder.device)
        if kv_format is None:
            self.cache = KVCache(*shape)
            self.cache.slots[:, : self.cache.zero_slot] = fill
        else:
            self.cache = poison(QuantizedKVCache(*shape, kv_format, max_requests=8))
        self.layout = CacheLayout(block_size, self.cache.zero_slot, self.cache.trash_slot)
        self._next_block = num_blocks - 1  # handed out downwards and interleaved, so tables are never 0, 1, 2, ...

    def request(self, token_ids: Sequence[int], request_id: str = "r") -> Request:
        """A request whose blocks cover all its tokens."""
        request = Request(request_id, list(token_ids), max_tokens=8)
        for _ in range(-(-len(token_ids) // self.block_size)):
            request.block_ids.append(self._next_block)
            self._next_block -= 1
        return request

    def chunk(self, request: Request, start: int, num_tokens: int, phase="prefill", samples=True) -> Chunk:
        return Chunk(request, start, num_tokens, phase, request.block_ids, samples)

    def run(self, *chunks: Chunk) -> torch.Tensor:
        """One step. Logits [R, V] of the chunks that sample."""
        batch = build_batch(chunks, self.layout, self.decoder.dtype, self.decoder.device)
        self.cache.begin_step(chunks, batch.slots)
        attend = PagedAttention(self.cache, batch)
        return self.decoder.forward(batch.token_ids, batch.positions, batch.logit_rows, attend)

    def last_logits(self, token_ids: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """Logits [V] after the last token, computed in chunks of these sizes (the last size repeats)."""
        request, start, logits = self.request(token_ids), 0, torch.empty(0)
        sizes = list(sizes)
        while start < len(token_ids):
            size = min(sizes.pop(0) if len(sizes) > 1 else sizes[0], len(token_ids) - start)
            logits = self.run(self.chunk(request, start, size))
            start += size
        return logits[0]
