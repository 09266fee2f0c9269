"""Paged attention against the formula written out, from a cache whose dead slots hold NaN."""

from __future__ import annotations

import math

import pytest
import torch

from engine.runtime.attention import PagedAttention
from engine.runtime.batch import CacheLayout, DecodeGroup, ForwardBatch, build_batch, decode_context
from engine.runtime.kv_cache import KVCache
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from tests.model_kit import small_spec

CPU = torch.device("cpu")


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k / sqrt(D)) v, bottom-right causal, head by head. q: [n, Hq, D]; k, v: [S, Hk, D]."""
    num_queries, num_heads, head_dim = q.shape
    out = torch.empty_like(q)
    for head in range(num_heads):
        kv_head = head // (num_heads // k.shape[1])
        for row in range(num_queries):
            seen = k.shape[0] - num_queries + row + 1
            weights = (k[:seen, kv_head] @ q[row, head] / math.sqrt(head_dim)).softmax(0)
            out[row, head] = weights @ v[:seen, kv_head]
    return out.flatten(1)


def poisoned(num_blocks: int, block_size: int, heads=(6, 2), head_dim=8) -> KVCache:
    spec = small_spec(num_layers=1, num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim)
    cache = KVCache(spec, num_blocks, block_size, torch.float32, CPU)
    cache.slots[:, : cache.zero_slot] = float("nan")
    cache.slots[:, cache.trash_slot] = float("nan")
    return cache


def attend(cache: KVCache, chunks: list[Chunk], q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """q, kv in the order of the chunks' tokens; the result likewise, whatever the row order of the batch."""
    layout = CacheLayout(cache.block_size, cache.zero_slot, cache.trash_slot)
    batch = build_batch(chunks, layout, torch.float32, CPU)
    given = [(c.request.request_id, p) for c in chunks for p in range(c.start, c.start + c.num_tokens)]
    order = sorted(range(len(chunks)), key=lambda i: chunks[i].num_tokens > 1)
    in_rows = [(chunks[i].request.request_id, p) for i in order for p in _positions(chunks[i])]
    rows = torch.tensor([given.index(token) for token in in_rows])
    assert batch.positions.tolist() == [position for _, position in in_rows]
    out = PagedAttention(cache, batch)(0, q[rows], kv[rows])
    return out[torch.argsort(rows)]


def _positions(chunk: Chunk) -> range:
    return range(chunk.start, chunk.start + chunk.num_tokens)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("num_new", "context"), [(1, 1), (1, 17), (2, 2), (2, 40), (7, 7), (7, 8), (7, 40), (33, 33)])
def test_every_shape_of_chunk_equals_the_formula(num_new, context, block_size):
    generator = torch.Generator().manual_seed(num_new * 100 + context)
    cache = poisoned(64, block_size)
    kv = torch.randn(context, 2, 2, 8, generator=generator)
    q = torch.randn(num_new, 6, 8, generator=generator)
    request = Request("r", list(range(context)), 1)
    request.block_ids = torch.randperm(64, generator=generator)[: -(-context // block_size)].tolist()
    old = context - num_new
    if old:
        slots = torch.tensor([request.block_ids[p // block_size] * block_size + p % block_size for p in range(old)])
        cache.store(0, slots, kv[:old])
    out = attend(cache, [Chunk(request, old, num_new, "prefill", request.block_ids, True)], q, kv[old:])
    torch.testing.assert_close(out, written_out(q, kv[:, 0], kv[:, 1]), atol=1e-5, rtol=1e-5)


def test_a_mixed_step_equals_its_parts_and_rows_do_not_see_each_other():
    generator = torch.Generator().manual_seed(0)
    cache, chunks, qs, kvs, expected = poisoned(64, 4), [], [], [], []
    free = torch.randperm(64, generator=generator).tolist()
    for name, (old, new) in {"a": (9, 1), "b": (0, 6), "c": (70, 1), "d": (3, 4), "e": (0, 1), "f": (11, 1)}.items():
        request = Request(name, list(range(old + new)), 1)
        request.block_ids = [free.pop() for _ in range(-(-(old + new) // 4))]
        kv = torch.randn(old + new, 2, 2, 8, generator=generator)
        q = torch.randn(new, 6, 8, generator=generator)
        for position in range(old):
            slot = request.block_ids[position // 4] * 4 + position % 4
            cache.store(0, torch.tensor([slot]), kv[position : position + 1])
        chunks.append(Chunk(request, old, new, "prefill", request.block_ids, True))
        qs.append(q)
        kvs.append(kv[old:])
        expected.append(written_out(q, kv[:, 0], kv[:, 1]))
    short = [
        i for i, c in enumerate(chunks) if c.start < 32
    ]  # "c" attends in a group of its own; keep row orders alike
    out = attend(
        cache, [chunks[i] for i in short], torch.cat([qs[i] for i in short]), torch.cat([kvs[i] for i in short])
    )
    torch.testing.assert_close(out, torch.cat([expected[i] for i in short]), atol=1e-5, rtol=1e-5)
    out = attend(cache, [chunks[0], chunks[2]], torch.cat([qs[0], qs[2]]), torch.cat([kvs[0], kvs[2]]))
    torch.testing.assert_close(out, torch.cat([expected[0], expected[2]]), atol=1e-5, rtol=1e-5)


def test_query_heads_map_to_kv_heads_by_division():
    cache = poisoned(4, 4)
    kv = torch.zeros(3, 2, 2, 8)
    kv[:, 1, 0], kv[:, 1, 1] = 10.0, 20.0  # the value tells its KV head
    request = Request("r", [1, 2, 3], 1)
    request.block_ids = [2]
    out = attend(cache, [Chunk(request, 0, 3, "prefill", [2], True)], torch.randn(3, 6, 8), kv).view(3, 6, 8)
    assert out[:, :, 0].tolist() == [[10.0, 10.0, 10.0, 20.0, 20.0, 20.0]] * 3
    out = attend(cache, [Chunk(request, 2, 1, "decode", [2], True)], torch.randn(1, 6, 8), kv[2:]).view(1, 6, 8)
    assert out[0, :, 0].tolist() == [10.0, 10.0, 10.0, 20.0, 20.0, 20.0]


def test_rows_without_context_give_zeros_beside_rows_with_one():
    cache = poisoned(4, 4)
    kv = torch.randn(1, 2, 2, 8)
    cache.store(0, torch.tensor([5]), kv)
    layout = CacheLayout(4, cache.zero_slot, cache.trash_slot)
    slots, mask = decode_context([[], [1]], [0, 2], layout, torch.float32)
    cache.store(0, torch.tensor([4]), kv)
    batch = ForwardBatch(
        token_ids=torch.zeros(2, dtype=torch.int64),
        positions=torch.zeros(2, dtype=torch.int64),
        slots=torch.full((2,), cache.trash_slot),
        logit_rows=torch.empty(0, dtype=torch.int64),
        decode_groups=(DecodeGroup(0, 2, slots, mask),),
        prefill_chunks=(),
    )
    out = PagedAttention(cache, batch)(0, torch.randn(2, 6, 8), torch.randn(2, 2, 2, 8))
    assert out[0].tolist() == [0.0] * 48
    torch.testing.assert_close(out[1].view(6, 8), kv[0, 1].repeat_interleave(3, dim=0))
