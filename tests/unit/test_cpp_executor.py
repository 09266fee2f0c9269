"""The C++ path inside the engine: the same tokens and logits as torch, the same weights in either form, refusals."""

from __future__ import annotations

import pytest
import torch

from engine.lab.scenario import Limits
from engine.model.load import load_model
from engine.model.ops_cpp import CppLinear, CppOps
from engine.model.spec import ModelError
from engine.runtime.cpp_executor import CppExecutor, row_chunks
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.paged_batch import host_batch
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from tests.cpp_kit import built_library

LIMITS = Limits(max_requests=6, max_batch_tokens=64, num_blocks=40)
FORMATS = [("float32", None), ("bfloat16", None), ("float32", "int8"), ("bfloat16", "int8"), ("bfloat16", "int4")]


@pytest.fixture(scope="module")
def library():
    return built_library()


@pytest.fixture(scope="module")
def models(library, tmp_path_factory):
    """dtype and weights -> (the tiny model for torch, the same for C++), loaded once."""
    folder, loaded = tmp_path_factory.mktemp("models"), {}

    def get(dtype: str = "float32", weights: str | None = None):
        if (dtype, weights) not in loaded:
            arguments = {"weights": weights, "models_dir": folder, "device": "cpu"}
            torch_model = load_model("tiny-random", dtype, **arguments)
            cpp_model = load_model("tiny-random", dtype, **arguments, ops=CppOps(library, weights))
            loaded[dtype, weights] = (torch_model, cpp_model)
        return loaded[dtype, weights]

    return get


def _requests() -> list[Request]:
    lengths = ((1, 20), (9, 5), (33, 12), (70, 17), (16, 1), (15, 30), (40, 8), (2, 9))
    return [
        Request(f"r{i}", [(7 * i + 3 * j) % 259 for j in range(prompt)], output, ignore_eos=True)
        for i, (prompt, output) in enumerate(lengths)
    ]


def _serve(executor, policy: str, limits: Limits = LIMITS, block_size: int = 16) -> dict[str, list[int]]:
    engine, requests = Engine(executor, policy, limits, block_size), _requests()
    for request in requests:
        engine.add(request)
    while engine.has_work:
        record = engine.step()
        assert record is None or record.backend == executor.backend
    return {request.request_id: request.output_token_ids for request in requests}


def _logits(executor) -> torch.Tensor:
    """Three steps of mixed work: two chunks, a second chunk beside a decode, decoding beside padding."""
    a, b = Request("a", list(range(31)), 9), Request("b", list(range(100, 150)), 9)
    steps = [
        [Chunk(a, 0, 30, "prefill", [3, 9], True), Chunk(b, 0, 20, "prefill", [1, 4], True)],
        [Chunk(b, 20, 30, "prefill", [1, 4, 30, 0], True), Chunk(a, 30, 1, "decode", [3, 9], True)],
        [Chunk(a, 30, 1, "padding", [3, 9], False), Chunk(b, 49, 1, "decode", [1, 4, 30, 0], True)],
    ]
    return torch.cat([executor.forward(executor.prepare(chunks)).clone() for chunks in steps])


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_the_same_tokens_as_torch_in_float32(models, policy, block_size):
    torch_model, cpp_model = models()
    limits = LIMITS.model_copy(update={"num_blocks": 640 // block_size})
    wanted = _serve(TorchExecutor(torch_model, limits, block_size), policy, limits, block_size)
    assert _serve(CppExecutor(cpp_model, limits, block_size), policy, limits, block_size) == wanted


@pytest.mark.parametrize("budget", [1, 7, 256])
def test_the_same_tokens_whatever_the_chunks(models, budget):
    _, cpp_model = models()
    wanted = _serve(CppExecutor(cpp_model, LIMITS), "chunked")
    limits = Limits(max_requests=min(6, budget), max_batch_tokens=budget, num_blocks=40)
    assert _serve(CppExecutor(cpp_model, limits), "chunked", limits) == wanted


@pytest.mark.parametrize(("dtype", "weights"), FORMATS)
def test_logits_are_torchs_within_rounding(models, dtype, weights):
    torch_model, cpp_model = models(dtype, weights)
    wanted, got = _logits(TorchExecutor(torch_model, LIMITS)), _logits(CppExecutor(cpp_model, LIMITS))
    tolerance = 1e-4 if dtype == "float32" else 0.03 * wanted.abs().max().item()
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("dtype", "weights"), FORMATS)
def test_operation_by_operation_the_packed_weights_give_the_same(models, dtype, weights):
    """A quantized KV cache runs this way: torch's attention, the kernels' products in the kernels' row order."""
    torch_model, cpp_model = models(dtype, weights)
    CppExecutor(cpp_model, LIMITS)  # packs
    layer = cpp_model.decoder.layers[0]
    assert all(isinstance(getattr(layer, name), CppLinear) for name in ("qkv", "o", "gate_up", "down"))
    assert all(getattr(layer, name).packed is not None for name in ("qkv", "o", "gate_up", "down"))
    wanted, got = _logits(TorchExecutor(torch_model, LIMITS)), _logits(TorchExecutor(cpp_model, LIMITS))
    tolerance = 1e-4 if dtype == "float32" else 0.03 * wanted.abs().max().item()
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0)


def test_before_packing_a_product_is_right_too(library):
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((48, 64), (48,), (2, 3, 64)))
    for weights in (None, "int8", "int4"):
        product = CppOps(library, weights).linear(weight, bias)
        assert isinstance(product, CppLinear)
        error = (product(x) - (x @ weight.T + bias)).abs().max()
        assert product(x).shape == (2, 3, 48) and error < {None: 1e-5, "int8": 0.3, "int4": 3.0}[weights]


def test_a_packed_weight_is_held_once(models):
    _, cpp_model = models()
    first = CppExecutor(cpp_model, LIMITS)
    second = CppExecutor(cpp_model, LIMITS)
    assert first._decoder is second._decoder
    assert all(layer.qkv._plain is None for layer in cpp_model.decoder.layers)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_bytes_of_weights_are_counted_as_for_torch(models, weights):
    torch_model, cpp_model = models("bfloat16", weights)
    assert cpp_model.info.weight_bytes == torch_model.info.weight_bytes
    assert cpp_model.weight_bytes_per_element == torch_model.weight_bytes_per_element


def test_what_the_kernels_cannot_do_stays_with_torch(models, library):
    half = load_model("tiny-random", "float16", device="cpu", ops=CppOps(library))
    assert not isinstance(half.decoder.head, CppLinear)
    why = half.decoder.ops.why_not_compiled(half.decoder)
    assert why == "the C++ kernels compute in float32 and bfloat16 on a CPU; this model is in torch.float16"
    assert _serve(TorchExecutor(half, LIMITS), "chunked")["r0"]
    _, cpp_model = models()
    assert cpp_model.decoder.ops.why_not_compiled(cpp_model.decoder) == ""
    with pytest.raises(ModelError, match="groups of 32"):
        CppOps(library, "int4").linear(torch.zeros(32, 48), None)


def test_sampling_is_torchs(models):
    torch_model, cpp_model = models()
    request = Request("a", list(range(9)), 4, temperature=0.9, top_p=0.8, seed=5)
    greedy = Request("b", list(range(7)), 4)
    chunks = [Chunk(request, 0, 9, "prefill", [3], True), Chunk(greedy, 0, 7, "prefill", [5], True)]
    logits = torch.randn((2, 259), generator=torch.Generator().manual_seed(1))
    ours, theirs = CppExecutor(cpp_model, LIMITS), TorchExecutor(torch_model, LIMITS)
    assert ours.sample(logits, chunks) == theirs.sample(logits, chunks)
    assert ours.sample(logits[1:], chunks[1:]) == [int(logits[1].argmax())]
    assert ours.sample(logits[:0], []) == []


def test_rows_of_a_step_belong_to_their_contexts():
    a, b, c = (Request(name, list(range(40)), 4) for name in "abc")
    chunks = [
        Chunk(a, 0, 5, "prefill", [2], False),
        Chunk(b, 20, 1, "decode", [7, 8], True),
        Chunk(c, 3, 9, "prefill", [4], True),
    ]
    rows = row_chunks(host_batch(chunks, 16))
    assert [(r.first_row, r.num_rows, r.context_len, list(r.block_ids)) for r in rows] == [
        (0, 1, 21, [7, 8]),
        (1, 5, 5, [2]),
        (6, 9, 12, [4]),
    ]


def test_warming_up_writes_nothing(models):
    _, cpp_model = models()
    executor = CppExecutor(cpp_model, LIMITS)
    executor.cache.slots.fill_(3.0)
    executor.warm_up()
    assert torch.equal(executor.cache.slots, torch.full_like(executor.cache.slots, 3.0))
