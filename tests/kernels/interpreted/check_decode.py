"""Paged decode against its twin."""

import numpy as np
import pytest
import torch

import kernels.triton as kernels
from kernels.triton.decode import decode_splits
from tests.kernels.interpreted.grid import grid, ids
from tests.kernels.interpreted.paged import assert_decode, paged

GRID = grid(
    cycled=("int8", "num_splits", "poison"),
    cost=lambda case: case["head_dim"] * case["dtype"].itemsize,  # tiles hold fewer tokens, so there are more of them
    head_dim=[64, 80, 128],
    group=[1, 2, 3, 4, 7],
    block_size=[16, 32],
    dtype=[torch.float32, torch.float16, torch.bfloat16],
    int8=[False, True],
    num_splits=[1, 4],
    poison=[float("nan"), "hundred"],
)


@pytest.mark.parametrize("case", GRID, ids=ids(GRID))
def test_every_context_around_a_block(case):
    size, num_splits = case["block_size"], case["num_splits"]
    contexts = [0, 1, size - 1, size, size + 1, 1000]
    shape = {name: value for name, value in case.items() if name != "num_splits"}
    assert_decode(kernels, paged([(1, context) for context in contexts], num_kv_heads=1, **shape), num_splits)


def test_any_block_size():
    for block_size in (1, 5, 256):
        assert_decode(kernels, paged([(1, 70), (1, 3)], block_size=block_size))


def test_more_parts_than_tokens_and_a_batch_of_padding():
    assert_decode(kernels, paged([(1, 5), (1, 0), (1, 64)], num_kv_heads=1), num_splits=16)
    padding = paged([(1, 0), (1, 0)])
    for num_splits in (1, 8):
        out = kernels.paged_decode(*padding.decode_arguments, num_splits)
        assert torch.equal(out, torch.zeros_like(out))


def test_parts_change_nothing_but_the_last_bits():
    case = paged([(1, 700), (1, 33)])
    whole = kernels.paged_decode(*case.decode_arguments, 1)
    for num_splits in (2, 8):
        got = kernels.paged_decode(*case.decode_arguments, num_splits)
        torch.testing.assert_close(got, whole, atol=1e-6, rtol=1e-6)


def test_scores_far_apart_between_parts():
    """A part whose largest score lies 10 000 below another's weighs nothing, and nothing overflows."""
    case = paged([(1, 256)], group=1, num_kv_heads=1)
    case.cache[case.tables[0, 0].item() * 16, 0] = case.q[0, 0] * 1e4
    assert_decode(kernels, case, num_splits=4)


def test_moving_blocks_and_neighbours_changes_no_bit():
    case = paged([(1, 100), (1, 47), (1, 300)])
    whole = kernels.paged_decode(*case.decode_arguments, 2)
    moved = torch.randperm(case.cache.shape[0] // 16, generator=torch.Generator().manual_seed(1))
    scattered = torch.empty_like(case.cache)
    scattered.view(-1, 16, *case.cache.shape[1:])[moved] = case.cache.view(-1, 16, *case.cache.shape[1:])
    tables = moved[case.tables.long()].int()
    assert torch.equal(kernels.paged_decode(case.q, scattered, tables, case.contexts, 16, 2), whole)
    alone = kernels.paged_decode(case.q[1:2], case.cache, case.tables[1:2].contiguous(), case.contexts[1:2], 16, 2)
    assert torch.equal(alone[0], whole[1])


def test_query_heads_of_a_group_read_their_own_kv_head():
    """6 query heads on 2 KV heads with constant values: head h returns the constant of KV head h // 3."""
    case = paged([(1, 40)], group=3, num_kv_heads=2)
    case.cache[:, 1, 0], case.cache[:, 1, 1] = 1.0, 2.0
    got = kernels.paged_decode(*case.decode_arguments)[0, :, 0]
    torch.testing.assert_close(got, torch.tensor([1.0, 1, 1, 2, 2, 2]))


def test_a_slot_beyond_two_to_the_31_elements():
    """Offsets are 64 bits wide: the last block of a cache of 2.1 * 10^9 elements, of which one block is touched."""
    num_slots, head_dim = 2**31 // (2 * 64) + 64, 64
    cache = torch.from_numpy(
        np.empty((num_slots, 2, 1, head_dim), dtype=np.int8)
    )  # numpy's: never filled, so never there
    scales = torch.from_numpy(np.empty((num_slots, 2, 1), dtype=np.float32))
    last = num_slots // 16 - 1
    assert last * 16 * 2 * head_dim >= 2**31
    kv = torch.randn(16, 2, 1, head_dim)
    slots = torch.arange(last * 16, last * 16 + 16)
    kernels.store_kv_int8(cache, scales, kv, slots)
    q, tables, contexts = torch.randn(1, 2, head_dim), torch.tensor([[last]]).int(), torch.tensor([16]).int()
    got = kernels.paged_decode(q, cache, tables, contexts, 16, scales=scales)
    weights = (torch.einsum("hd,sd->hs", q[0], kv[:, 0, 0]) * head_dim**-0.5).softmax(-1)
    torch.testing.assert_close(got[0], weights @ kv[:, 1, 0], atol=3e-2, rtol=0)


def test_number_of_parts():
    assert decode_splits(1, 8, 8192, 132) == 64  # 8 programs are too few for 132 processors; 64 parts of 128 tokens
    assert decode_splits(64, 8, 8192, 132) == 1  # 512 programs are enough
    assert decode_splits(8, 8, 8192, 132) == 8
    assert decode_splits(1, 8, 200, 132) == 1  # nothing to cut
    assert decode_splits(1, 8, 1000, 132) == 4  # parts of 128 tokens or more
