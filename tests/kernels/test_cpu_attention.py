"""Paged attention on the CPU against its torch twin, from caches whose dead slots hold NaN."""

import pytest
import torch

from kernels.cpu.library import RowChunk
from kernels.reference import paged_attention

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


class _Case:
    """A poisoned cache and chunks whose blocks lie scattered in it."""

    def __init__(self, contexts, rows, group=3, kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32):
        noise = torch.Generator().manual_seed(len(contexts) * 1000 + sum(contexts))
        needed = [-(-context // block_size) for context in contexts]
        order = torch.randperm(sum(needed) + 3, generator=noise).tolist()
        cache = torch.full(((sum(needed) + 3) * block_size, 2, kv_heads, head_dim), float("nan"), dtype=dtype)
        self.chunks = []
        for context, num_rows, blocks in zip(contexts, rows, needed, strict=True):
            table = tuple(order.pop() for _ in range(blocks))
            for p in range(context):
                slot = table[p // block_size] * block_size + p % block_size
                cache[slot] = torch.randn((2, kv_heads, head_dim), generator=noise).to(dtype)
            first_row = sum(chunk.num_rows for chunk in self.chunks)
            self.chunks.append(RowChunk(first_row, num_rows, context, table))
        self.q = torch.randn((sum(rows), kv_heads * group, head_dim), generator=noise).to(dtype)
        self.keys, self.values, self.block_size, self.dtype = cache[:, 0], cache[:, 1], block_size, dtype

    def check(self, library):
        arguments = (self.q, self.keys, self.values, self.block_size, self.chunks)
        got, wanted = library.paged_attention(*arguments), paged_attention(*arguments)
        assert wanted.isfinite().all()
        torch.testing.assert_close(got.float(), wanted.float(), atol=TOLERANCE[self.dtype], rtol=TOLERANCE[self.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
def test_heads(cpu_library, group, head_dim, dtype):
    _Case([130, 17], [1, 9], group=group, head_dim=head_dim, dtype=dtype).check(cpu_library)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("context", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000])
def test_one_row_of_any_context(cpu_library, context, block_size, dtype):
    _Case([context], [1], block_size=block_size, dtype=dtype).check(cpu_library)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cached", [0, 1, 15, 64, 200])
@pytest.mark.parametrize("rows", [2, 7, 16, 17, 64, 65])
def test_chunks_see_what_is_cached_and_themselves_up_to_the_diagonal(cpu_library, rows, cached, dtype):
    _Case([cached + rows], [rows], dtype=dtype).check(cpu_library)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixed_batch_with_padding(cpu_library, dtype):
    _Case([300, 0, 40, 1, 0, 700, 33], [1, 1, 40, 1, 2, 1, 5], dtype=dtype).check(cpu_library)


def test_many_decoding_rows_share_the_threads_without_splitting(cpu_library):
    _Case([200 + 40 * i for i in range(12)], [1] * 12).check(cpu_library)


def test_padding_rows_give_zeros_whatever_the_cache_holds(cpu_library):
    case = _Case([0, 0], [1, 3])
    got = cpu_library.paged_attention(case.q, case.keys, case.values, 16, case.chunks)
    assert torch.equal(got, torch.zeros_like(case.q))


def test_the_heads_of_a_slot_may_lie_anywhere(cpu_library):
    """Strided caches: [slot, 2, head, d] as the engine has it, and [head, slot, d]."""
    case = _Case([50], [3])
    wanted = paged_attention(case.q, case.keys, case.values, 16, case.chunks)
    keys, values = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (case.keys, case.values))
    got = cpu_library.paged_attention(case.q, keys, values, 16, case.chunks)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-6)


def test_large_scores_do_not_overflow(cpu_library):
    case = _Case([200], [5])
    case.q *= 300
    arguments = (case.q, case.keys, case.values, 16, case.chunks)
    torch.testing.assert_close(
        cpu_library.paged_attention(*arguments), paged_attention(*arguments), atol=1e-4, rtol=1e-4
    )


def test_slots_that_do_not_exist_are_refused(cpu_library):
    case = _Case([20], [1])
    with pytest.raises(AssertionError, match="blocks lie in the cache"):
        cpu_library.paged_attention(case.q, case.keys, case.values, 16, [RowChunk(0, 1, 20, (0, 99))])
    with pytest.raises(AssertionError, match="cover the context"):
        cpu_library.paged_attention(case.q, case.keys, case.values, 16, [RowChunk(0, 1, 20, (0,))])
