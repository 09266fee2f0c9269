"""Paged prefill against its twin."""

import pytest
import torch

import kernels.triton as kernels
from tests.kernels.interpreted.grid import grid, ids
from tests.kernels.interpreted.paged import assert_decode, assert_prefill, paged


def cost(case):
    """Rows times keys, and float32 tiles are a quarter of the others."""
    tiles = case["num_queries"] * case["group"] * (4 if case["dtype"] == torch.float32 else 1)
    return max(tiles, 64) * (1000 if case["prefix"] == "1000" else 64)


GRID = grid(
    cycled=("dtype", "int8"),
    cost=cost,
    num_queries=[1, 7, 64],
    prefix=["0", "1", "B-1", "B", "B+1", "1000"],
    head_dim=[64, 80, 128],
    group=[1, 2, 3, 4, 7],
    block_size=[16, 32],
    dtype=[torch.float32, torch.float16, torch.bfloat16],
    int8=[False, True],
)


def check(kernels, case):
    """One combination of the grid, with the launchers of ``kernels``."""
    shape = {name: value for name, value in case.items() if name not in ("num_queries", "prefix")}
    size, queries = shape["block_size"], case["num_queries"]
    prefix = {"B-1": size - 1, "B": size, "B+1": size + 1}.get(case["prefix"]) or int(case["prefix"])
    assert_prefill(kernels, paged([(queries, prefix + queries)], num_kv_heads=1, **shape))


@pytest.mark.parametrize("case", GRID, ids=ids(GRID))
def test_chunk_after_a_cached_prefix(case):
    check(kernels, case)


def test_chunks_of_all_lengths_side_by_side_with_padding():
    chunks = [(7, 7), (64, 80), (1, 33), (3, 0), (1, 1), (20, 20)]
    for poison in (float("nan"), "hundred"):
        assert_prefill(kernels, paged(chunks, poison=poison))
    out = kernels.paged_prefill(*paged(chunks).prefill_arguments)
    assert torch.equal(out[72:75], torch.zeros_like(out[72:75])), "a chunk without context gives zeros"


def test_large_tiles():
    """From 512 (query, head) rows on a tile is 128 rows; several tiles, the last one not full."""
    for group, head_dim in ((7, 64), (4, 128)):
        case = paged([(150, 170)], group=group, num_kv_heads=1, head_dim=head_dim, dtype=torch.float16)
        assert_prefill(kernels, case)
        assert_prefill(
            kernels, paged([(150, 170)], group=group, num_kv_heads=1, head_dim=head_dim, dtype=torch.float16, int8=True)
        )


def test_the_whole_equals_its_parts():
    """prefill(64) gives the rows of prefill(20) and of 44 more after a cached prefix of 20."""
    case = paged([(64, 64)])
    whole = kernels.paged_prefill(*case.prefill_arguments)
    for first, end in ((0, 20), (20, 64)):
        starts, context = torch.tensor([0, end - first]).int(), torch.tensor([end]).int()
        part = kernels.paged_prefill(case.q[first:end], case.cache, case.tables, context, starts, 16, end - first)
        torch.testing.assert_close(part, whole[first:end], atol=1e-6, rtol=1e-6)


def test_a_chunk_of_one_is_a_decode_row():
    case = paged([(1, 90), (1, 17)])
    assert_decode(kernels, case)
    decoded = kernels.paged_decode(*case.decode_arguments)
    torch.testing.assert_close(kernels.paged_prefill(*case.prefill_arguments), decoded, atol=1e-6, rtol=1e-6)


def test_a_query_sees_nothing_after_itself():
    """Changing the last key and value changes the last row alone."""
    case = paged([(9, 25)])
    before = kernels.paged_prefill(*case.prefill_arguments)
    case.cache[int(case.tables[0, 1]) * 16 + 24 - 16] = 3.0
    after = kernels.paged_prefill(*case.prefill_arguments)
    assert torch.equal(after[:8], before[:8])
    assert not torch.equal(after[8], before[8])
