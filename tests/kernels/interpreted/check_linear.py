"""Weight-only products against their twins: int8, int4, and the matrix-vector product of plain weights."""

import pytest
import torch

import kernels.triton as kernels
from kernels import twins
from kernels.packing import pack_int4
from kernels.reference import quantize_int4, quantize_int8
from tests.kernels.interpreted.grid import grid, ids

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # of the outputs' own size
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
GRID = grid(num_rows=[1, 2, 7, 33], num_outputs=[5, 48, 70], num_inputs=[64, 320], dtype=DTYPES, bias=[False, True])
INT4 = grid(num_rows=[1, 2, 7, 33], num_outputs=[5, 48, 70], num_inputs=[128, 384], group=[32, 64, 128], dtype=DTYPES)


def operands(num_rows, num_outputs, num_inputs, dtype):
    noise = torch.Generator().manual_seed(num_rows + num_outputs + num_inputs)
    x = torch.randn((num_rows, 2 * num_inputs), generator=noise).to(dtype)[:, :num_inputs]  # rows with a gap between
    weight = torch.randn((num_outputs, num_inputs), generator=noise)
    return x, weight, torch.randn(num_outputs, generator=noise).to(dtype) * 5


def assert_near(got, wanted):
    error = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert error <= TOLERANCE[got.dtype], f"off by {error:.2e} of the largest output"


def assert_linear_int8(kernels, num_rows, num_outputs, num_inputs, dtype, bias):
    x, weight, offsets = operands(num_rows, num_outputs, num_inputs, dtype)
    quantized = quantize_int8(weight * torch.linspace(0.1, 10, num_outputs)[:, None])  # scales that differ by 100
    arguments = (x, quantized.q, quantized.scale, offsets if bias else None)
    assert_near(kernels.linear_int8(*arguments), twins.linear_int8(*arguments))


def assert_linear_int4(kernels, num_rows, num_outputs, num_inputs, group, dtype):
    x, weight, offsets = operands(num_rows, num_outputs, num_inputs, dtype)
    packed = pack_int4(quantize_int4(weight + 0.7, group))  # off centre: a minimum that is lost shows
    assert_near(kernels.linear_int4(x, packed, offsets), twins.linear_int4(x, packed, offsets))


def assert_matvec(kernels, num_rows, num_outputs, num_inputs, dtype, bias):
    x, weight, offsets = operands(1, num_outputs, num_inputs, dtype)
    arguments = (x, weight.to(dtype), offsets if bias else None)
    assert_near(kernels.matvec(*arguments), twins.matvec(*arguments))


@pytest.mark.parametrize("case", GRID, ids=ids(GRID))
def test_int8(case):
    assert_linear_int8(kernels, **case)


@pytest.mark.parametrize("case", INT4, ids=ids(INT4))
def test_int4(case):
    assert_linear_int4(kernels, **case)


@pytest.mark.parametrize("case", GRID[:6], ids=ids(GRID[:6]))
def test_matvec(case):
    assert_matvec(kernels, **case)


def test_more_rows_than_a_tile():
    assert_linear_int8(kernels, 100, 70, 64, torch.float16, True)
    assert_linear_int4(kernels, 100, 70, 64, 32, torch.float16)
