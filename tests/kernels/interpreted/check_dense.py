"""Norms, RoPE and SwiGLU against their twins, at sizes that fill no tile."""

import pytest
import torch

import kernels.triton as kernels
from kernels import twins
from tests.kernels.interpreted.grid import grid, ids
from tests.kernels.interpreted.paged import assert_same

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = grid(num_rows=[1, 7, 20], size=[1, 17, 123, 576, 2048], dtype=DTYPES)
HEADS = grid(
    num_tokens=[1, 7],
    heads=[(1, 1), (3, 1), (9, 3), (32, 8)],
    head_dim=[64, 80, 128],
    dtype=DTYPES,
    norm=[False, True],
    rope=[True, False],
)


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def assert_norm(kernels, num_rows, size, dtype):
    x, delta = noise(num_rows, 2 * size, dtype=dtype)[:, size:], noise(num_rows, size, dtype=dtype, seed=1)
    weight = noise(size, dtype=dtype)
    assert_same(kernels.rms_norm(x, weight, 1e-5), twins.rms_norm(x, weight, 1e-5))
    got, wanted = x.clone(), x.clone()
    assert_same(kernels.add_rms_norm_(got, delta, weight, 1e-5), twins.add_rms_norm_(wanted, delta, weight, 1e-5))
    torch.testing.assert_close(got, wanted, atol=0, rtol=0)


def assert_rope(kernels, num_tokens, heads, head_dim, dtype, norm, rope):
    num_q, num_k = heads
    fused = noise(num_tokens, num_q + 2 * num_k, head_dim, dtype=dtype)
    angle = noise(num_tokens, 1, head_dim // 2, seed=2)
    cos = torch.cat((angle.cos(), angle.cos()), -1).to(dtype)
    sin = torch.cat((-angle.sin(), angle.sin()), -1).to(dtype)
    tables = (cos, sin) if rope else (None, None)
    norms = (noise(head_dim, dtype=dtype, seed=3), noise(head_dim, dtype=dtype, seed=4)) if norm else (None, None)
    got, wanted = fused.clone(), fused.clone()
    kernels.norm_rope_(got[:, : num_q + num_k], num_q, *tables, *norms, 1e-6)
    twins.norm_rope_(wanted[:, : num_q + num_k], num_q, *tables, *norms, 1e-6)
    assert_same(got, wanted)
    assert torch.equal(got[:, num_q + num_k :], fused[:, num_q + num_k :]), "values are not turned"


def assert_swiglu(kernels, num_rows, size, dtype):
    gate_up = noise(num_rows, 2 * size + 3, dtype=dtype)[:, : 2 * size] * 4
    assert_same(kernels.silu_mul(gate_up), twins.silu_mul(gate_up))


@pytest.mark.parametrize("case", SIZES, ids=ids(SIZES))
def test_norm(case):
    assert_norm(kernels, **case)


@pytest.mark.parametrize("case", SIZES, ids=ids(SIZES))
def test_swiglu(case):
    assert_swiglu(kernels, **case)


@pytest.mark.parametrize("case", HEADS, ids=ids(HEADS))
def test_rope(case):
    assert_rope(kernels, **case)


def test_rope_turns_the_way_the_engine_turns():
    from engine.model.rope import Rotary, rotate_
    from engine.model.spec import RopeSpec

    cos, sin = Rotary(RopeSpec(), 64, torch.float32, torch.device("cpu")).angles(torch.tensor([0, 5, 4000]))
    heads = noise(3, 12, 64)
    wanted = rotate_(heads.clone(), cos, sin)
    torch.testing.assert_close(kernels.norm_rope_(heads.clone(), 9, cos, sin), wanted, atol=1e-6, rtol=1e-6)


def test_a_row_of_zeros_stays_zero():
    assert torch.equal(kernels.rms_norm(torch.zeros(2, 64), torch.ones(64), 1e-5), torch.zeros(2, 64))
