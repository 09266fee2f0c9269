"""The engine on Triton kernels: same tokens as on torch, whole runs long, with and without graphs.

Graphs are stood in for by a recorder that calls the function again at every replay: buffers, buckets and padding
are the real ones, only the recording is not.
"""

import pytest
import torch

from engine.lab.records import Work
from engine.lab.scenario import Limits
from engine.model.load import LoadedModel
from engine.model.ops import TorchOps
from engine.model.ops_triton import TritonOps
from engine.model.spec import ModelSpec, RopeSpec
from engine.model.weights import MemoryTensors, build_decoder, expected_shapes
from engine.runtime import triton_executor
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.triton_executor import TritonExecutor
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from kernels.triton.prefill import prefill_tile

LIMITS = Limits(max_requests=3, max_batch_tokens=8, num_blocks=6)
BLOCK_SIZE = 4


class CallAgain:
    """A recorder without a GPU: its replay runs the function once more and puts the result where the first one was."""

    def __init__(self):
        self.num_records = self.num_replays = 0

    def __call__(self, function):
        self.num_records += 1
        out = function()

        def replay():
            self.num_replays += 1
            with torch.inference_mode():
                out.copy_(function())

        return out, replay


def spec(**changes) -> ModelSpec:
    """Three query heads on a KV head, q/k norm, one layer without RoPE: every branch of the fused kernels."""
    values = {
        "architecture": "LlamaForCausalLM", "num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 6,
        "num_kv_heads": 2, "head_dim": 16, "vocab_size": 97, "max_positions": 64, "rms_norm_eps": 1e-5,
        "rope": RopeSpec(), "has_qkv_bias": True, "has_qk_norm": True, "layers_without_rope": frozenset({1}),
    }  # fmt: skip
    return ModelSpec(**{**values, **changes})


def model(ops, dtype=torch.float32, **changes) -> LoadedModel:
    shape = spec(**changes)
    noise = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(size, generator=noise) * 0.3 for name, size in expected_shapes(shape).items()}
    decoder = build_decoder(shape, MemoryTensors(tensors), dtype, torch.device("cpu"), ops)
    names = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    return LoadedModel(None, shape, decoder, None, frozenset(), shape.max_positions, names[dtype])


def tokens(executor, policy="chunked", lengths=(11, 3, 1), max_tokens=6, **sampling):
    """Output tokens by request of a workload with chunked prefill, mixed steps and (the pool is small) preemption."""
    executor.work = lambda chunks: Work()
    engine = Engine(executor, policy, LIMITS, BLOCK_SIZE)
    requests = [
        Request(f"r{i}", [(7 * i + j) % 97 for j in range(length)], max_tokens=max_tokens, ignore_eos=True, **sampling)
        for i, length in enumerate(lengths)
    ]
    for request in requests:
        engine.add(request, None, frozenset())
    while engine.has_work:
        engine.step()
    return {request.request_id: request.output_token_ids for request in requests}, sum(
        r.num_preemptions for r in requests
    )


@pytest.fixture(scope="module")
def torch_tokens():
    return {
        policy: tokens(TorchExecutor(model(TorchOps()), LIMITS, BLOCK_SIZE), policy) for policy in ("chunked", "static")
    }


def poisoned(executor):
    """What no request has written is NaN."""
    executor.cache.slots.fill_(float("nan"))
    return executor


@pytest.mark.parametrize("policy", ["chunked", "static"])
def test_tokens_equal_torchs(torch_tokens, policy):
    executor = poisoned(TritonExecutor(model(TritonOps()), LIMITS, BLOCK_SIZE, recorder=None))
    got, num_preemptions = tokens(executor, policy)
    assert got == torch_tokens[policy][0]
    assert executor.backend == "eager"
    assert policy == "static" or num_preemptions > 0, "the pool is small enough for preemption to happen"


def test_graphs_change_no_token_and_padding_writes_nowhere(torch_tokens):
    recorder = CallAgain()
    executor = poisoned(TritonExecutor(model(TritonOps()), LIMITS, BLOCK_SIZE, recorder=recorder))
    got, _ = tokens(executor)
    assert got == torch_tokens["chunked"][0]
    assert executor.backend == "graph" and recorder.num_replays >= 5


def test_a_padded_step_changes_the_slots_of_its_rows_and_no_other():
    """Three rows in a bucket of four."""
    executor = TritonExecutor(model(TritonOps()), LIMITS, BLOCK_SIZE, recorder=CallAgain())
    executor.cache.slots.copy_(torch.randn(executor.cache.slots.shape, generator=torch.Generator().manual_seed(0)))
    before = executor.cache.slots.clone()
    chunks = [
        Chunk(Request(f"r{i}", [1] * 6, max_tokens=4), 5, 1, "decode", [2 * i, 2 * i + 1], samples=True)
        for i in range(3)
    ]
    logits = executor.forward(executor.prepare(chunks))
    assert logits.shape == (3, 97) and executor.backend == "graph"
    changed = (executor.cache.slots != before).any(dim=(0, 2, 3, 4)).nonzero().flatten().tolist()
    assert changed == [5, 13, 21], "position 5 is slot 1 of the second block of each"


def test_sampled_tokens_do_not_depend_on_graphs_or_batch():
    sampling = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 11}
    runs = [
        tokens(
            TritonExecutor(model(TritonOps()), LIMITS, BLOCK_SIZE, recorder=recorder), policy, (3, 1), 4, **sampling
        )[0]
        for recorder, policy in ((None, "chunked"), (CallAgain(), "static"))
    ]
    assert runs[0] == runs[1]
    greedy = tokens(TorchExecutor(model(TorchOps()), LIMITS, BLOCK_SIZE), "chunked", (3, 1), 4)[0]
    assert runs[0] != greedy


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_give_the_logits_of_their_dequantized_values(weights):
    """The whole forward pass with quantized products against torch on the same weights widened back."""
    from engine.runtime.paged_batch import host_batch
    from kernels.reference import quantize_int4, quantize_int8

    class Widened(TorchOps):
        def linear(self, weight, bias):
            quantized = quantize_int8(weight) if weights == "int8" else quantize_int4(weight, 32)
            return super().linear(quantized.dequantize(), bias)

        def head(self, weight):
            return super().linear(quantize_int8(weight).dequantize(), None)

    chunk = Chunk(Request("r", list(range(9)), max_tokens=4), 0, 9, "prefill", [0, 1, 2], samples=True)
    triton_executor = TritonExecutor(model(TritonOps(weights)), LIMITS, BLOCK_SIZE, recorder=None)
    torch_executor = TorchExecutor(model(Widened()), LIMITS, BLOCK_SIZE)
    got = triton_executor.forward(host_batch([chunk], BLOCK_SIZE))
    torch.testing.assert_close(got, torch_executor.forward(torch_executor.prepare([chunk])), atol=1e-4, rtol=1e-4)


def test_bfloat16_logits_stay_near_torchs():
    chunk = Chunk(Request("r", list(range(9)), max_tokens=4), 0, 9, "prefill", [0, 1, 2], samples=True)
    logits = []
    for kind, ops, extra in ((TritonExecutor, TritonOps(), {"recorder": None}), (TorchExecutor, TorchOps(), {})):
        executor = kind(model(ops, torch.bfloat16), LIMITS, BLOCK_SIZE, **extra)
        logits.append(executor.forward(executor.prepare([chunk])))
    assert (logits[0] - logits[1]).abs().max() < 0.05 * logits[1].abs().max()


def test_warming_up_records_every_bucket_and_writes_nothing(monkeypatch):
    monkeypatch.setattr(triton_executor, "PREFILL_TILE_ROWS", (16,))  # the others are as this one, and long
    recorder = CallAgain()
    executor = TritonExecutor(model(TritonOps(), num_layers=1), LIMITS, BLOCK_SIZE, recorder=recorder)
    executor.cache.slots.normal_()
    before = executor.cache.slots[:, : executor.cache.zero_slot].clone()
    executor.warm_up()
    assert torch.equal(executor.cache.slots[:, : executor.cache.zero_slot], before)
    executor.warm_up()
    assert recorder.num_records == 3, "buckets of 1, 2 and 3 rows, recorded once"


def test_warming_up_reaches_every_tile_of_the_prefill_kernel():
    for group in (1, 2, 3, 4, 7):
        tiles = {prefill_tile(rows, group, 64, 2, False) for rows in range(2 * group, 2000, group)}
        warmed = {max(2, rows // group) * group for rows in triton_executor.PREFILL_TILE_ROWS}
        assert {prefill_tile(rows, group, 64, 2, False) for rows in warmed} == tiles
