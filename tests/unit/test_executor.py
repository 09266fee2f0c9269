"""The executor: its three calls with chunks as the engine gives them, its work, its refusals."""

from __future__ import annotations

import pytest
import torch

from engine.lab.scenario import Limits, ScenarioError
from engine.model.load import load_model
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.text import TextStream
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request

LIMITS = Limits(max_requests=4, max_batch_tokens=64, num_blocks=32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return load_model("tiny-random", models_dir=tmp_path_factory.mktemp("models"), device="cpu")


def served(
    tiny, requests: list[Request], policy="chunked", limits=LIMITS, block_size=16, seed=0
) -> dict[str, list[int]]:
    engine = Engine(TorchExecutor(tiny, limits, block_size, seed=seed), policy, limits, block_size)
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return {request.request_id: request.output_token_ids for request in requests}


def test_one_token_for_each_chunk_that_samples_in_order(tiny):
    executor = TorchExecutor(tiny, LIMITS)
    a, b, c = (Request(name, list(range(5, 5 + n)), 4) for name, n in (("a", 9), ("b", 20), ("c", 1)))
    chunks = [
        Chunk(a, 0, 9, "prefill", [3], True),
        Chunk(b, 0, 8, "prefill", [7, 2], False),
        Chunk(c, 0, 1, "prefill", [9], True),
    ]
    batch = executor.prepare(chunks)
    logits = executor.forward(batch)
    assert logits.shape == (2, 259)
    assert executor.sample(logits, chunks) == logits.argmax(-1).tolist()
    assert executor.backend == "eager"


def test_work_counts_what_the_chunks_say(tiny):
    executor = TorchExecutor(tiny, LIMITS)
    request = Request("a", list(range(20)), 4)
    done = Request("b", list(range(8)), 4)
    work = executor.work([Chunk(request, 0, 20, "prefill", [0, 1], True), Chunk(done, 7, 1, "padding", [2], False)])
    assert (work.tokens, work.padding_tokens) == (20, 1)
    assert work.weight_bytes == tiny.info.weight_bytes
    assert work.kv_write_bytes == 20 * 2 * 4 * 2 * 32 * 4  # tokens, K and V, layers, heads, head_dim, float32
    assert work.kv_read_bytes == 28 * 2 * 4 * 2 * 32 * 4


def test_model_info_says_what_a_step_reads(tiny):
    parameters = sum(w.numel() for w in (tiny.decoder.embedding, tiny.decoder.final_norm))
    spec = tiny.spec
    per_layer = spec.hidden_size * (spec.qkv_size + 128 + 3 * 256) + 2 * spec.hidden_size
    assert tiny.info.num_parameters == parameters + spec.num_layers * per_layer + 259 * 128
    assert tiny.info.weight_bytes == (tiny.info.num_parameters - 259 * 128) * 4
    assert tiny.info.model_extra["tie_word_embeddings"] is False


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_seeded_requests_do_not_depend_on_neighbours_or_chunks(tiny, policy):
    def request(name: str, seed: int | None) -> Request:
        return Request(name, list(range(40, 65)), 12, ignore_eos=True, temperature=1.0, top_p=0.95, top_k=40, seed=seed)

    alone = served(tiny, [request("a", 5)])["a"]
    small = Limits(max_requests=4, max_batch_tokens=7, num_blocks=32)
    many = [request("x", 1), request("a", 5), request("y", None), request("z", 5)]
    together = served(tiny, many, policy, small, block_size=4)
    assert together["a"] == together["z"] == alone
    assert together["x"] != alone
    assert together["y"] not in (alone, together["x"])


def test_a_request_without_seed_follows_the_runs_seed(tiny):
    def output(seed: int) -> list[int]:
        return served(tiny, [Request("a", [9, 8, 7], 10, ignore_eos=True, temperature=2.0)], seed=seed)["a"]

    assert output(1) == output(1)
    assert output(1) != output(2)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_preemption_blocks_and_policy_change_no_greedy_token(tiny, policy, block_size):
    def requests() -> list[Request]:
        return [Request(f"r{n}", list(range(20 + n, 40 + 2 * n)), 15, ignore_eos=True) for n in range(4)]

    alone = {}
    for request in requests():
        alone |= served(tiny, [request])
    tight = Limits(max_requests=4, max_batch_tokens=9, num_blocks=-(-75 // block_size))
    crowd = requests()
    assert served(tiny, crowd, policy, tight, block_size) == alone
    if policy == "chunked":
        assert sum(request.num_preemptions for request in crowd) > 0


def test_two_executors_share_a_model_and_nothing_else(tiny):
    first = served(tiny, [Request("a", list(range(30)), 10, ignore_eos=True)])
    second = served(tiny, [Request("a", list(range(30)), 10, ignore_eos=True)])
    assert first == second


def test_text_of_the_tiny_model_can_be_shown(tiny):
    request, text = Request("a", tiny.tokenizer.encode("Hello"), 30), TextStream(tiny.tokenizer)
    engine = Engine(TorchExecutor(tiny, LIMITS), "chunked", LIMITS, 16)
    engine.add(request, text, tiny.eos_token_ids)
    while engine.has_work:
        engine.step()
    assert request.finish_reason == "length"
    assert len(text.text) == 30
    assert text.text.isprintable()


def test_warm_up_writes_no_slot_of_the_pool(tiny):
    executor = TorchExecutor(tiny, LIMITS)
    executor.cache.slots.fill_(0.0)
    executor.warm_up()
    assert not executor.cache.slots[:, : executor.cache.trash_slot].any()
    assert executor.cache.slots[:, executor.cache.trash_slot].any()


@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_a_quantized_cache_serves_through_preemption_and_counts_its_scales(tiny, policy, kv_dtype):
    requests = [Request(f"r{n}", list(range(20 + n, 40 + 2 * n)), 15, ignore_eos=True) for n in range(4)]
    tight = Limits(max_requests=4, max_batch_tokens=9, num_blocks=9)
    executor = TorchExecutor(tiny, tight, 8, kv_dtype=kv_dtype)
    executor.warm_up()
    engine = Engine(executor, policy, tight, 8)
    for request in requests:
        engine.add(request)
    records = []
    while engine.has_work:
        records.append(engine.step())
    assert [request.num_output_tokens for request in requests] == [15] * 4
    if policy == "chunked":
        assert sum(request.num_preemptions for request in requests) > 0
    per_block = {"int8": 2 * 8 * 2 * 32 + 2 * (2 * 32 + 8 * 2), "int4": 8 * 2 * 32 + 4 * (2 * 32 + 8 * 2)}[kv_dtype]
    assert executor.cache.block_bytes == 4 * per_block
    written = sum(record.work.tokens for record in records)
    assert sum(r.work.kv_write_bytes for r in records) == pytest.approx(written * 4 * per_block / 8, rel=1e-6)


def test_a_quantized_cache_errs_little_and_less_with_more_bits(tiny):
    """The tokens are given, so that one other choice early on does not make everything after it another text."""
    token_ids = list(range(30, 90))
    request = Request("r", token_ids, 1)
    found = {}
    for kv_dtype in (None, "int8", "int4"):
        executor = TorchExecutor(tiny, LIMITS, 16, kv_dtype=kv_dtype)
        logits = []
        for start, size in [(0, 37), *((p, 1) for p in range(37, 60))]:
            request.block_ids = [9, 4, 7, 2][: -(-(start + size) // 16)]
            chunk = Chunk(request, start, size, "prefill", request.block_ids, True)
            logits.append(executor.forward(executor.prepare([chunk])))
        found[kv_dtype] = torch.cat(logits)
    error = {kv: float((found[kv] - found[None]).abs().max()) for kv in ("int8", "int4")}
    assert 0 < 5 * error["int8"] < error["int4"] < 0.3 * found[None].abs().max()


def test_the_cache_is_in_the_models_dtype_unless_asked_and_other_dtypes_are_refused(tiny):
    assert TorchExecutor(tiny, LIMITS, kv_dtype="float32").cache.slots.dtype == torch.float32
    with pytest.raises(ScenarioError, match=r"kv_dtype is .bfloat16.; allowed: null .*, int8, int4") as caught:
        TorchExecutor(tiny, LIMITS, kv_dtype="bfloat16")
    assert caught.value.field == "kv_dtype"
