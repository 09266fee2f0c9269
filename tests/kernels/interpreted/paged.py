"""Paged caches for the attention checks, poisoned: whatever a kernel must not read is NaN, or ±100 where NaN cannot be.

Blocks lie scattered, tables are filled up with a block that holds nothing but poison, queries are a slice of a fused
QKV whose other parts are poison too.
"""

from dataclasses import dataclass

import torch

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Paged:
    """What an attention launcher takes. ``chunks``: (queries, context) per request; a decode row is (1, context)."""

    q: torch.Tensor  # [T, Hq, D]
    cache: torch.Tensor  # [slots, 2, Hk, D]
    tables: torch.Tensor  # [R, W] int32
    contexts: torch.Tensor  # [R] int32
    starts: torch.Tensor  # [R + 1] int32
    block_size: int
    longest: int
    scales: torch.Tensor | None

    @property
    def decode_arguments(self):
        return self.q, self.cache, self.tables, self.contexts, self.block_size

    @property
    def prefill_arguments(self):
        return (*self.decode_arguments[:4], self.starts, self.block_size, self.longest, self.scales)


def paged(
    chunks,
    *,
    group=3,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    dtype=torch.float32,
    int8=False,
    poison=float("nan"),
    seed=0,
) -> Paged:
    noise = torch.Generator().manual_seed(seed + len(chunks) * 1000 + sum(context for _, context in chunks))
    needed = [-(-context // block_size) for _, context in chunks]
    order = (torch.randperm(sum(needed) + 2, generator=noise) + 1).tolist()  # block 0 is poison and belongs to nobody
    num_slots = (sum(needed) + 3) * block_size
    shape = (num_slots, 2, num_kv_heads, head_dim)
    bad = 100 * torch.randn(shape, generator=noise).sign() if int8 or poison == "hundred" else torch.full(shape, poison)
    cache = bad.to(torch.int8 if int8 else dtype)
    scales = torch.full(shape[:3], float("nan")) if int8 else None
    tables = torch.zeros((len(chunks), max(needed) + 2), dtype=torch.int32)
    for row, ((_, context), blocks) in enumerate(zip(chunks, needed, strict=True)):
        for index in range(blocks):
            block = order.pop()
            tables[row, index] = block
            here = min(block_size, context - index * block_size)
            live = slice(block * block_size, block * block_size + here)
            values = torch.randn((here, *shape[1:]), generator=noise)
            cache[live] = (values * 40).round().clamp(-127, 127).to(torch.int8) if int8 else values.to(dtype)
            if scales is not None:  # far from 1 and different for every head: a scale forgotten or swapped shows
                scales[live] = torch.rand((here, *shape[1:3]), generator=noise) * 0.03 + 0.01
    num_rows = [queries for queries, _ in chunks]
    num_heads = num_kv_heads * group
    fused = torch.full((sum(num_rows), num_heads + 2 * num_kv_heads, head_dim), float("nan"), dtype=dtype)
    fused[:, :num_heads] = torch.randn((sum(num_rows), num_heads, head_dim), generator=noise).to(dtype)
    starts = torch.tensor([0, *torch.tensor(num_rows).cumsum(0).tolist()], dtype=torch.int32)
    contexts = torch.tensor([context for _, context in chunks], dtype=torch.int32)
    return Paged(fused[:, :num_heads], cache, tables, contexts, starts, block_size, max(num_rows), scales)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.isfinite().all(), "the twin itself read poison"
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.float(), wanted.float(), atol=tolerance, rtol=tolerance)


def assert_decode(kernels, case: Paged, num_splits: int = 1) -> None:
    """The launcher of ``kernels`` against the twin."""
    from kernels.twins import paged_decode

    wanted = paged_decode(*case.decode_arguments, scales=case.scales)
    assert_same(kernels.paged_decode(*case.decode_arguments, num_splits, case.scales), wanted)


def assert_prefill(kernels, case: Paged) -> None:
    from kernels.twins import paged_prefill

    assert_same(kernels.paged_prefill(*case.prefill_arguments), paged_prefill(*case.prefill_arguments))
