"""Store a step's keys and values in their slots of the paged cache.

What moves: each token's K and V once in, once out, plus one slot number: ``2 * 2 * Hk * D`` elements a token. Nothing
is computed, so in a decode step of a few tokens the launch itself is the cost. A token's K and V heads lie side by
side both in the fused QKV output and in the cache (that is why the cache is ``[slots, 2, Hk, D]``), so a row is one
unbroken copy. A row whose slot is -1 is padding and writes nowhere.

The int8 variant gives every (token, K or V, head) a scale of its own: ``x / scale`` is rounded to nearest, ties to
even. Casting to int8 alone would cut towards zero and shrink every key and value by half a step on average.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_cache, check_float, check_rows, next_power_of_2, warps_for

INT8_MAX = 127.0
# float32 has 23 bits after the point: adding 1.5 * 2^23 leaves no room for a fraction, so the sum itself is rounded.
ROUNDER = tl.constexpr(12582912.0)


def store_kv(cache: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """kv: [T, 2, Hk, D]; slots: [T] int64. Effect: row t goes to cache[slots[t]] [slots, 2, Hk, D]; -1: nowhere."""
    _check(kv, slots)
    check_cache(cache, None, kv.dtype)
    assert kv.shape[1:] == cache.shape[1:], "rows and slots hold the same heads"
    num_tokens, size = kv.shape[0], kv[0].numel()
    block = min(next_power_of_2(size), 1024)
    _copy_row[(num_tokens, triton.cdiv(size, block))](
        kv,
        cache,
        slots,
        kv.stride(0),
        cache.stride(0),
        SIZE=size,
        BLOCK=block,
        num_warps=warps_for(block),
        enable_fp_fusion=True,
    )


def store_kv_int8(cache: torch.Tensor, scales: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """kv: [T, 2, Hk, D]. Effect: slots[t] of cache [slots, 2, Hk, D] int8, scales [slots, 2, Hk] float32; -1: none."""
    _check(kv, slots)
    check_cache(cache, scales, kv.dtype)
    assert kv.shape[1:] == cache.shape[1:], "rows and slots hold the same heads"
    num_tokens, _, num_heads, head_dim = kv.shape
    block = next_power_of_2(head_dim)
    _quantize_head[(num_tokens, 2 * num_heads)](
        kv,
        cache,
        scales,
        slots,
        kv.stride(0),
        cache.stride(0),
        scales.stride(0),
        HEAD_DIM=head_dim,
        BLOCK=block,
        num_warps=1,  # a head is 64 to 256 numbers: one warp holds it, and its maximum needs no shared memory
        enable_fp_fusion=False,  # rounding by addition needs that addition as it is written
    )


def _check(kv: torch.Tensor, slots: torch.Tensor) -> None:
    check_rows("kv", kv, 4)
    check_float("kv", kv)
    assert slots.dtype == torch.int64 and slots.shape == kv.shape[:1] and slots.is_contiguous(), (
        "one int64 slot a token"
    )


@triton.jit
def _copy_row(kv_ptr, cache_ptr, slot_ptr, kv_stride, cache_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (token, part): one piece of a token's row."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)  # int64
    if slot >= 0:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(kv_ptr + token * kv_stride + at, mask=at < SIZE, other=0.0)
        tl.store(cache_ptr + slot * cache_stride + at, row, mask=at < SIZE)


@triton.jit
def _quantize_head(
    kv_ptr,
    cache_ptr,
    scale_ptr,
    slot_ptr,
    kv_stride,
    cache_stride,
    scale_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, head): one key or value head of one token, key heads first."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_ptr + token)  # int64
    if slot >= 0:
        lane = tl.arange(0, BLOCK)
        at = head * HEAD_DIM + lane
        x = tl.load(kv_ptr + token * kv_stride + at, mask=lane < HEAD_DIM, other=0.0).to(tl.float32)
        largest = tl.max(tl.abs(x), axis=0)
        # A head of zeros has no scale of its own: any will do, and 1 keeps the division finite.
        scale = tl.where(largest > 0.0, largest / 127.0, 1.0)
        rounded = (x / scale + ROUNDER) - ROUNDER
        tl.store(cache_ptr + slot * cache_stride + at, rounded.to(tl.int8), mask=lane < HEAD_DIM)
        tl.store(scale_ptr + slot * scale_stride + head, scale)
