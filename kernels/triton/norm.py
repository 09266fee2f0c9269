"""RMSNorm, alone or with the residual addition that always precedes it.

What moves, with the addition: the residual and the layer's output in, the new residual and the normed row out, so
``4 * T * C`` elements and the weight. Done as two torch operations the new residual would be written, and read again.
That saved trip is the whole gain: the arithmetic (about 4 operations an element) is free beside the traffic.

One program holds one row in registers, so the sum of squares needs no second pass over memory. That is right up to
some 16 thousand columns; beyond, a row no longer fits in the registers of one program and has to be cut.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_float, check_rows, next_power_of_2, warps_for

MAX_COLUMNS = 16_384


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, C]; weight: [C] -> x / sqrt(mean(x²) + eps) * weight [T, C]. Pure."""
    return _launch(x, None, weight, eps)


def add_rms_norm_(x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x, delta: [T, C] -> the norm of x + delta [T, C]. Effect: x becomes x + delta."""
    return _launch(x, delta, weight, eps)


def _launch(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    check_rows("x", x, 2)
    check_float("x", x, weight)
    num_rows, num_columns = x.shape
    assert num_columns <= MAX_COLUMNS, f"a row of {num_columns} columns does not fit in one program's registers"
    assert weight.is_contiguous() and weight.shape == (num_columns,), "one weight per column"
    if delta is not None:
        check_rows("delta", delta, 2)
        check_float("delta", x, delta)
        assert delta.shape == x.shape, "the addition is row by row"
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    block = next_power_of_2(num_columns)
    _norm_row[(num_rows,)](
        x,
        x if delta is None else delta,
        weight,
        out,
        x.stride(0),
        x.stride(0) if delta is None else delta.stride(0),
        eps,
        NUM_COLUMNS=num_columns,
        BLOCK=block,
        HAS_DELTA=delta is not None,
        num_warps=warps_for(block),
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _norm_row(
    x_ptr,
    delta_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    delta_stride,
    eps,
    NUM_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_DELTA: tl.constexpr,
):
    """Program (row): one row, held in registers from first to last."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < NUM_COLUMNS
    stored = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    x = stored.to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_ptr + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        stored = x.to(stored.dtype)
        tl.store(x_ptr + row * x_stride + column, stored, mask=inside)
        x = stored.to(tl.float32)  # the norm is of what the residual now holds, rounding included
    mean_square = tl.sum(x * x, axis=0) / NUM_COLUMNS
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(mean_square + eps) * weight
    tl.store(out_ptr + row * NUM_COLUMNS + column, normed.to(stored.dtype), mask=inside)
