"""The life of one request, from ``Engine.add`` to its last record. Written to be read: start here.

A step of the engine is ``decide -> forward -> commit -> record``. This test makes the steps of one request by hand, one
function at a time, in the order in which ``Engine.step`` calls them, and says after each call what has changed and
where. The model is real but tiny (random weights, one token per byte), so its text means nothing; everything else is
what happens with a trained model. The second test lets ``Engine.step`` do the same alone and compares.

The request has a prompt of 20 tokens and may say 6. A block holds 8 positions, a step may compute 12 tokens.
"""

import pytest
import torch

from engine.lab.scenario import Limits
from engine.model.load import load_model
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.text import TextStream
from engine.scheduling.invariants import check_empty, check_invariants
from engine.scheduling.requests import Request, Status
from engine.scheduling.scheduler import ends_at_max_tokens

PROMPT = "One request's story."
BLOCK_SIZE = 8
LIMITS = Limits(max_requests=4, max_batch_tokens=12, num_blocks=10, prefix_cache="radix")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return load_model("tiny-random", models_dir=tmp_path_factory.mktemp("models"), device="cpu")


def new_engine(tiny):
    ticks = iter(range(10_000))
    executor = TorchExecutor(tiny, LIMITS, BLOCK_SIZE)
    return Engine(executor, "chunked", LIMITS, BLOCK_SIZE, clock=lambda: next(ticks) / 1000)


def new_request(tiny, name="story", arrival_s=0.0):
    return Request(name, tiny.tokenizer.encode(PROMPT), max_tokens=6, arrival_s=arrival_s, ignore_eos=True)


def test_the_life_of_one_request_function_by_function(tiny):
    engine, request = new_engine(tiny), new_request(tiny)
    scheduler, executor = engine.scheduler, engine.executor
    policy, pool, prefix = scheduler.policy, scheduler.pool, scheduler.prefix
    text = TextStream(tiny.tokenizer)

    # ---- It comes. The scheduler keeps it until its time of arrival; nothing is computed and no block is taken.
    engine.add(request, text)
    assert request.status is Status.WAITING
    assert (request.num_tokens, request.num_computed_tokens, request.block_ids) == (20, 0, [])
    assert scheduler.next_arrival_s == 0.0 and not policy.waiting

    # ---- Step 0, decide. It has arrived, so the policy considers it: no prefix of it is cached, the pool has room for
    # all 20 tokens, the budget for 12 of them. It is admitted and gets the blocks that its first chunk needs.
    decision = scheduler.decide(now_s=0.0)
    assert decision.scheduled == {"story": 12}
    assert (decision.admitted, decision.preempted, decision.refused) == (["story"], [], [])
    assert request.status is Status.RUNNING and policy.running == [request]
    assert (request.block_ids, pool.num_free) == ([0, 1], 8)
    assert request.num_computed_tokens == 0  # a decision is a plan: nothing counts before it is committed

    # The decision as the executor sees it: positions [0, 12) of the request, not the last ones, so no token comes out.
    (chunk,) = scheduler.chunks(decision)
    assert (chunk.start, chunk.num_tokens, chunk.phase, chunk.samples) == (0, 12, "prefill", False)

    # ---- Step 0, forward. One flat row per token; position p lives in slot block_ids[p // 8] * 8 + p % 8.
    batch = executor.prepare([chunk])
    assert batch.token_ids.tolist() == request.prompt_token_ids[:12]
    assert batch.positions.tolist() == batch.slots.tolist() == list(range(12))
    logits = executor.forward(batch)
    assert logits.shape[0] == 0  # keys and values are stored now; that was the point of this step
    assert executor.sample(logits, [chunk]) == []

    # ---- Step 0, commit. The counter catches up, and the block that is full can be found by others from now on.
    assert scheduler.commit([chunk], [], ends_at_max_tokens) == []
    assert (request.num_computed_tokens, request.num_remaining_tokens) == (12, 8)
    assert prefix.match(request.token_ids) == [0] and pool.published == {0}
    assert [(op, block_id) for op, block_id, _ in pool.take_events()] == [("alloc", 0), ("alloc", 1), ("publish", 0)]

    # ---- Step 1: the other 8 tokens of the prompt, in the same way. This chunk reaches the request's last token, so
    # the logits of its last row give the 21st: the first token of the answer. Here its time to first token ends.
    decision = scheduler.decide(now_s=0.1)
    (chunk,) = scheduler.chunks(decision)
    assert (chunk.start, chunk.num_tokens, chunk.samples, chunk.block_ids) == (12, 8, True, [0, 1, 2])
    logits = executor.forward(executor.prepare([chunk]))
    assert logits.shape == (1, tiny.info.vocab_size)
    (first,) = executor.sample(logits, [chunk])
    assert first == int(torch.argmax(logits))  # temperature 0
    assert scheduler.commit([chunk], [first], ends_at_max_tokens) == [(request, first, None)]
    assert (request.output_token_ids, request.num_tokens, request.num_computed_tokens) == ([first], 21, 20)
    assert text.push(first) == tiny.tokenizer.decode([first])

    # ---- Steps 2 to 6: one token a step. The same rule as before, compute what is not computed, which is now always
    # the one token that came out last. Its position is num_tokens - 1. A fourth block is taken when the third is full.
    for step in range(2, 7):
        decision = scheduler.decide(now_s=step / 10)
        assert decision.scheduled == {"story": 1}
        (chunk,) = scheduler.chunks(decision)
        assert (chunk.phase, chunk.start) == ("decode", 18 + step)
        assert request.block_ids == ([0, 1, 2] if chunk.start < 24 else [0, 1, 2, 3])
        (token,) = executor.sample(executor.forward(executor.prepare([chunk])), [chunk])
        scheduler.commit([chunk], [token], ends_at_max_tokens)
        assert (request.num_computed_tokens, request.num_tokens) == (19 + step, 20 + step)
        text.push(token)

    # ---- The end. With its sixth token it is over, and commit has given back its blocks, the last one first. Three of
    # them hold full, published text: they stay cached, for whoever begins like this. The fourth is free again.
    assert (request.status, request.finish_reason) == (Status.FINISHED, "length")
    assert (request.block_ids, pool.num_in_use, pool.num_cached, pool.num_free) == ([], 0, 3, 7)
    assert [block_id for op, block_id, _ in pool.take_events() if op == "release"] == [3, 2, 1, 0]
    assert not scheduler.has_unfinished
    check_empty(scheduler)
    assert text.text + text.finish() == tiny.tokenizer.decode(request.output_token_ids)

    # ---- What it leaves behind: another one with the same prompt finds the first 16 tokens computed. (Not 20: the
    # third block holds positions [16, 24), and what is found is whole blocks, never the last token.)
    again = new_request(tiny, "again")
    engine.add(again)
    (chunk,) = scheduler.chunks(scheduler.decide(now_s=1.0))
    assert (chunk.start, chunk.num_tokens, chunk.num_cached_tokens, chunk.samples) == (16, 4, 16, True)
    assert [(op, block_id) for op, block_id, _ in pool.take_events()] == [("share", 0), ("share", 1), ("alloc", 3)]
    assert executor.sample(executor.forward(executor.prepare([chunk])), [chunk]) == [first]


def test_the_same_life_as_its_records_tell_it(tiny):
    engine, request, text = new_engine(tiny), new_request(tiny), TextStream(tiny.tokenizer)
    engine.add(request, text)
    records = []
    while engine.has_work:
        records.append(engine.step())
        check_invariants(engine.scheduler)

    told = [(row.start, row.num_tokens, row.phase, row.is_last_chunk) for r in records for row in r.scheduled]
    assert told == [(0, 12, "prefill", False), (12, 8, "prefill", True)] + [
        (20 + i, 1, "decode", True) for i in range(5)
    ]
    assert [r.blocks.in_use for r in records] == [2, 3, 3, 3, 3, 3, 0]  # after the step
    assert [output.token_id for r in records for output in r.outputs] == request.output_token_ids
    assert [r.outputs[0].finish_reason for r in records[1:]] == [None] * 5 + ["length"]
    assert all(r.work.tokens == sum(row.num_tokens for row in r.scheduled) for r in records)

    # Its own record: when it came, was first scheduled, said its first word, was done. From these four come queueing
    # time, TTFT, TPOT and end-to-end latency (engine.lab.latency), on every page.
    (record,) = engine.request_records()
    assert record.arrival_s <= record.first_scheduled_s == records[0].t_begin_s
    assert (record.first_token_s, record.completion_s) == (records[1].t_end_s, records[6].t_end_s)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (20, 6, "length")
    assert text.text == tiny.tokenizer.decode(record.output_token_ids)
