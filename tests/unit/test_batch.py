"""The flat batch: positions, slots, groups and masks of hand-written steps, number by number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.runtime.batch import CacheLayout, bottom_right_mask, build_batch, decode_context
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request

LAYOUT = CacheLayout(block_size=4, zero_slot=400, trash_slot=401)
INF = float("inf")


def make(chunks: list[Chunk], layout: CacheLayout = LAYOUT):
    return build_batch(chunks, layout, torch.float32, torch.device("cpu"))


def chunk(name: str, num_tokens: int, start: int, size: int, blocks: list[int], phase="prefill", samples=True) -> Chunk:
    """Token ids of request "a" are 1000, 1001, ...; of "b" 2000, ..."""
    base = 1_000 * (ord(name) - ord("a") + 1)
    return Chunk(Request(name, [base + i for i in range(num_tokens)], 8), start, size, phase, blocks, samples)


def test_decode_row_has_position_and_slot_of_its_last_token():
    batch = make([chunk("a", 7, 6, 1, [9, 3], "decode")])
    assert batch.token_ids.tolist() == [1006]
    assert batch.positions.tolist() == [6]
    assert batch.slots.tolist() == [3 * 4 + 2]
    (group,) = batch.decode_groups
    assert (group.start, group.end, group.mask) == (0, 1, None)
    assert group.context_slots.tolist() == [[36, 37, 38, 39, 12, 13, 14]]


def test_prefill_chunk_from_the_start_needs_no_mask():
    batch = make([chunk("b", 6, 0, 6, [2, 5])])
    (part,) = batch.prefill_chunks
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.slots.tolist() == part.context_slots.tolist() == [8, 9, 10, 11, 20, 21]
    assert part.mask is None


def test_later_chunk_sees_the_positions_before_it():
    batch = make([chunk("b", 9, 4, 3, [2, 5, 7])])
    (part,) = batch.prefill_chunks
    assert batch.slots.tolist() == [20, 21, 22]
    assert part.context_slots.tolist() == [8, 9, 10, 11, 20, 21, 22]
    assert part.mask.tolist() == [
        [0, 0, 0, 0, 0, -INF, -INF],
        [0, 0, 0, 0, 0, 0, -INF],
        [0, 0, 0, 0, 0, 0, 0],
    ]


def test_single_tokens_come_first_and_logit_rows_follow_the_chunks():
    batch = make(
        [
            chunk("a", 5, 0, 5, [1, 2]),
            chunk("b", 3, 2, 1, [3], "decode"),
            chunk("c", 8, 2, 3, [4, 5], samples=False),
            chunk("d", 1, 0, 1, [6]),
        ]
    )
    assert batch.token_ids.tolist() == [2002, 4000, 1000, 1001, 1002, 1003, 1004, 3002, 3003, 3004]
    assert batch.logit_rows.tolist() == [6, 0, 1]  # a, b, d
    assert [(part.start, part.end) for part in batch.prefill_chunks] == [(2, 7), (7, 10)]
    (group,) = batch.decode_groups
    assert group.context_slots.tolist() == [[12, 13, 14], [24, 400, 400]]
    assert group.mask.tolist() == [[[[0, 0, 0]]], [[[0, -INF, -INF]]]]


def test_contexts_of_very_different_length_attend_apart():
    long_blocks = list(range(50))
    chunks = [
        chunk("a", 200, 199, 1, long_blocks, "decode"),
        chunk("b", 5, 4, 1, [60, 61], "decode"),
        chunk("c", 180, 179, 1, long_blocks[:45], "decode"),
        chunk("d", 31, 30, 1, list(range(70, 78)), "decode"),
    ]
    batch = make(chunks)
    assert batch.token_ids.tolist() == [2004, 4030, 1199, 3179]
    assert batch.logit_rows.tolist() == [2, 0, 3, 1]
    assert [tuple(group.context_slots.shape) for group in batch.decode_groups] == [(2, 31), (2, 200)]


def test_padding_rows_write_to_the_trash_slot_and_read_their_context():
    batch = make([chunk("a", 7, 5, 1, [9, 3], "padding", samples=False), chunk("b", 7, 6, 1, [1, 2], "decode")])
    assert batch.slots.tolist() == [401, 10]
    assert batch.positions.tolist() == [5, 6]
    assert batch.logit_rows.tolist() == [1]
    assert batch.decode_groups[0].context_slots.tolist()[0] == [36, 37, 38, 39, 12, 13, 400]


def test_a_row_without_context_looks_at_the_zero_slot_only():
    slots, mask = decode_context([[], [5]], [0, 3], LAYOUT, torch.float32)
    assert slots.tolist() == [[400, 400, 400], [20, 21, 22]]
    assert mask[0, 0, 0].tolist() == [0, -INF, -INF]
    slots, mask = decode_context([[]], [0], LAYOUT, torch.float32)
    assert slots.tolist() == [[400]]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (3, 3), (2, 7), (7, 40)])
def test_the_causal_mask_is_anchored_at_the_bottom_right(queries, keys):
    mask = bottom_right_mask(queries, keys, torch.float32)
    for query in range(queries):
        last_seen = keys - queries + query
        assert mask[query].tolist() == [0.0] * (last_seen + 1) + [-INF] * (keys - last_seen - 1)


def test_a_chunk_beyond_its_tokens_is_a_bug():
    with pytest.raises(AssertionError):
        make([chunk("a", 3, 2, 2, [0])])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_slots_of_live_tokens_are_never_shared(data):
    block_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    free = data.draw(st.permutations(range(60)))
    chunks = []
    for index in range(data.draw(st.integers(1, 6))):
        end = data.draw(st.integers(1, 40 if block_size > 2 else 9))
        start = data.draw(st.integers(0, end - 1))
        num_blocks = -(-end // block_size)
        blocks, free = list(free[:num_blocks]), free[num_blocks:]
        phase = data.draw(st.sampled_from(["prefill", "padding"])) if end - start == 1 else "prefill"
        name = chr(ord("a") + index)
        chunks.append(chunk(name, end, start, end - start, blocks, phase, samples=phase != "padding"))
    layout = CacheLayout(block_size, 60 * block_size, 60 * block_size + 1)
    batch = make(chunks, layout)
    slot_of = {}  # token id -> slot; token ids are unique over requests and positions
    for token_id, slot in zip(batch.token_ids.tolist(), batch.slots.tolist(), strict=True):
        slot_of[token_id] = slot
    for part in chunks:
        for position, token_id in enumerate(part.request.token_ids):
            if part.start <= position < part.start + part.num_tokens:
                table = part.block_ids
                expected = table[position // block_size] * block_size + position % block_size
                assert slot_of[token_id] == (layout.trash_slot if part.phase == "padding" else expected)
    live = [slot for slot in slot_of.values() if slot != layout.trash_slot]
    assert len(live) == len(set(live))
    rows = [batch.token_ids[row].item() for row in batch.logit_rows]
    assert rows == [part.request.token_ids[part.start + part.num_tokens - 1] for part in chunks if part.samples]
