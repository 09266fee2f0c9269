"""The shim itself: casts and products of bfloat16 in the interpreter equal torch's."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def _cast(x_ptr, narrow_ptr, wide_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    narrow = tl.load(x_ptr + at).to(tl.bfloat16)
    tl.store(narrow_ptr + at, narrow)
    tl.store(wide_ptr + at, narrow.to(tl.float32))


@triton.jit
def _multiply(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def _add(x_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + tl.load(x_ptr + at))


def test_casts_round_to_nearest_even():
    x = torch.randn(4096)
    x[:3] = torch.tensor([1.00390625, 1.01171875, float("nan")])  # two ties, to even both ways
    narrow, wide = torch.empty(4096, dtype=torch.bfloat16), torch.empty(4096)
    _cast[(1,)](x, narrow, wide, N=4096)
    torch.testing.assert_close(narrow, x.to(torch.bfloat16), atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(wide, x.to(torch.bfloat16).float(), atol=0, rtol=0, equal_nan=True)


def test_dot_multiplies_values_and_not_bits():
    a, b = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16()
    out = torch.empty(32, 32)
    _multiply[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-5, rtol=1e-6)


def test_arithmetic_on_bfloat16_is_refused():
    with pytest.raises(Exception, match="widen it first"):
        _add[(1,)](torch.randn(16).bfloat16(), N=16)
