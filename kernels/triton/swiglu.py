"""SwiGLU: silu(gate) * up, from the fused product that holds both side by side.

What moves: ``2F`` elements in and ``F`` out per token. Gate and up stay where the product left them, ``[T, 2F]`` with
the gates first: a row's two halves are two pointers, so nothing is split or copied before. The sigmoid is taken in
float32. A program is a piece of one row, so that a single token still spreads over many processors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_float, check_rows, next_power_of_2, warps_for

COLUMNS_PER_PROGRAM = 1024


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [T, 2F], gates first -> silu(gate) * up [T, F]. Pure."""
    check_rows("gate_up", gate_up, 2)
    check_float("gate_up", gate_up)
    assert gate_up.shape[1] % 2 == 0, "as many gates as ups"
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    block = min(next_power_of_2(size), COLUMNS_PER_PROGRAM)
    _silu_mul[(num_rows, triton.cdiv(size, block))](
        gate_up, out, gate_up.stride(0), SIZE=size, BLOCK=block, num_warps=warps_for(block), enable_fp_fusion=True
    )
    return out


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, piece)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    stored = tl.load(gate_up_ptr + row * stride + column, mask=inside, other=0.0)
    gate = stored.to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + column, (gate * tl.sigmoid(gate) * up).to(stored.dtype), mask=inside)
