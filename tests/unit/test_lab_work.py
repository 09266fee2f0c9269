"""Work accounting: by hand, against torch's FLOP counter on a real decoder step, and the lesson's claims."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.lab.records import Header, ModelInfo
from engine.lab.work import (
    ChunkShape,
    bytes_per_element,
    decode_step_bytes,
    decode_step_flops,
    element_sizes,
    head_parameters,
    intensity,
    is_tied,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_outgrows_weights_at,
    layer_parameters,
    moved_bytes,
    num_requests_that_fit,
    prefill_flops,
    roofline_s,
    step_work,
    stored_bytes_per_element,
    with_kv_heads,
)


def model(tied: bool = True, size: float = 4, **changes: int) -> ModelInfo:
    """2 layers, d 8, 4 query and 2 KV heads of 2, V 10; 100 parameters in the layers."""
    tables = 1 if tied else 2
    fields = {
        "name": "toy",
        "source": "test",
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 2,
        "vocab_size": 10,
        "num_parameters": 100 + tables * 80,
        "weight_bytes": round(180 * size),
    }
    return ModelInfo(**{**fields, **changes})


LLAMA_7B = ModelInfo(
    name="llama-7b",
    source="test",
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    vocab_size=32000,
    num_parameters=6_738_415_616,
    weight_bytes=2 * (6_738_415_616 - 32000 * 4096),
)


@pytest.mark.parametrize("size", [0.5, 1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_layer_parameters_follow_from_what_a_decode_step_reads(tied: bool, size: float) -> None:
    toy = model(tied, size)
    assert is_tied(toy) is tied
    assert layer_parameters(toy) == 100
    assert stored_bytes_per_element(toy) == size


def test_a_stated_tie_wins_over_the_inferred_one() -> None:
    quantized = ModelInfo(**model().model_dump(), tie_word_embeddings=False)
    assert is_tied(quantized) is False
    assert layer_parameters(quantized) == 20
    assert is_tied(LLAMA_7B) is False


def test_a_decode_row_by_hand() -> None:
    # position 4 sees 5 positions; attention 4·L·Hq·D = 4·2·4·2 = 64 per pair; KV 2·L·Hk·D·4 = 64 bytes per position
    work = step_work(model(), [ChunkShape(4, 1, "decode", True)], 4, 4)
    assert work.flops == 2 * 100 + 64 * 5 + 2 * 80
    assert (work.tokens, work.padding_tokens) == (1, 0)
    assert work.weight_bytes == 720
    assert (work.kv_read_bytes, work.kv_write_bytes) == (64 * 5, 64)


def test_a_chunk_attends_causally_and_without_a_sample_leaves_the_head_alone() -> None:
    work = step_work(model(), [ChunkShape(3, 2, "prefill", False)], 4, 4)
    assert work.flops == 2 * 100 * 2 + 64 * (4 + 5)
    assert work.weight_bytes == 720 - 80 * 4
    assert (work.kv_read_bytes, work.kv_write_bytes) == (64 * 5, 64 * 2)


def test_padding_costs_flops_and_reads_but_stores_nothing() -> None:
    real = step_work(model(), [ChunkShape(4, 1, "decode", True)], 4, 4)
    both = step_work(model(), [ChunkShape(4, 1, "decode", True), ChunkShape(6, 1, "padding", False)], 4, 4)
    assert (both.tokens, both.padding_tokens) == (1, 1)
    assert both.flops - real.flops == 2 * 100 + 64 * 7
    assert both.kv_read_bytes - real.kv_read_bytes == 64 * 7
    assert both.kv_write_bytes == real.kv_write_bytes
    assert both.weight_bytes == real.weight_bytes


def test_no_chunk_is_no_work() -> None:
    work = step_work(model(), [], 4, 4)
    assert moved_bytes(work) == work.flops == 0
    assert intensity(work) is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_chunking_a_prompt_changes_no_flop_and_no_written_byte(sizes: list[int]) -> None:
    total, start, chunks = sum(sizes), 0, []
    for size in sizes:
        chunks.append(ChunkShape(start, size, "prefill", start + size == total))
        start += size
    steps = [step_work(model(), [c], 2, 2) for c in chunks]
    whole = step_work(model(), [ChunkShape(0, total, "prefill", True)], 2, 2)
    assert sum(s.flops for s in steps) == whole.flops
    assert sum(s.kv_write_bytes for s in steps) == whole.kv_write_bytes
    assert sum(s.weight_bytes for s in steps) >= whole.weight_bytes


def test_the_lesson_claims_on_the_7b_shape() -> None:
    per_token = kv_bytes_per_token(LLAMA_7B, 2)
    assert [round(per_token * n / 1e9, 2) for n in (2048, 8192, 32768)] == [1.07, 4.29, 17.18]  # C7
    weights = decode_step_bytes(LLAMA_7B, 0, 2)
    assert 13e9 < weights < 14e9  # C1: about 14 GB
    assert 13e9 < decode_step_flops(LLAMA_7B, 1) < 14e9  # C2: about 14 GFLOP
    assert decode_step_flops(LLAMA_7B, 1) / weights == pytest.approx(1, rel=0.01)  # C3: about 1 FLOP per byte


def test_decode_bytes_take_the_kv_size_from_the_weights_unless_told() -> None:
    assert decode_step_bytes(model(size=2), 5) == 360 + 5 * 32
    assert decode_step_bytes(model(size=2), 5, 1) == 360 + 5 * 16
    assert decode_step_bytes(model(size=2), 5, batch=3) == 360 + 3 * 5 * 32


def test_eight_requests_of_the_7b_shape_beside_the_weights() -> None:
    assert round(kv_cache_bytes(LLAMA_7B, 2048, 2, 8) / 1e9, 1) == 8.6  # C8
    assert num_requests_that_fit(LLAMA_7B, 24.6e9, 2048, 2, reserved_bytes=2e9) == 8  # C9
    assert num_requests_that_fit(LLAMA_7B, 13e9, 2048, 2) == 0


def test_when_the_cache_outgrows_the_weights() -> None:
    at = kv_outgrows_weights_at(LLAMA_7B, 2)
    assert kv_cache_bytes(LLAMA_7B, at, 2) > LLAMA_7B.weight_bytes >= kv_cache_bytes(LLAMA_7B, at - 1, 2)
    assert 20_000 < at < 32_768  # the lesson: at 32 768 positions the cache is larger than the weights
    assert kv_outgrows_weights_at(LLAMA_7B, 2, num_requests=8) == pytest.approx(at / 8, abs=1)


def test_kv_heads_scale_the_cache_and_must_divide_the_query_heads() -> None:
    assert kv_bytes_per_token(with_kv_heads(LLAMA_7B, 8), 2) * 4 == kv_bytes_per_token(LLAMA_7B, 2)
    assert kv_bytes_per_token(with_kv_heads(LLAMA_7B, 1), 2) * 32 == kv_bytes_per_token(LLAMA_7B, 2)
    with pytest.raises(ValueError, match="num_kv_heads is 5; it must divide the 32 query heads"):
        with_kv_heads(LLAMA_7B, 5)


def test_prefill_flops_sample_one_row() -> None:
    assert prefill_flops(model(), 3) == 2 * 100 * 3 + 64 * 6 + 2 * 80


def test_roofline_takes_the_slower_side() -> None:
    assert roofline_s(1e12, 1e9, read_gbps=10, matmul_tflops=1) == pytest.approx(1.0)
    assert roofline_s(1e9, 1e10, read_gbps=10, matmul_tflops=1) == pytest.approx(1.0)


def header(**changes: object) -> Header:
    fields = {
        "run_id": "run-0",
        "created_utc": "2026-01-01T00:00:00Z",
        "scenario": {},
        "device": {"name": "cpu", "type": "cpu", "threads": 2, "memory_bytes": 1},
        "model": model().model_dump(),
        "dtype": "bfloat16",
        "kv_dtype": "float32",
        "block_size": 16,
        "num_blocks": 4,
        "versions": {},
    }
    return Header(**{**fields, **changes})


def test_element_sizes_follow_the_header() -> None:
    assert element_sizes(header()) == (2, 4)
    assert element_sizes(header(scenario={"weights": "int4"}, kv_dtype="int8")) == (0.5, 1)
    assert element_sizes(header(weight_bytes_per_element=0.5625, kv_bytes_per_element=1.125)) == (0.5625, 1.125)


def test_unknown_sizes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"dtype is 'float13'; allowed: .*bfloat16"):
        bytes_per_element("float13")
    with pytest.raises(ValueError, match="bytes per element is 'many'"):
        element_sizes(header(weight_bytes_per_element="many"))


def test_flops_equal_torchs_own_count_of_a_decode_step() -> None:
    """The counter sees every matmul; ours also counts norm weights as if multiplied, and nothing else."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    decoder = transformers.LlamaForCausalLM(config).eval()
    parameters = sum(p.numel() for p in decoder.parameters())
    norms = sum(p.numel() for n, p in decoder.named_parameters() if "norm" in n)
    info = ModelInfo(
        name="tiny",
        source="random",
        architecture="llama",
        num_layers=3,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=64,
        num_parameters=parameters,
        weight_bytes=4 * parameters,
    )
    context = 11
    with torch.inference_mode():
        ids = torch.zeros(1, context - 1, dtype=torch.long)
        past = decoder(ids, use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            decoder(ids[:, :1], cache=past, use_cache=True)
    counted = counter.get_total_flops()
    assert counted == decode_step_flops(info, context) - 2 * norms
    assert head_parameters(info) == 64 * 32


def test_importing_work_leaves_torch_unloaded() -> None:
    code = "import sys, engine.lab.work; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
