"""What the long-context lesson counts is what the engine does: bytes of a block, requests at once from one memory."""

from __future__ import annotations

import pytest

from engine.runtime.kv_quant import kv_format
from lessons.long_context.facts import all_kinds
from lessons.long_context.scenarios import BLOCK_SIZE, KINDS, OWN_BLOCKS, block_bytes, num_blocks
from tests.unit.lesson_cases.long_context import study
from tests.unit.lesson_runs import MODEL


@pytest.mark.parametrize(("role", "kv_dtype"), [("own8", "int8"), ("own4", "int4")])
def test_the_bytes_of_a_block_are_the_engines(role: str, kv_dtype: str) -> None:
    engine = kv_format(kv_dtype).block_bytes(MODEL.num_layers, BLOCK_SIZE, MODEL.num_kv_heads, MODEL.head_dim)
    assert block_bytes(MODEL, KINDS[role]) == engine


def test_every_kind_has_the_same_memory() -> None:
    pool = OWN_BLOCKS * block_bytes(MODEL, KINDS["own16"])
    for kind in KINDS.values():
        used = num_blocks(MODEL, kind) * block_bytes(MODEL, kind)
        assert pool - block_bytes(MODEL, kind) < used <= pool


def test_fewer_heads_and_fewer_bits_make_room_for_more_requests_at_once() -> None:
    """The famous effect, counted: requests in one step, from the same number of bytes."""
    found = all_kinds(study())
    at_once = {role: kept.at_once for role, kept in found.items()}
    assert at_once["mha16"] < at_once["own16"] < at_once["own8"] < at_once["own4"] <= at_once["mqa16"]
    assert all(kept.at_once == kept.modelled_at_once for kept in found.values())
    assert found["mha16"].bytes_per_token == found["own16"].bytes_per_token * MODEL.num_heads / MODEL.num_kv_heads
