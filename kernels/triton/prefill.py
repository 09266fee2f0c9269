"""Paged attention for prefill chunks: consecutive positions of each request, over its cached prefix and themselves.

What moves: a tile of queries reads every key and value it may see once, so a chunk of n tokens after a prefix of P
reads the context about ``n * G / BLOCK_M`` times. What it computes grows with ``n * (P + n / 2)`` pairs. With tiles
of 64 or 128 query rows each loaded key serves that many products, which lifts the kernel over the ridge: prefill
attention is limited by arithmetic where decode attention is limited by memory, though the formula is the same.

* *Causal at the bottom right*: the chunk's last query sees the whole context, query i of n sees ``context - n + i +
  1`` keys. Anchored at the top left instead, a chunk after a cached prefix would be blind to the end of it.
* *Queries and group share the M of the product*: row m is query m // G, group member m % G, so keys are loaded once
  for all heads of the group here too, and any group size fills the tile.
* *Only the last tiles are masked*: up to the tile's first query everything is visible, and those tiles skip the
  comparison.

One program per (tile of queries, KV head, chunk); the grid covers the longest chunk and shorter ones leave at once.
Follows FlashAttention-2 and the unified kernel of vLLM.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_cache, check_float, check_rows, check_tables, dot_size

LARGE_TILE_ROWS = 512  # from so many (query, head) rows on, a tile of 128 is filled often enough to be worth it


def paged_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    block_size: int,
    longest_chunk: int,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """q: [T, Hq, D]; chunk c is rows [query_starts[c], query_starts[c + 1]), the last ones of its context. Pure.

    cache: [slots, 2, Hk, D], one layer; block_tables: [C, W] int32; context_lens: [C] int32, the chunk included;
    query_starts: [C + 1] int32 from 0 to T; longest_chunk: rows of the longest chunk. An int8 cache brings scales
    [slots, 2, Hk] float32. A chunk with context 0 (padding) gives zeros. -> [T, Hq, D].
    """
    check_rows("q", q, 3)
    check_float("q", q)
    check_cache(cache, scales, q.dtype)
    check_tables(block_tables, context_lens)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, num_chunks = cache.shape[2], block_tables.shape[0]
    assert num_heads % num_kv_heads == 0 and cache.shape[3] == head_dim, "query heads share KV heads evenly"
    assert query_starts.dtype == torch.int32 and query_starts.shape == (num_chunks + 1,), (
        "query_starts is [C + 1] int32"
    )
    assert 1 <= longest_chunk <= num_tokens, "no chunk is empty or longer than the step"
    group = num_heads // num_kv_heads
    block_m, tile, num_warps = prefill_tile(
        longest_chunk * group, group, dot_size(head_dim), q.element_size(), scales is not None
    )
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    _attend_chunk[(triton.cdiv(longest_chunk, block_m // group), num_kv_heads, num_chunks)](
        q, cache, cache[:, 1], scales if scales is not None else q, block_tables, context_lens, query_starts, out,
        head_dim**-0.5 / math.log(2.0), q.stride(0), cache.stride(0), block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_D=dot_size(head_dim),
        BLOCK_SIZE=block_size, TILE=tile, QUANTIZED=scales is not None,
        num_warps=num_warps, enable_fp_fusion=True, num_stages=2,
    )  # fmt: skip
    return out


def prefill_tile(num_rows: int, group: int, block_d: int, element_size: int, quantized: bool) -> tuple[int, int, int]:
    """(query rows, key tokens, warps) of a tile, for chunks of up to num_rows (query, head) rows. Pure.

    float32 has no tensor-core path at full precision and twice the bytes, so its tiles are small.
    """
    if element_size > 2 or block_d > 128:
        return dot_size(group), 16, 4
    if num_rows >= LARGE_TILE_ROWS and quantized and block_d > 64:
        return max(64, dot_size(group)), 32, 8  # widening int8 needs registers too: eight warps share a tile of 64
    if num_rows >= LARGE_TILE_ROWS:
        return max(128, dot_size(group)), 64 if block_d <= 64 else 32, 8
    return max(dot_size(min(num_rows, 64)), dot_size(group)), 32, 4


@triton.jit
def _attend_tile(
    q, best, total, acc, first, end, last_seen,
    k_ptr, v_ptr, scale_ptr, table_ptr, slot_stride, kv_head, score_scale,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, QUANTIZED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: tokens [first, first + TILE), of which those before ``end`` exist."""
    token = first + tl.arange(0, TILE)
    lane = tl.arange(0, BLOCK_D)
    present = token < end
    block = tl.load(table_ptr + token // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
    slot = block * BLOCK_SIZE + token % BLOCK_SIZE
    at = slot[:, None] * slot_stride + kv_head * HEAD_DIM + lane[None, :]
    inside = present[:, None] & (lane < HEAD_DIM)[None, :]
    k = tl.load(k_ptr + at, mask=inside, other=0.0)  # [TILE, D]
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * score_scale  # [M, TILE]
    if QUANTIZED:
        scale_at = slot * (2 * NUM_KV_HEADS) + kv_head
        scores = scores * tl.load(scale_ptr + scale_at, mask=present, other=0.0)[None, :]
    if MASKED:
        visible = (token[None, :] <= last_seen[:, None]) & present[None, :]
        scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))  # finite from the first tile on: every query sees token 0
    weight = tl.exp2(scores - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    total = total * shrink + tl.sum(weight, axis=1)
    v = tl.load(v_ptr + at, mask=inside, other=0.0)  # [TILE, D]
    if QUANTIZED:
        scale_at = slot * (2 * NUM_KV_HEADS) + NUM_KV_HEADS + kv_head
        weight = weight * tl.load(scale_ptr + scale_at, mask=present, other=0.0)[None, :]
    acc = acc * shrink[:, None] + tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    return new_best, total, acc


@triton.jit(do_not_specialize=["table_stride"])  # changes from step to step, and no load hangs on it
def _attend_chunk(
    q_ptr, k_ptr, v_ptr, scale_ptr, table_ptr, context_ptr, start_ptr, out_ptr, score_scale,
    q_stride, slot_stride, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Program (tile of queries, KV head, chunk)."""
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP  # queries in a tile; BLOCK_M % GROUP rows stay unused
    chunk = tl.program_id(2).to(tl.int64)
    kv_head = tl.program_id(1)
    first_row = tl.load(start_ptr + chunk)
    num_queries = tl.load(start_ptr + chunk + 1) - first_row
    first_query = tl.program_id(0) * BLOCK_Q
    if first_query < num_queries:
        context_len = tl.load(context_ptr + chunk)
        num_before = context_len - num_queries  # the cached prefix: query i stands at position num_before + i
        m = tl.arange(0, BLOCK_M)
        lane = tl.arange(0, BLOCK_D)
        query = first_query + m // GROUP
        head = kv_head * GROUP + m % GROUP
        real = ((m < BLOCK_Q * GROUP) & (query < num_queries))[:, None] & (lane < HEAD_DIM)[None, :]
        row = (first_row + query).to(tl.int64)[:, None]
        q = tl.load(q_ptr + row * q_stride + head[:, None] * HEAD_DIM + lane[None, :], mask=real, other=0.0)

        best = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        last_seen = num_before + query
        table_row = table_ptr + chunk * table_stride
        end = tl.minimum(num_before + tl.minimum(first_query + BLOCK_Q, num_queries), context_len)  # last query's view
        open_end = tl.maximum(num_before + first_query + 1, 0) // TILE * TILE  # whole tiles that every query sees
        for first in tl.range(0, open_end, TILE):
            best, total, acc = _attend_tile(
                q, best, total, acc, first, end, last_seen,
                k_ptr, v_ptr, scale_ptr, table_row, slot_stride, kv_head, score_scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE, QUANTIZED, MASKED=False,
            )  # fmt: skip
        for first in tl.range(open_end, end, TILE):
            best, total, acc = _attend_tile(
                q, best, total, acc, first, end, last_seen,
                k_ptr, v_ptr, scale_ptr, table_row, slot_stride, kv_head, score_scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE, QUANTIZED, MASKED=True,
            )  # fmt: skip
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]  # a chunk without context: 0 / 1
        out_at = (row * NUM_KV_HEADS * GROUP + head[:, None]) * HEAD_DIM + lane[None, :]
        tl.store(out_ptr + out_at, out.to(q.dtype), mask=real)
