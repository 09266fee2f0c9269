"""Turn queries and keys by their positions, in place, normalising each head first where the model says so (Qwen3).

What moves: every query and key element in and out once, and one row of cosines and sines per token, which all its
heads share. As separate torch operations (norm of q, norm of k, swap halves, multiply, add) the same elements would
make the trip about five times.

The convention is half-split, as in Hugging Face checkpoints: dimension i turns together with i + D/2. So a program
holds the two halves as two tiles, and the rotation needs no shuffle. A tile is a few heads of one token: large enough
to fill a warp's loads, small enough that one token's heads spread over several processors in a decode step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_float, check_rows, next_power_of_2, warps_for

HEADS_PER_PROGRAM = 8


def norm_rope_(
    heads: torch.Tensor,
    num_q_heads: int,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """heads: [T, H, D], query heads first, then key heads. Effect: normed and turned in place. Returns heads.

    cos, sin: [T, 1, D] (sin negated in its first half), both None where there is no RoPE; q_norm, k_norm: [D] or None.
    """
    assert (cos is None) == (sin is None) and (q_norm is None) == (k_norm is None), "both of a pair, or neither"
    check_rows("heads", heads, 3)
    num_tokens, num_heads, head_dim = heads.shape
    assert head_dim % 2 == 0 and 0 <= num_q_heads <= num_heads, "RoPE turns pairs; query heads come first"
    for name, table in (("cos", cos), ("sin", sin)):
        if table is not None:
            check_float(name, heads, table)
            assert table.is_contiguous() and table.numel() == num_tokens * head_dim, f"{name} is [T, 1, D], packed"
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            check_float(name, heads, weight)
            assert weight.is_contiguous() and weight.shape == (head_dim,), f"{name} is [D]"
    if cos is None and q_norm is None:
        return heads
    block_h = min(next_power_of_2(num_heads), HEADS_PER_PROGRAM)
    _norm_rope[(num_tokens, triton.cdiv(num_heads, block_h))](
        heads,
        heads if cos is None else cos,
        heads if sin is None else sin,
        heads if q_norm is None else q_norm,
        heads if k_norm is None else k_norm,
        heads.stride(0),
        num_heads,
        num_q_heads,
        eps,
        HALF=head_dim // 2,
        BLOCK_HALF=next_power_of_2(head_dim // 2),
        BLOCK_H=block_h,
        HAS_NORM=q_norm is not None,
        HAS_ROPE=cos is not None,
        num_warps=warps_for(block_h * next_power_of_2(head_dim // 2)),
        enable_fp_fusion=True,
    )
    return heads


@triton.jit
def _norm_rope(
    heads_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    token_stride,
    num_heads,
    num_q_heads,
    eps,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
):
    """Program (token, group of heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    lane = tl.arange(0, BLOCK_HALF)
    inside = (head < num_heads)[:, None] & (lane < HALF)[None, :]
    first_at = heads_ptr + token * token_stride + head[:, None] * (2 * HALF) + lane[None, :]
    stored = tl.load(first_at, mask=inside, other=0.0)
    a = stored.to(tl.float32)  # dimensions [0, D/2)
    b = tl.load(first_at + HALF, mask=inside, other=0.0).to(tl.float32)  # dimensions [D/2, D)
    if HAS_NORM:
        mean_square = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF)
        scale = tl.rsqrt(mean_square + eps)[:, None]
        is_query = (head < num_q_heads)[:, None]
        known = (lane < HALF)[None, :]
        q_a = tl.load(q_norm_ptr + lane[None, :], mask=known, other=0.0).to(tl.float32)
        k_a = tl.load(k_norm_ptr + lane[None, :], mask=known, other=0.0).to(tl.float32)
        q_b = tl.load(q_norm_ptr + HALF + lane[None, :], mask=known, other=0.0).to(tl.float32)
        k_b = tl.load(k_norm_ptr + HALF + lane[None, :], mask=known, other=0.0).to(tl.float32)
        a = a * scale * tl.where(is_query, q_a, k_a)
        b = b * scale * tl.where(is_query, q_b, k_b)
    if HAS_ROPE:
        known = lane < HALF
        angle_at = token * (2 * HALF) + lane
        cos = tl.load(cos_ptr + angle_at, mask=known, other=0.0).to(tl.float32)[None, :]
        minus_sin = tl.load(sin_ptr + angle_at, mask=known, other=0.0).to(tl.float32)[None, :]
        turned_a = a * cos + b * minus_sin
        b = b * cos - a * minus_sin
        a = turned_a
    tl.store(first_at, a.to(stored.dtype), mask=inside)
    tl.store(first_at + HALF, b.to(stored.dtype), mask=inside)
