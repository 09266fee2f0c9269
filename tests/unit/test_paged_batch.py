"""A step's numbers as a GPU's kernels take them."""

import torch

from engine.runtime.paged_batch import NOWHERE, host_batch, to_device
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request


def chunk(name, tokens, start, num_tokens, blocks, phase="decode", samples=True):
    return Chunk(Request(name, tokens, max_tokens=4), start, num_tokens, phase, blocks, samples)


MIXED = [
    chunk("long", [10, 11, 12, 13, 14], 1, 4, [3, 8], "prefill"),
    chunk("a", [20, 21, 22], 2, 1, [5]),
    chunk("part", [30, 31, 32, 33], 0, 3, [7], "prefill", samples=False),
    chunk("done", [40, 41, 42, 43, 44], 4, 1, [1, 2], "padding", samples=False),
]


def test_single_tokens_first_then_the_longer_chunks():
    batch = host_batch(MIXED, block_size=4)
    assert batch.token_ids == [22, 44, 11, 12, 13, 14, 30, 31, 32]
    assert batch.positions == [2, 4, 1, 2, 3, 4, 0, 1, 2]
    assert batch.tables == [[5], [1, 2], [3, 8], [7]]
    assert batch.contexts == [3, 5, 5, 3], "the tokens seen by the last row of each"
    assert batch.query_starts == [0, 4, 7]
    assert (batch.num_single, batch.longest_chunk, batch.is_decode) == (2, 4, False)


def test_slots_follow_the_table_and_padding_has_none():
    batch = host_batch(MIXED, block_size=4)
    assert batch.slots == [5 * 4 + 2, NOWHERE, 3 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3, 8 * 4, 7 * 4, 7 * 4 + 1, 7 * 4 + 2]


def test_logit_rows_are_in_the_order_of_the_chunks():
    """The first chunk samples from its last row, 5; the second is row 0."""
    assert host_batch(MIXED, block_size=4).logit_rows == [5, 0]


def test_on_the_device_tables_are_filled_up():
    batch = to_device(host_batch(MIXED, block_size=4), torch.device("cpu"))
    assert batch.tables.tolist() == [[5, 0], [1, 2], [3, 8], [7, 0]]
    assert batch.contexts.tolist() == [3, 5, 5, 3] and batch.query_starts.tolist() == [0, 4, 7]
    assert batch.slots.dtype == torch.int64 and batch.tables.dtype == batch.contexts.dtype == torch.int32
    assert batch.num_single == 2 and batch.logit_rows.tolist() == [5, 0]


def test_blocks_beyond_the_context_are_left_out():
    """A request may hold more blocks than the step needs; a table as wide as them would be copied for nothing."""
    batch = host_batch([chunk("a", [1, 2, 3], 2, 1, [5, 6, 7])], block_size=4)
    assert batch.tables == [[5]] and batch.is_decode
