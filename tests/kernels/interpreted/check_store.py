"""Storing keys and values, plain and as int8."""

import pytest
import torch

import kernels.triton as kernels
from kernels import twins
from tests.kernels.interpreted.grid import grid, ids

GRID = grid(
    num_tokens=[1, 7, 17], heads=[1, 2, 5], head_dim=[64, 80, 128], dtype=[torch.float32, torch.float16, torch.bfloat16]
)


def rows(num_tokens, heads, head_dim, dtype):
    """K and V as a slice of a fused QKV, and slots of which some are -1 (padding)."""
    noise = torch.Generator().manual_seed(num_tokens * heads)
    fused = torch.randn((num_tokens, 3 * heads, head_dim), generator=noise).to(dtype)
    slots = torch.randperm(40, generator=noise)[:num_tokens]
    slots[1::3] = -1
    return fused[:, heads:].unflatten(1, (2, heads)), slots


def assert_store(kernels, case):
    kv, slots = rows(**case)
    got = torch.full((40, *kv.shape[1:]), float("nan"), dtype=kv.dtype)
    wanted = got.clone()
    kernels.store_kv(got, kv, slots)
    twins.store_kv(wanted, kv, slots)
    torch.testing.assert_close(got, wanted, atol=0, rtol=0, equal_nan=True)


def assert_store_int8(kernels, case):
    kv, slots = rows(**case)
    got, wanted = (
        [torch.full((40, *kv.shape[1:]), 99, dtype=torch.int8), torch.full((40, *kv.shape[1:3]), -1.0)] for _ in "ab"
    )
    kernels.store_kv_int8(*got, kv, slots)
    twins.store_kv_int8(*wanted, kv, slots)
    assert torch.equal(got[0], wanted[0])
    torch.testing.assert_close(got[1], wanted[1], atol=0, rtol=0)


@pytest.mark.parametrize("case", GRID, ids=ids(GRID))
def test_rows_go_to_their_slots_and_nowhere_else(case):
    assert_store(kernels, case)


@pytest.mark.parametrize("case", GRID, ids=ids(GRID))
def test_int8_rows_and_scales(case):
    assert_store_int8(kernels, case)


def test_padding_alone_writes_nothing():
    cache = torch.full((8, 2, 2, 64), 5.0)
    kernels.store_kv(cache, torch.randn(3, 2, 2, 64), torch.full((3,), -1))
    assert (cache == 5.0).all()


def test_int8_rounds_to_nearest_and_leans_to_no_side():
    kv = torch.randn(32, 2, 2, 128)
    cache, scales = torch.zeros((32, 2, 2, 128), dtype=torch.int8), torch.zeros(32, 2, 2)
    kernels.store_kv_int8(cache, scales, kv, torch.arange(32))
    error = (cache.float() * scales[..., None] - kv) / scales[..., None]  # in steps
    assert error.abs().max() <= 0.5 + 1e-4, "never more than half a step away"
    assert abs(error.mean()) < 0.01, "cutting towards zero would show in magnitudes, rounding half up here"
    assert abs((error * kv.sign()).mean()) < 0.01, "magnitudes neither shrink nor grow"


def test_int8_ties_go_to_even_and_zeros_stay_zero():
    kv = torch.zeros(1, 2, 1, 64)
    kv[0, 0, 0, :5] = torch.tensor([127.0, 0.5, 1.5, -0.5, -2.5])
    cache, scales = torch.full((1, 2, 1, 64), 9, dtype=torch.int8), torch.zeros(1, 2, 1)
    kernels.store_kv_int8(cache, scales, kv, torch.tensor([0]))
    assert cache[0, 0, 0, :5].tolist() == [127, 0, 2, 0, -2]
    assert (cache[0, 1] == 0).all() and scales.isfinite().all()


def test_what_was_stored_is_attended_to():
    kv, slots = rows(7, 2, 64, torch.float32)
    slots = torch.tensor([16, 17, 18, 19, 20, 21, 22])
    cache = torch.full((64, 2, 2, 64), float("nan"))
    kernels.store_kv(cache, kv, slots)
    q, tables, contexts = torch.randn(1, 4, 64), torch.tensor([[1, 0]]).int(), torch.tensor([7]).int()
    got = kernels.paged_decode(q, cache, tables, contexts, 16)
    torch.testing.assert_close(got, twins.paged_decode(q, cache, tables, contexts, 16), atol=2e-6, rtol=2e-6)
