"""Attention over the paged cache, in torch: store the step's keys and values, gather each context, attend.

This is the seam between the decoder and the cache layout: the decoder hands in queries, keys and values of a layer and
gets back what the heads saw. It works alike on CPU and GPU and is the readable twin of faster kernels. Single-token
rows attend together, a group per similar context length; longer chunks one by one.
Query heads that share a KV head are treated as query rows of that head, so that keys are never repeated in memory.
Shapes: T tokens, Hq query heads, Hk KV heads, G = Hq / Hk, D head_dim, S context length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.runtime.batch import DecodeGroup, ForwardBatch, PrefillChunk
from engine.runtime.kv_cache import KVCache
from engine.runtime.kv_cache_quant import QuantizedKVCache


class PagedAttention:
    """Attention of one step, callable once per layer (``engine.model.decoder.Attend``)."""

    def __init__(self, cache: KVCache | QuantizedKVCache, batch: ForwardBatch) -> None:
        self.cache = cache
        self.batch = batch
        self._group_readers = [cache.reader(group.context_slots.flatten()) for group in batch.decode_groups]
        self._chunk_readers = [cache.reader(chunk.context_slots) for chunk in batch.prefill_chunks]

    def __call__(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """q: [T, Hq, D]; kv: [T, 2, Hk, D] -> [T, Hq * D]. Effect: stores kv in the step's slots of the layer.

        Storing comes first, for every row: a token attends to itself and to earlier tokens of its own chunk.
        """
        self.cache.store(layer, self.batch.slots, kv)
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
        for group, read in zip(self.batch.decode_groups, self._group_readers, strict=True):
            rows = slice(group.start, group.end)
            out[rows] = decode_attention(q[rows], read(layer), group)
        for chunk, read in zip(self.batch.prefill_chunks, self._chunk_readers, strict=True):
            rows = slice(chunk.start, chunk.end)
            out[rows] = prefill_attention(q[rows], read(layer), chunk)
        return out


def decode_attention(q: torch.Tensor, context: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    """q: [R, Hq, D], one token per row; context: [R * S, 2, Hk, D] -> [R, Hq * D]. Pure."""
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = context.shape[2]
    by_row = context.unflatten(0, group.context_slots.shape)  # [R, S, 2, Hk, D]
    k, v = by_row[:, :, 0].transpose(1, 2), by_row[:, :, 1].transpose(1, 2)  # [R, Hk, S, D]
    grouped = q.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)  # head h reads KV head h // G
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask).reshape(num_rows, num_heads * head_dim)


def prefill_attention(q: torch.Tensor, context: torch.Tensor, chunk: PrefillChunk) -> torch.Tensor:
    """q: [n, Hq, D], consecutive positions; context: [S, 2, Hk, D] -> [n, Hq * D]. Pure."""
    k, v = context[None, :, 0].transpose(1, 2), context[None, :, 1].transpose(1, 2)  # [1, Hk, S, D]
    heads = q[None].transpose(1, 2)  # [1, Hq, n, D]
    seen = F.scaled_dot_product_attention(
        heads, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, enable_gqa=True
    )
    return seen.transpose(1, 2).flatten(2)[0]
