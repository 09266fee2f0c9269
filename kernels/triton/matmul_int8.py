"""Products with a weight that is read once: matrix-vector in bfloat16 or int8, and int8 for a few rows.

What moves: the weight, ``N * K`` elements, once; everything else is small. Each weight is used for 2 operations per
row, so up to some hundred rows the memory is the limit, and int8 is worth having because it halves the bytes, not
because it multiplies faster: the products are done in the rows' own type. One scale per output is applied after the
sum.

* *One row* (``matvec``): no matrix product at all. A program owns a few outputs and walks along K; each thread
  multiplies what it loads and keeps its own sums, and only at the end they are added across threads. A loop without
  ``tl.dot`` is not pipelined unless asked: ``tl.range(..., num_stages=3)`` is what makes the loads run ahead of the
  arithmetic.
* *A few rows* (``linear_int8``): a tile of 16 or more rows for the tensor cores; the weight tile is widened to the
  rows' type in registers. Still one read of the weight for up to 64 rows.

Few outputs per program, so that even a small weight gives every processor some of its rows: no split along K, no
second pass, and the same sum every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_float, check_rows, dot_size, next_power_of_2

MOST_ROWS_PER_TILE = 64


def matvec(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """x: [1, K]; weight: [N, K] in x's dtype, or int8 with scale [N] float32 -> x @ weight.T + bias [1, N]. Pure."""
    _check(x, weight, bias, scale)
    assert x.shape[0] == 1, "matvec multiplies one row"
    num_outputs, num_inputs = weight.shape
    out = torch.empty((1, num_outputs), dtype=x.dtype, device=x.device)
    block_k = min(next_power_of_2(num_inputs), 1024 // weight.element_size())
    block_n = 4 if num_outputs < 4096 else 8  # rows of weight per program: each reads x once, so more rows waste less
    _matvec[(triton.cdiv(num_outputs, block_n),)](
        x,
        weight,
        scale if scale is not None else x,
        bias if bias is not None else x,
        out,
        num_outputs,
        num_inputs,
        weight.stride(0),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        HAS_SCALE=scale is not None,
        HAS_BIAS=bias is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def linear_int8(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x: [M, K]; weight: [N, K] int8; scale: [N] float32; bias: [N] -> x @ (weight * scale).T + bias [M, N]. Pure."""
    if x.shape[0] == 1:
        return matvec(x, weight, bias, scale)
    _check(x, weight, bias, scale)
    (num_rows, num_inputs), num_outputs = x.shape, weight.shape[0]
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    block_m = min(dot_size(num_rows), MOST_ROWS_PER_TILE)
    block_n = 16 if num_outputs <= 4096 else 32
    _linear_int8[(triton.cdiv(num_outputs, block_n), triton.cdiv(num_rows, block_m))](
        x,
        weight,
        scale,
        bias if bias is not None else x,
        out,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        weight.stride(0),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=128 if x.element_size() == 2 else 32,
        HAS_BIAS=bias is not None,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=3,
    )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None) -> None:
    check_rows("x", x, 2)
    check_rows("weight", weight, 2)
    check_float("x", x)
    assert weight.shape[1] == x.shape[1], f"weight {tuple(weight.shape)} does not take rows {tuple(x.shape)}"
    assert weight.dtype == (x.dtype if scale is None else torch.int8), f"the weight is {weight.dtype}"
    if scale is not None:
        assert scale.dtype == torch.float32 and scale.is_contiguous(), "scales are float32, packed"
        assert scale.shape == weight.shape[:1], "one scale per output"
    if bias is not None:
        check_float("bias", x, bias)
        assert bias.is_contiguous() and bias.shape == weight.shape[:1], "one bias per output"


@triton.jit
def _matvec(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    num_outputs,
    num_inputs,
    weight_stride,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (outputs): BLOCK_N rows of the weight, from end to end."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_row = weight_ptr + n.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in tl.range(0, num_inputs, BLOCK_K, num_stages=3):
        k = first + tl.arange(0, BLOCK_K)
        inside = (n < num_outputs)[:, None] & (k < num_inputs)[None, :]
        # The weight is used once and should leave the cache first, x is used by every program and should stay.
        weight = tl.load(weight_row + k[None, :], mask=inside, other=0, eviction_policy="evict_first")
        x = tl.load(x_ptr + k, mask=k < num_inputs, other=0.0, eviction_policy="evict_last")
        acc += weight.to(tl.float32) * x.to(tl.float32)[None, :]
    out = tl.sum(acc, axis=1)
    if HAS_SCALE:
        out *= tl.load(scale_ptr + n, mask=n < num_outputs, other=0.0)
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=n < num_outputs, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=n < num_outputs)


@triton.jit(do_not_specialize=["num_rows"])  # changes from step to step
def _linear_int8(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    weight_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (outputs, rows)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    x_row = x_ptr + m.to(tl.int64)[:, None] * x_stride
    weight_row = weight_ptr + n.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.range(0, num_inputs, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        known = (k < num_inputs)[None, :]
        x = tl.load(x_row + k[None, :], mask=(m < num_rows)[:, None] & known, other=0.0)
        weight = tl.load(weight_row + k[None, :], mask=(n < num_outputs)[:, None] & known, other=0)
        acc = tl.dot(x, tl.trans(weight.to(x.dtype)), acc, input_precision="ieee")  # -127..127 is exact in any type
    out = acc * tl.load(scale_ptr + n, mask=n < num_outputs, other=0.0)[None, :]
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=n < num_outputs, other=0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * num_outputs + n[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=(m < num_rows)[:, None] & (n < num_outputs)[None, :])
