"""Products with an int4 weight: half a byte each, with a scale and a minimum per output and group of inputs.

What moves: ``N * K / 2`` bytes of weight and 4 bytes per output and group, about 0.63 bytes a weight at a group of
32: a third of bfloat16. Unpacking now costs as much as multiplying, so the layout has to make it cheap:

* *The two weights of a byte are half a group apart.* The low nibbles of a group meet inputs [0, g/2), the high ones
  [g/2, g): both are unbroken runs of x. Neighbours in one byte would need every second input, a load that wastes half
  its bytes.
* *Group-major*, ``[K/g, N, g/2]``: in one group the outputs lie side by side, so a tile of outputs is one unbroken
  read though each output has only 16 bytes of a group. The scales ``[K/g, N]`` lie the same way.
* *One row*: scale and minimum wait until the group is summed, sum (s q + m) x = s sum q x + m sum x, so they cost one
  multiplication a group.
* *A few rows*: the weights are widened to the rows' own type for the tensor cores, several groups to a product.

``kernels.packing`` brings a quantized weight into this layout, once, at loading.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.packing import PackedInt4
from kernels.triton.launch import ceil_div, check_float, check_rows, dot_size, next_power_of_2

MOST_ROWS_PER_TILE = 64
INPUTS_PER_TILE = 128  # of the low nibbles, and as many of the high ones


def linear_int4(x: torch.Tensor, weight: PackedInt4, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x: [M, K]; bias: [N] -> x @ weight.T + bias [M, N]. Pure."""
    check_rows("x", x, 2)
    check_float("x", x)
    num_groups, num_outputs, half = weight.packed.shape
    num_rows, num_inputs = x.shape
    assert num_inputs == num_groups * 2 * half, f"the weight takes {num_groups * 2 * half} inputs, x has {num_inputs}"
    assert half == next_power_of_2(half) >= 16, "a group is 32, 64, 128 ... inputs"
    for name, part in (("packed", weight.packed), ("scale", weight.scale), ("minimum", weight.minimum)):
        assert part.is_contiguous() and part.device == x.device, f"{name} is packed and where x is"
    assert weight.packed.dtype == torch.uint8, "two weights a byte"
    assert weight.scale.dtype == weight.minimum.dtype == torch.float16, "scales and minima are float16"
    if bias is not None:
        check_float("bias", x, bias)
        assert bias.is_contiguous() and bias.shape == (num_outputs,), "one bias per output"
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    arguments = (x, weight.packed, weight.scale, weight.minimum, bias if bias is not None else x, out)
    if num_rows == 1:
        block_n = 16 if num_outputs < 8192 else 32
        _matvec_int4[(ceil_div(num_outputs, block_n),)](
            *arguments,
            num_outputs,
            num_groups,
            HALF=half,
            BLOCK_N=block_n,
            BLOCK_G=min(next_power_of_2(num_groups), max(INPUTS_PER_TILE // half, 1)),
            HAS_BIAS=bias is not None,
            num_warps=4,
            enable_fp_fusion=True,
        )
        return out
    block_m = min(dot_size(num_rows), MOST_ROWS_PER_TILE)
    block_n = 16 if num_outputs <= 4096 else 32
    inputs_per_tile = 32 if x.element_size() == 4 else INPUTS_PER_TILE if block_m <= 32 else INPUTS_PER_TILE // 2
    _linear_int4[(ceil_div(num_outputs, block_n), ceil_div(num_rows, block_m))](
        *arguments,
        num_rows,
        num_outputs,
        num_groups,
        x.stride(0),
        HALF=half,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_G=min(next_power_of_2(num_groups), max(inputs_per_tile // half, 1)),
        HAS_BIAS=bias is not None,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=3,
    )
    return out


@triton.jit
def _matvec_int4(
    x_ptr,
    packed_ptr,
    scale_ptr,
    minimum_ptr,
    bias_ptr,
    out_ptr,
    num_outputs,
    num_groups,
    HALF: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (outputs): BLOCK_N outputs, BLOCK_G groups at a time."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, HALF)
    acc = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
    for first in tl.range(0, num_groups, BLOCK_G, num_stages=3):
        group = first + tl.arange(0, BLOCK_G)
        x_at = group[:, None] * (2 * HALF) + lane[None, :]
        known = (group < num_groups)[:, None]
        x_low = tl.load(x_ptr + x_at, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
        x_high = tl.load(x_ptr + HALF + x_at, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
        output_at = group.to(tl.int64)[:, None] * num_outputs + n[None, :]  # [G, N]
        inside = known & (n < num_outputs)[None, :]
        byte_at = output_at[:, :, None] * HALF + lane[None, None, :]
        byte = tl.load(packed_ptr + byte_at, mask=inside[:, :, None], other=0, eviction_policy="evict_first")
        low, high = (byte & 15).to(tl.float32), (byte >> 4).to(tl.float32)
        products = tl.sum(low * x_low[:, None, :] + high * x_high[:, None, :], axis=2)  # [G, N]
        scale = tl.load(scale_ptr + output_at, mask=inside, other=0.0).to(tl.float32)
        minimum = tl.load(minimum_ptr + output_at, mask=inside, other=0.0).to(tl.float32)
        acc += products * scale + tl.sum(x_low + x_high, axis=1)[:, None] * minimum
    out = tl.sum(acc, axis=0)
    if HAS_BIAS:
        out += tl.load(bias_ptr + n, mask=n < num_outputs, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=n < num_outputs)


@triton.jit(do_not_specialize=["num_rows"])  # changes from step to step
def _linear_int4(
    x_ptr,
    packed_ptr,
    scale_ptr,
    minimum_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_groups,
    x_stride,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (outputs, rows): BLOCK_G groups at a time, one product for their low nibbles, one for the high ones."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, HALF)
    k = tl.arange(0, BLOCK_G * HALF)  # inputs of the low nibbles, group by group
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.range(0, num_groups, BLOCK_G):
        x_at = m.to(tl.int64)[:, None] * x_stride + ((first + k // HALF) * (2 * HALF) + k % HALF)[None, :]
        x_inside = (m < num_rows)[:, None] & (first + k // HALF < num_groups)[None, :]
        x_low = tl.load(x_ptr + x_at, mask=x_inside, other=0.0)
        x_high = tl.load(x_ptr + HALF + x_at, mask=x_inside, other=0.0)
        group = first + tl.arange(0, BLOCK_G)
        output_at = group.to(tl.int64)[:, None] * num_outputs + n[None, :]  # [G, N]
        inside = (group < num_groups)[:, None] & (n < num_outputs)[None, :]
        byte_at = output_at[:, :, None] * HALF + lane[None, None, :]
        byte = tl.load(packed_ptr + byte_at, mask=inside[:, :, None], other=0)  # [G, N, HALF]
        scale = tl.load(scale_ptr + output_at, mask=inside, other=0.0).to(tl.float32)[:, :, None]
        minimum = tl.load(minimum_ptr + output_at, mask=inside, other=0.0).to(tl.float32)[:, :, None]
        low = ((byte & 15).to(tl.float32) * scale + minimum).to(x_low.dtype)
        high = ((byte >> 4).to(tl.float32) * scale + minimum).to(x_low.dtype)
        low = tl.reshape(tl.permute(low, (0, 2, 1)), (BLOCK_G * HALF, BLOCK_N))  # [K, N], as the product wants it
        high = tl.reshape(tl.permute(high, (0, 2, 1)), (BLOCK_G * HALF, BLOCK_N))
        acc = tl.dot(x_low, low, acc, input_precision="ieee")
        acc = tl.dot(x_high, high, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < num_outputs, other=0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * num_outputs + n[None, :]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=(m < num_rows)[:, None] & (n < num_outputs)[None, :])
