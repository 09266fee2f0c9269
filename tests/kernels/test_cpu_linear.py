"""The CPU product against its torch twin: every weight kind, row counts around every tile, both activation types."""

import pytest
import torch

from kernels.cpu.pack import WeightArena, pack, pack_int4, pack_int8, packed_bytes
from kernels.reference import linear, quantize_int4, quantize_int8

ROWS = (1, 2, 5, 6, 7, 11, 12, 13, 16, 25, 40)
SHAPES = ((32, 32), (96, 64), (160, 576), (50, 96), (64, 1536))  # 50 outputs: the last block is part empty


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    assert got.shape == wanted.shape
    return ((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)).item()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_float32_is_tight(cpu_library, rows, shape):
    weight, x = _noise(*shape), _noise(rows, shape[1], seed=1)
    assert _error(cpu_library.linear(x, pack(weight)), linear(x.double(), weight.double()).float()) < 2e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_bfloat16_loses_nothing_but_the_order_of_sums(cpu_library, rows, shape):
    weight, x = _noise(*shape).bfloat16(), _noise(rows, shape[1], seed=1).bfloat16()
    assert _error(cpu_library.linear(x, pack(weight)), linear(x, weight)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_int8_widens_exactly(cpu_library, rows, shape, dtype):
    quantized, x = quantize_int8(_noise(*shape)), _noise(rows, shape[1], seed=1).to(dtype)
    got = cpu_library.linear(x, pack_int8(quantized.q, quantized.scale))
    assert _error(got, linear(x, quantized.dequantize())) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("rows", ROWS)
def test_int4_in_groups(cpu_library, rows, group, dtype):
    quantized, x = quantize_int4(_noise(96, 192), group), _noise(rows, 192, seed=1).to(dtype)
    got = cpu_library.linear(x, pack_int4(quantized.q, quantized.scale, quantized.minimum))
    many = dtype == torch.bfloat16 and rows > 8  # many rows: the weights may be widened once, which rounds them
    assert _error(got, linear(x, quantized.dequantize())) < (4e-3 if many else 2e-5)


def test_every_int8_value_and_every_int4_value_survive(cpu_library):
    q8 = torch.arange(-127, 128).repeat(4)[:960].to(torch.int8).reshape(10, 96)
    eye = torch.eye(96).bfloat16()
    assert torch.equal(cpu_library.linear(eye, pack_int8(q8, torch.ones(10))), q8.T.float())
    q4 = torch.arange(16).repeat(60).to(torch.uint8).reshape(10, 96)
    scale, minimum = torch.full((10, 3), 2.0), torch.full((10, 3), -3.0)
    wanted = q4.T.float() * 2 - 3
    for rows in (eye[:1], eye[:12], eye):
        got = cpu_library.linear(rows, pack_int4(q4, scale, minimum))
        torch.testing.assert_close(got, wanted[: rows.shape[0]], atol=1e-3, rtol=0)


@pytest.mark.parametrize("rows", [1, 40])
def test_bias_is_added_once_per_row(cpu_library, rows):
    weight, bias, x = _noise(50, 64), _noise(50, seed=2), _noise(rows, 64, seed=1)
    assert _error(cpu_library.linear(x, pack(weight, bias)), linear(x, weight, bias)) < 2e-6
    quantized = quantize_int8(weight)
    got = cpu_library.linear(x.bfloat16(), pack_int8(quantized.q, quantized.scale, bias))
    assert _error(got, linear(x.bfloat16(), quantized.dequantize(), bias)) < 1e-5


def test_no_rows_give_no_rows(cpu_library):
    assert cpu_library.linear(torch.zeros(0, 64), pack(torch.zeros(32, 64))).shape == (0, 32)


def test_rows_and_weights_that_do_not_fit_are_refused(cpu_library):
    with pytest.raises(AssertionError, match="cannot meet"):
        cpu_library.linear(torch.zeros(1, 64), pack(torch.zeros(32, 64).bfloat16()))
    with pytest.raises(AssertionError, match="one column per input"):
        cpu_library.linear(torch.zeros(1, 32), pack(torch.zeros(32, 64)))


def test_an_arena_holds_exactly_the_bytes_it_was_sized_for():
    weights = [_noise(50, 64), _noise(96, 32)]
    arena = WeightArena(sum(packed_bytes(*w.shape, "float32") for w in weights))
    packed = [pack(w, arena=arena) for w in weights]
    assert [p.data.data_ptr() % 64 for p in packed] == [0, 0]
    assert torch.equal(packed[0].data, pack(weights[0]).data) and torch.equal(packed[1].data, pack(weights[1]).data)
    int4 = quantize_int4(weights[0], 32)
    assert pack_int4(int4.q, int4.scale, int4.minimum).data.numel() == packed_bytes(50, 64, "int4", 32)


def test_quantizing_errs_by_at_most_half_a_step():
    weight = _noise(40, 64)
    int8, int4 = quantize_int8(weight), quantize_int4(weight, 32)
    assert ((int8.dequantize() - weight).abs() <= int8.scale[:, None] * 0.5001).all()
    step = int4.scale.float().repeat_interleave(32, dim=1)
    assert ((int4.dequantize() - weight).abs() <= step * 0.52 + 1e-3).all()  # scale and minimum are rounded to float16
    assert torch.equal(quantize_int8(torch.zeros(2, 32)).dequantize(), torch.zeros(2, 32))
    assert torch.equal(quantize_int4(torch.ones(2, 32), 32).dequantize(), torch.ones(2, 32))


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 4099])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_the_largest_of_a_row(cpu_library, rows, width):
    values = _noise(rows, width).round(decimals=1)  # with many equal ones, of which the first counts
    assert cpu_library.argmax(values) == values.numpy().argmax(-1).tolist()


def test_the_largest_of_no_rows_and_of_infinities(cpu_library):
    assert cpu_library.argmax(torch.empty((0, 5))) == []
    assert cpu_library.argmax(torch.full((2, 37), float("-inf"))) == [0, 0]
