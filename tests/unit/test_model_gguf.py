"""GGUF: the same tiny weights give the same logits through a GGUF file as without; what we would ignore is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.model.load import decoder_from
from engine.model.load_gguf import GgufFile, half_split_order
from engine.model.rope import inverse_frequencies
from engine.model.spec import ModelError, RopeSpec, spec_from_config
from tests.gguf_kit import interleaved, write_gguf
from tests.model_kit import Rig, random_tensors, small_spec

FAMILIES = {
    "llama": {},
    "llama_biases": {"has_qkv_bias": True, "has_o_bias": True, "has_mlp_bias": True},
    "llama_tied": {"tied_head": True},
    "qwen2": {"architecture": "Qwen2ForCausalLM", "has_qkv_bias": True, "tied_head": True},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "has_qk_norm": True},
}


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


def test_rope_factors_of_llama_3_are_read(tmp_path):
    spec, factors = small_spec(), np.array([1, 1, 1, 2, 8, 8], dtype=np.float32)
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, random_tensors(spec), extra={"rope_freqs.weight": factors}))
    rope = spec_from_config(opened.config).rope
    assert rope.factors == (1, 1, 1, 2, 8, 8)
    plain, _ = inverse_frequencies(RopeSpec(), 12)
    torch.testing.assert_close(inverse_frequencies(rope, 12)[0], plain / torch.from_numpy(factors))


def test_a_llama_3_file_computes_what_its_config_asks_for(tmp_path):
    """llama.cpp's converter stores the scaling of Llama 3.1 and later as one divisor per frequency."""
    rope = RopeSpec("llama3", theta=1e4, factor=8.0, original_max_positions=64)
    spec = small_spec(rope=rope, max_positions=512)
    base, source = 1e4 ** -(np.arange(0, 12, 2) / 12), random_tensors(spec)
    factors = []
    for wavelength in 2 * np.pi / base:
        if wavelength < 64 / rope.high_freq_factor:
            factors.append(1.0)
        elif wavelength > 64 / rope.low_freq_factor:
            factors.append(rope.factor)
        else:
            smooth = (64 / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
            factors.append(1 / ((1 - smooth) / rope.factor + smooth))
    extra = {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
    opened = GgufFile(write_gguf(tmp_path / "m.gguf", spec, source, extra=extra))
    ids = list(range(20, 220))
    expected = Rig(decoder_from(spec, source)).last_logits(ids, [200])
    got = Rig(decoder_from(spec_from_config(opened.config), opened)).last_logits(ids, [64, 1])
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_rope_scaling_is_read_or_refused(tmp_path):
    spec = small_spec()
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    opened = GgufFile(write_gguf(tmp_path / "linear.gguf", spec, random_tensors(spec), keys=keys))
    assert spec_from_config(opened.config).rope == RopeSpec("linear", factor=4.0, original_max_positions=512)
    for kind in ("longrope", "yarn"):
        path = write_gguf(tmp_path / f"{kind}.gguf", spec, random_tensors(spec), keys={"rope.scaling.type": kind})
        with pytest.raises(ModelError, match=f"scales RoPE by '{kind}'; supported in GGUF: none, linear, stored"):
            GgufFile(path)


def test_what_we_have_no_place_for_is_refused_by_name(tmp_path):
    spec = small_spec()
    strange = {"blk.0.attn_sinks.weight": np.zeros(4, dtype=np.float32)}
    with pytest.raises(ModelError, match=r"blk\.0\.attn_sinks\.weight"):
        GgufFile(write_gguf(tmp_path / "a.gguf", spec, random_tensors(spec), extra=strange))
    with pytest.raises(ModelError, match=r"does not give llama\.attention\.head_count_kv"):
        GgufFile(write_gguf(tmp_path / "b.gguf", spec, random_tensors(spec), drop=("attention.head_count_kv",)))
    for architecture in ("mamba", "smollm3", "gemma3"):
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ModelError, match=f"'{architecture}' model; supported in GGUF: llama, qwen2, qwen3"):
            GgufFile(path)


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
