"""Paged attention for decode rows: one query per request, over a context scattered in blocks.

What moves: every key and value of the context, once: ``2 * context * Hk * D`` elements a row, which is nearly all
there is. Each of them is used for ``2 * 2 * G`` operations, G = Hq / Hk query heads sharing a KV head. That is far
below any GPU's ridge, so this kernel is a memory copy with arithmetic on the side, and three choices follow from it:

* *The group is the M of the matrix product.* The G queries that read the same keys are rows of one tile (padded to
  16), so a key is loaded once for all of them and the tensor cores do the products.
* *Split-KV* (flash-decoding): one row and KV head alone would occupy one processor of more than a hundred. So the
  context is cut into ``num_splits`` parts, each part keeps its own running softmax (largest score, sum of
  exponentials, weighted values), and a second small kernel merges the parts. The grid depends on shapes only, never
  on lengths: a CUDA graph can hold it, and a part that has nothing to read leaves at once.
* *Tiles run over tokens, not over blocks*: each token looks its block up, so any block size works with one kernel.

Softmax in base 2, since the hardware has exp2: the factor log2(e) is folded into the scale of the scores. Follows
flash-decoding and the split kernels of vLLM and SGLang.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_cache, check_float, check_rows, check_tables, dot_size, next_power_of_2

MOST_SPLITS = 64
LEAST_TOKENS_PER_SPLIT = 128
BYTES_PER_TILE = 8192  # of keys: enough loads in flight to hide latency, few enough for every chip's shared memory


def decode_splits(num_rows: int, num_kv_heads: int, longest_context: int, num_processors: int) -> int:
    """Parts to cut each context into: enough programs for two on every processor, none with too little to do. Pure."""
    wanted = -(-2 * num_processors // max(num_rows * num_kv_heads, 1))
    useful = max(longest_context // LEAST_TOKENS_PER_SPLIT, 1)
    return min(next_power_of_2(wanted), 1 << (useful.bit_length() - 1), MOST_SPLITS)


def paged_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    block_size: int,
    num_splits: int = 1,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """q: [R, Hq, D], one token per request; cache: [slots, 2, Hk, D], one layer -> [R, Hq, D]. Pure.

    block_tables: [R, W] int32; context_lens: [R] int32, the row's own token included; 0 (padding) gives zeros.
    An int8 cache brings scales [slots, 2, Hk] float32. num_splits: a power of two.
    """
    check_rows("q", q, 3)
    check_float("q", q)
    check_cache(cache, scales, q.dtype)
    check_tables(block_tables, context_lens)
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = cache.shape[2]
    assert num_heads % num_kv_heads == 0 and cache.shape[3] == head_dim, "query heads share KV heads evenly"
    assert block_tables.shape[0] == num_rows, "a table for every row"
    assert num_splits == next_power_of_2(num_splits) <= MOST_SPLITS, f"num_splits {num_splits} is no power of two"
    out = torch.empty((num_rows, num_heads, head_dim), dtype=q.dtype, device=q.device)
    parts = (num_rows, num_heads, num_splits if num_splits > 1 else 0)
    best = torch.empty(parts, dtype=torch.float32, device=q.device)
    total = torch.empty_like(best)
    acc = torch.empty((*parts, head_dim), dtype=torch.float32, device=q.device)
    group, block_d = num_heads // num_kv_heads, dot_size(head_dim)
    _attend_part[(num_rows, num_kv_heads, num_splits)](
        q, cache, cache[:, 1], scales if scales is not None else q, block_tables, context_lens, out, acc, best, total,
        head_dim**-0.5 / math.log(2.0), q.stride(0), cache.stride(0), block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=dot_size(group), BLOCK_D=block_d,
        BLOCK_SIZE=block_size, TILE=min(max(BYTES_PER_TILE // (block_d * q.element_size()), 16), 64),
        NUM_SPLITS=num_splits, QUANTIZED=scales is not None,
        num_warps=4, enable_fp_fusion=True, num_stages=3 if q.element_size() == 2 else 2,
    )  # fmt: skip
    if num_splits > 1:
        _merge_parts[(num_rows, num_heads)](
            acc,
            best,
            total,
            out,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
            NUM_SPLITS=num_splits,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


@triton.jit(do_not_specialize=["table_stride"])  # changes from step to step, and no load hangs on it
def _attend_part(
    q_ptr, k_ptr, v_ptr, scale_ptr, table_ptr, context_ptr, out_ptr, acc_ptr, best_ptr, total_ptr,
    score_scale, q_stride, slot_stride, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, NUM_SPLITS: tl.constexpr,
    QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Program (row, KV head, part): the part's share of the context, tokens [begin, end)."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    context_len = tl.load(context_ptr + row)
    tokens_per_part = tl.cdiv(tl.cdiv(context_len, NUM_SPLITS), TILE) * TILE
    begin = part * tokens_per_part
    end = tl.minimum(begin + tokens_per_part, context_len)

    member = tl.arange(0, BLOCK_M)  # of the group: query head kv_head * GROUP + member
    lane = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + member
    real = (member < GROUP)[:, None] & (lane < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + row * q_stride + head[:, None] * HEAD_DIM + lane[None, :], mask=real, other=0.0)

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in tl.range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        present = token < end
        block = tl.load(table_ptr + row * table_stride + token // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + token % BLOCK_SIZE
        at = slot[:, None] * slot_stride + kv_head * HEAD_DIM + lane[None, :]
        # Absent tokens read as 0, whatever their slot holds: 0 * NaN would be NaN, a weight of 0 does not protect.
        inside = present[:, None] & (lane < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + at, mask=inside, other=0.0)  # [TILE, D]
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * score_scale  # [M, TILE]
        if QUANTIZED:  # the scale is the token's, so it can wait until after the product: K stays int8 in memory
            scale_at = slot * (2 * NUM_KV_HEADS) + kv_head
            scores = scores * tl.load(scale_ptr + scale_at, mask=present, other=0.0)[None, :]
        scores = tl.where(present[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))  # finite: a tile begins with a token that is present
        weight = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weight, axis=1)
        v = tl.load(v_ptr + at, mask=inside, other=0.0)  # [TILE, D]
        if QUANTIZED:
            scale_at = slot * (2 * NUM_KV_HEADS) + NUM_KV_HEADS + kv_head
            weight = weight * tl.load(scale_ptr + scale_at, mask=present, other=0.0)[None, :]
        acc = acc * shrink[:, None] + tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        best = new_best

    out_at = (row * NUM_KV_HEADS * GROUP + head)[:, None]
    if NUM_SPLITS == 1:
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]  # a row without context: 0 / 1
        tl.store(out_ptr + out_at * HEAD_DIM + lane[None, :], out.to(q.dtype), mask=real)
    else:
        part_at = (row * NUM_KV_HEADS * GROUP + head) * NUM_SPLITS + part
        tl.store(best_ptr + part_at, best, mask=member < GROUP)
        tl.store(total_ptr + part_at, total, mask=member < GROUP)
        if begin < end:  # an empty part is known by its best of -inf; its values are never read
            tl.store(acc_ptr + part_at[:, None] * HEAD_DIM + lane[None, :], acc, mask=real)


@triton.jit
def _merge_parts(
    acc_ptr, best_ptr, total_ptr, out_ptr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, NUM_SPLITS: tl.constexpr
):
    """Program (row, query head): each part was relative to its own largest score; bring all to the largest of all."""
    row_head = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    part = row_head * NUM_SPLITS + tl.arange(0, NUM_SPLITS)
    lane = tl.arange(0, BLOCK_D)
    best = tl.load(best_ptr + part)
    total = tl.load(total_ptr + part)
    largest = tl.max(best, axis=0)
    # No part had anything to read: 0 in place of -inf, for -inf - (-inf) would be NaN; then every weight is 0.
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weight = tl.exp2(best - largest)  # an empty part has best = -inf and weighs 0
    filled = (best > float("-inf"))[:, None] & (lane < HEAD_DIM)[None, :]
    acc = tl.load(acc_ptr + part[:, None] * HEAD_DIM + lane[None, :], mask=filled, other=0.0)
    denominator = tl.sum(weight * total, axis=0)
    out = tl.sum(weight[:, None] * acc, axis=0) / tl.where(denominator > 0.0, denominator, 1.0)
    tl.store(out_ptr + row_head * HEAD_DIM + lane, out.to(out_ptr.dtype.element_ty), mask=lane < HEAD_DIM)
