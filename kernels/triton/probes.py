"""What this GPU can do at all: the two roofs, measured with the same tools as the kernels that are held against them.

* ``stream_read``: every byte in, almost none out: the roof of decode, which reads weights and keys and writes next to
  nothing.
* ``stream_copy``: every byte in and out again: the roof of norms and activations.
* ``matmul``: tiles of A and B through the tensor cores: the roof of prefill. Not a peak from a datasheet: what a
  plain tiled product reaches here.
* ``fma_chain``: products and sums that never leave the registers: the roof of everything done outside the tensor
  cores.

A kernel's share is its own rate over the probe's, both from one session. Percent of a datasheet would mix two
machines.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.launch import check_float, check_rows

BLOCK = 4096
FMA_CHAINS = 4  # independent chains in a thread: one alone would wait for its own result


def stream_read(x: torch.Tensor, num_programs: int) -> torch.Tensor:
    """x: [n] float32 -> each program's sum of its part [num_programs] float32. Pure. Moves n * 4 bytes in."""
    assert x.dim() == 1 and x.is_contiguous() and x.dtype == torch.float32, "one packed row of float32"
    sums = torch.empty(num_programs, dtype=torch.float32, device=x.device)
    _stream_read[(num_programs,)](x, sums, x.shape[0], BLOCK=BLOCK, num_warps=8, enable_fp_fusion=True)
    return sums


def stream_copy(x: torch.Tensor) -> torch.Tensor:
    """x: [n] float32 -> a copy. Pure. Moves n * 4 bytes in and as many out."""
    assert x.dim() == 1 and x.is_contiguous() and x.dtype == torch.float32, "one packed row of float32"
    out = torch.empty_like(x)
    _stream_copy[(triton.cdiv(x.shape[0], BLOCK),)](x, out, x.shape[0], BLOCK=BLOCK, num_warps=8, enable_fp_fusion=True)
    return out


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: [M, K]; b: [K, N], both 16-bit -> a @ b [M, N]. Pure. Does 2 * M * N * K operations."""
    check_rows("a", a, 2)
    check_rows("b", b, 2)
    check_float("a", a, b)
    assert a.element_size() == 2 and a.shape[1] == b.shape[0], "16-bit matrices that fit each other"
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    _matmul[(triton.cdiv(m, 128) * triton.cdiv(n, 128),)](
        a, b, out, m, n, k, a.stride(0), b.stride(0), BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, ROWS=8,
        num_warps=8, enable_fp_fusion=True, num_stages=3,
    )  # fmt: skip
    return out


def fma_chain(x: torch.Tensor, num_rounds: int) -> torch.Tensor:
    """x: [n] float32, n a multiple of 1024 -> [n]. Pure. Does n * FMA_CHAINS * 2 * num_rounds operations."""
    assert x.dim() == 1 and x.is_contiguous() and x.dtype == torch.float32, "one packed row of float32"
    assert x.shape[0] % 1024 == 0, "whole programs only: a half-empty one would do work that is not counted"
    out = torch.empty_like(x)
    _fma_chain[(x.shape[0] // 1024,)](x, out, num_rounds, BLOCK=1024, num_warps=8, enable_fp_fusion=True)
    return out


@triton.jit
def _stream_read(x_ptr, sum_ptr, num_elements, BLOCK: tl.constexpr):
    """Program i reads blocks i, i + P, i + 2P ...: at any moment all programs read one neighbourhood."""
    acc = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    for begin in tl.range(first, num_elements, stride):
        at = begin + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + at, mask=at < num_elements, other=0.0)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@triton.jit
def _stream_copy(x_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < num_elements, other=0.0), mask=at < num_elements)


@triton.jit
def _matmul(
    a_ptr, b_ptr, out_ptr, M, N, K, a_stride, b_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Programs go through the output in strips of ROWS tiles, so that those running together share rows and columns."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    strip = tl.program_id(0) // (ROWS * tiles_n)
    rows_here = tl.minimum(tl.cdiv(M, BLOCK_M) - strip * ROWS, ROWS)
    within = tl.program_id(0) % (ROWS * tiles_n)
    m = (strip * ROWS + within % rows_here) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = within // rows_here * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a_at = m.to(tl.int64)[:, None] * a_stride + k[None, :]
        b_at = k.to(tl.int64)[:, None] * b_stride + n[None, :]
        a = tl.load(a_ptr + a_at, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(b_ptr + b_at, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _fma_chain(x_ptr, out_ptr, num_rounds, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    a, b, c, d = x, x + 1.0, x + 2.0, x + 3.0
    for _ in tl.range(0, num_rounds):  # each converges to 0.5, so nothing overflows however long it runs
        a = a * 0.5 + 0.25
        b = b * 0.5 + 0.25
        c = c * 0.5 + 0.25
        d = d * 0.5 + 0.25
    tl.store(out_ptr + at, a + b + c + d)
