"""The KV tensors: bytes by the formula, two slots outside the pool, and a sentence when memory does not reach."""

from __future__ import annotations

import pytest
import torch

from engine.lab.scenario import ScenarioError
from engine.runtime.kv_cache import KVCache, kv_block_bytes
from tests.model_kit import small_spec

CPU = torch.device("cpu")


def test_block_bytes_are_two_times_layers_slots_heads_dim_bytes():
    spec = small_spec()
    assert kv_block_bytes(spec, 16, torch.bfloat16) == 2 * 2 * 16 * 2 * 12 * 2
    cache = KVCache(spec, 5, 16, torch.float32, CPU)
    pool_bytes = cache.slots[:, : cache.zero_slot].numel() * 4
    assert pool_bytes == 5 * cache.block_bytes == 5 * kv_block_bytes(spec, 16, torch.float32)


def test_what_is_stored_is_gathered():
    cache = KVCache(small_spec(), 3, 4, torch.float32, CPU)
    kv = torch.randn(2, 2, 2, 12)
    cache.store(1, torch.tensor([7, 0]), kv)
    assert torch.equal(cache.gather(1, torch.tensor([0, 7, 0])), kv[[1, 0, 1]])


def test_the_extra_slots_lie_outside_the_pool_and_begin_as_zeros():
    cache = KVCache(small_spec(), 3, 4, torch.float32, CPU)
    assert (cache.zero_slot, cache.trash_slot) == (12, 13)
    assert cache.slots.shape == (2, 14, 2, 2, 12)
    assert not cache.slots[:, 12:].any()


def test_more_blocks_than_memory_are_refused_with_the_possible_number(monkeypatch):
    class Memory:
        available = 1_000_000

    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory)
    spec = small_spec()
    most = 1_000_000 // kv_block_bytes(spec, 16, torch.float32)
    KVCache(spec, most, 16, torch.float32, CPU)
    with pytest.raises(ScenarioError, match=f"num_blocks {most + 1} needs .* up to {most}") as caught:
        KVCache(spec, most + 1, 16, torch.float32, CPU)
    assert caught.value.field == "limits.num_blocks"
