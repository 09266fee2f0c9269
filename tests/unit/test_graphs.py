"""Decode graphs without a GPU: buckets, padding and buffers, with a recorder that calls the function again."""

import random

import pytest
import torch

from engine.runtime.graphs import DecodeGraphs, bucket_sizes
from engine.runtime.paged_batch import HostBatch, PagedBatch, to_device

CPU = torch.device("cpu")
VOCAB = 6


class CallAgain:
    """Records nothing; its replay calls the function again and overwrites the first result."""

    def __init__(self):
        self.sizes = []

    def __call__(self, function):
        out = function()
        self.sizes.append(out.shape[0])
        return out, lambda: out.copy_(function())


def forward(batch: PagedBatch) -> torch.Tensor:
    """Logits that tell everything a row was given: token, position, slot, context and the blocks of its context."""
    width = batch.tables.shape[1]
    read = torch.arange(width)[None, :] * 4 < batch.contexts[:, None]  # blocks of 4
    blocks = (torch.where(read, batch.tables, 0) * torch.arange(1, width + 1)).sum(1)
    rows = [batch.token_ids, batch.positions, batch.slots, batch.contexts, blocks, torch.zeros_like(blocks)]
    return torch.stack([row.double() for row in rows], dim=1).index_select(0, batch.logit_rows)


def step(rows, samples=None) -> HostBatch:
    """rows: (token, context, table) of each."""
    slots = [table[(context - 1) // 4] * 4 + (context - 1) % 4 for _, context, table in rows]
    contexts = [context for _, context, _ in rows]
    logit_rows = list(range(len(rows))) if samples is None else samples
    positions = [context - 1 for context in contexts]
    return HostBatch(
        [token for token, _, _ in rows], positions, slots, logit_rows, [t for _, _, t in rows], contexts, [0], 0
    )


def test_buckets():
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(3) == (1, 2, 3)
    assert bucket_sizes(16) == (1, 2, 4, 8, 16)
    assert bucket_sizes(40) == (1, 2, 4, 8, 16, 32, 40)
    assert bucket_sizes(64) == (1, 2, 4, 8, 16, 32, 48, 64)


def test_the_smallest_bucket_that_holds_the_step_is_replayed():
    recorder = CallAgain()
    graphs = DecodeGraphs(forward, recorder, 8, 4, CPU)
    graphs.run(step([(1, 3, [9])] * 3))
    graphs.run(step([(1, 3, [9])] * 4))
    graphs.run(step([(1, 3, [9])]))
    assert recorder.sizes == [4, 1]
    graphs.record_all()
    assert recorder.sizes == [4, 1, 8, 2], "the largest first, and none twice"


def test_rows_that_are_not_there_have_no_slot_and_no_context():
    seen = []

    def watch(batch):
        seen.append((batch.slots.tolist(), batch.contexts.tolist()))
        return forward(batch)

    DecodeGraphs(watch, CallAgain(), 4, 4, CPU).run(step([(1, 3, [9])] * 3))
    assert seen[0] == ([-1] * 4, [0] * 4), "while recording no row is there"
    assert seen[-1] == ([38, 38, 38, -1], [3, 3, 3, 0])


def test_a_hundred_steps_of_changing_size_and_tables_equal_the_eager_ones():
    """Requests come, go, swap rows, grow and reuse each other's blocks: nothing of an earlier step may be left."""
    dice = random.Random(0)
    graphs = DecodeGraphs(forward, CallAgain(), 6, 5, CPU)
    for _ in range(100):
        rows = []
        for _ in range(dice.randint(1, 6)):
            context = dice.randint(1, 20)
            rows.append((dice.randrange(50), context, [dice.randrange(1, 30) for _ in range(-(-context // 4))]))
        samples = [row for row in range(len(rows)) if dice.random() < 0.8]
        dice.shuffle(samples)
        batch = step(rows, samples)
        assert torch.equal(graphs.run(batch), forward(to_device(batch, CPU)))


def test_a_table_that_grows_in_place_is_seen():
    """The scheduler appends to a request's list of blocks; a copy that is compared with itself would never change."""
    graphs, table = DecodeGraphs(forward, CallAgain(), 1, 5, CPU), [7]
    graphs.run(step([(1, 4, table)]))
    table.append(8)
    batch = step([(1, 5, table)])
    assert torch.equal(graphs.run(batch), forward(to_device(batch, CPU)))


def test_what_no_graph_holds():
    graphs = DecodeGraphs(forward, CallAgain(), 2, 4, CPU)
    assert graphs.holds(step([(1, 16, [1, 2, 3, 4])] * 2))
    assert not graphs.holds(step([(1, 3, [1])] * 3)), "more rows than the largest bucket"
    assert not graphs.holds(step([(1, 17, [1, 2, 3, 4, 5])])), "more blocks than a row of the table"
    with pytest.raises(AssertionError):
        graphs.run(step([(1, 3, [1])] * 3))
