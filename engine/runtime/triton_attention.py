"""Attention over the paged cache with Triton kernels: store the step's keys and values, then attend where they lie.

The other side of the seam that ``engine.runtime.attention`` fills in torch: same call, same cache, same numbers within
rounding. Nothing is gathered: the kernels read the cache through the block tables. Single-token rows go to the split
decode kernel, longer chunks to the prefill kernel: one tile shape for both would fit neither.
Shapes: T tokens, Hq query heads, Hk KV heads, D head_dim.
"""

from __future__ import annotations

import torch

from engine.runtime.kv_cache import KVCache
from engine.runtime.paged_batch import PagedBatch
from kernels import triton as kernels

DEFAULT_PROCESSORS = 132  # where there is no GPU to ask: an H100's


class TritonAttention:
    """Attention of one step, callable once per layer (``engine.model.decoder.Attend``)."""

    def __init__(self, cache: KVCache, batch: PagedBatch, longest_context: int, num_processors: int) -> None:
        """The decode kernel spreads few rows over many processors: longest_context is what a row may grow to, not what
        it has now, so that each number of rows has one number of parts, compiled before the clock starts.
        """
        self.cache = cache
        self.batch = batch
        num_kv_heads = cache.slots.shape[3]
        self.num_splits = kernels.decode_splits(batch.num_single, num_kv_heads, longest_context, num_processors)

    def __call__(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """q: [T, Hq, D]; kv: [T, 2, Hk, D] -> [T, Hq * D]. Effect: stores kv in the step's slots of the layer."""
        batch, slots = self.batch, self.cache.slots[layer]
        kernels.store_kv(slots, kv, batch.slots)
        n, seen = batch.num_single, []
        if n:
            seen.append(
                kernels.paged_decode(
                    q[:n], slots, batch.tables[:n], batch.contexts[:n], self.cache.block_size, self.num_splits
                )
            )
        if batch.longest_chunk:
            seen.append(
                kernels.paged_prefill(
                    q[n:],
                    slots,
                    batch.tables[n:],
                    batch.contexts[n:],
                    batch.query_starts,
                    self.cache.block_size,
                    batch.longest_chunk,
                )
            )
        return (seen[0] if len(seen) == 1 else torch.cat(seen)).flatten(1)


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU. Pure."""
    if device.type != "cuda":
        return DEFAULT_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
