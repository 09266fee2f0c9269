"""GGUF: the same tiny weights give the same logits through a GGUF file as without; what we would ignore is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.model.load import decoder_from
from engine.model.load_gguf import _LAYER_NAMES, _TOP_NAMES, GgufFile, half_split_order
from engine.model.rope import inverse_frequencies
from engine.model.spec import ModelError, RopeSpec, spec_from_config
from tests.model_kit import Rig, random_tensors, small_spec

FAMILIES = {
    "llama": {},
    "llama_biases": {"has_qkv_bias": True, "has_o_bias": True, "has_mlp_bias": True},
    "llama_tied": {"tied_head": True},
    "qwen2": {"architecture": "Qwen2ForCausalLM", "has_qkv_bias": True, "tied_head": True},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "has_qk_norm": True},
}


def interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K of Llama, written row by row."""
    head_dim = values.shape[0] // num_heads
    out = np.empty_like(values)
    for head in range(num_heads):
        for pair in range(head_dim // 2):
            for half in range(2):
                out[head * head_dim + 2 * pair + half] = values[head * head_dim + half * head_dim // 2 + pair]
    return out


def write_gguf(path, spec, source, *, drop=(), extra=None, keys=None, quantize=None):
    """A GGUF file of a spec's tensors as llama.cpp's converter would write it."""
    arch = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}[spec.architecture]
    names = {f"{theirs}.{kind}": f"{ours}.{kind}" for ours, theirs in _TOP_NAMES.items() for kind in ("weight",)}
    for layer in range(spec.num_layers):
        for ours, theirs in _LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                names[f"model.layers.{layer}.{theirs}.{kind}"] = f"blk.{layer}.{ours}.{kind}"
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": spec.num_layers,
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
    }
    for key, value in numbers.items():
        if key not in drop:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", spec.rms_norm_eps)
    writer.add_float32(f"{arch}.rope.freq_base", spec.rope.theta)
    for key, value in (keys or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{arch}.{key}", value)
    for name in source.shapes():
        values = source.read(name).numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, spec.num_heads if "q_proj" in name else spec.num_kv_heads)
        if quantize and values.ndim > 1:
            packed = gguf.quants.quantize(values, quantize)
            writer.add_tensor(names[name], packed, raw_dtype=quantize)
        else:
            writer.add_tensor(names[name], values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_same_weights_give_the_same_logits_as_without_gguf(tmp_path, family):
    spec = small_spec(**FAMILIES[family])
    source = random_tensors(spec)
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, source))
    for name in source.shapes():
        assert torch.equal(opened.read(name), source.read(name)), name
    ids = list(range(20, 60))
    expected = Rig(decoder_from(spec, source)).last_logits(ids, [40])
    torch.testing.assert_close(
        Rig(decoder_from(spec_from_config(opened.config), opened)).last_logits(ids, [40]), expected
    )


def test_the_same_file_through_transformers_gives_the_same_logits(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = small_spec(head_dim=8)  # transformers' reader of Llama takes head_dim = hidden / heads
    source = random_tensors(spec)
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, source))
    config = LlamaConfig(**{k: v for k, v in opened.config.items() if k != "model_type"})
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict({name: opened.read(name) for name in opened.shapes()})
    ids = list(range(20, 60))
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, -1]
    ours = Rig(decoder_from(spec_from_config(opened.config), opened)).last_logits(ids, [40])
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_half_split_order_undoes_the_interleaving():
    values = np.arange(4 * 6 * 3, dtype=np.float32).reshape(24, 3)
    assert np.array_equal(half_split_order(interleaved(values, 4), 4), values)
    assert half_split_order(np.arange(4), 1).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_quantized_types_are_read_as_the_gguf_package_reads_them(tmp_path, kind):
    spec = small_spec(hidden_size=64, intermediate_size=96, head_dim=16)
    source = random_tensors(spec)
    quantization = gguf.GGMLQuantizationType[kind]
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, source, quantize=quantization))
    assert opened.quantization == kind
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        packed = gguf.quants.quantize(source.read(name).numpy(), quantization)
        expected = gguf.quants.dequantize(packed, quantization)
        assert np.array_equal(opened.read(name).numpy(), expected)
        assert opened.read(name).dtype == torch.float32
        error = (opened.read(name) - source.read(name)).abs().max()
        assert error < 0.15 * source.read(name).abs().max()
    name = "model.layers.0.self_attn.k_proj.weight"
    packed = gguf.quants.quantize(interleaved(source.read(name).numpy(), 2), quantization)
    expected = half_split_order(gguf.quants.dequantize(packed, quantization), 2)
    assert np.array_equal(opened.read(name).numpy(), expected)


def test_rope_factors_of_llama_3_are_read(tmp_path):
    spec, factors = small_spec(), np.array([1, 1, 1, 2, 8, 8], dtype=np.float32)
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, random_tensors(spec), extra={"rope_freqs.weight": factors}))
    rope = spec_from_config(opened.config).rope
    assert rope.factors == (1, 1, 1, 2, 8, 8)
    plain, _ = inverse_frequencies(RopeSpec(), 12)
    torch.testing.assert_close(inverse_frequencies(rope, 12)[0], plain / torch.from_numpy(factors))


def test_rope_scaling_is_read_or_refused(tmp_path):
    spec = small_spec()
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    opened = GgufFile(write_gguf(tmp_path / "linear.gguf", spec, random_tensors(spec), keys=keys))
    assert spec_from_config(opened.config).rope == RopeSpec("linear", factor=4.0, original_max_positions=512)
    with pytest.raises(ModelError, match="scales RoPE by 'longrope'"):
        keys = {"rope.scaling.type": "longrope"}
        GgufFile(write_gguf(tmp_path / "long.gguf", spec, random_tensors(spec), keys=keys))


def test_what_we_have_no_place_for_is_refused_by_name(tmp_path):
    spec = small_spec()
    strange = {"blk.0.attn_sinks.weight": np.zeros(4, dtype=np.float32)}
    with pytest.raises(ModelError, match=r"blk\.0\.attn_sinks\.weight"):
        GgufFile(write_gguf(tmp_path / "a.gguf", spec, random_tensors(spec), extra=strange))
    with pytest.raises(ModelError, match=r"does not give llama\.attention\.head_count_kv"):
        GgufFile(write_gguf(tmp_path / "b.gguf", spec, random_tensors(spec), drop=("attention.head_count_kv",)))
    writer = gguf.GGUFWriter(tmp_path / "c.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'mamba'"):
        GgufFile(tmp_path / "c.gguf")


def test_a_broken_file_gets_a_sentence(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"not a gguf file at all")
    with pytest.raises(ModelError, match=r"cannot read .*broken\.gguf as GGUF"):
        GgufFile(path)
    whole = write_gguf(tmp_path / "whole.gguf", small_spec(), random_tensors(small_spec())).read_bytes()
    for size in (0, 10, 200, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="as GGUF"):
            GgufFile(path)


def test_every_end_id_is_kept(tmp_path):
    spec = small_spec()
    writer_keys = write_gguf(tmp_path / "m.gguf", spec, random_tensors(spec))
    opened = GgufFile(writer_keys)
    opened.fields.update({"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9})
    assert opened.eos_token_ids() == {7, 9}
