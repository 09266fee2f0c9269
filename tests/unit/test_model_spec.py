"""Reading a config: each fact in its own field, and nothing that changes the numbers is passed over."""

from __future__ import annotations

import pytest

from engine.model.spec import ModelError, RopeSpec, spec_from_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 2_048,
    "rms_norm_eps": 1e-6,
}


def _with(**changes):
    return {**LLAMA, **changes}


def test_llama_defaults():
    spec = spec_from_config(LLAMA)
    assert (spec.head_dim, spec.group_size, spec.qkv_size) == (16, 2, 128)
    assert not (spec.has_qkv_bias or spec.has_o_bias or spec.has_mlp_bias or spec.has_qk_norm or spec.tied_head)
    assert spec.rope == RopeSpec(original_max_positions=2_048)


def test_head_dim_is_its_own_number():
    assert spec_from_config(_with(head_dim=40)).head_dim == 40


def test_multi_head_attention_when_no_kv_heads_are_given():
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert spec_from_config(config).num_kv_heads == 4


def test_families_differ_in_data():
    qwen2 = spec_from_config(_with(architectures=["Qwen2ForCausalLM"]))
    assert (qwen2.has_qkv_bias, qwen2.has_o_bias, qwen2.has_qk_norm) == (True, False, False)
    qwen3 = spec_from_config(_with(architectures=["Qwen3ForCausalLM"]))
    assert (qwen3.has_qkv_bias, qwen3.has_qk_norm, qwen3.head_dim) == (False, True, 128)
    smollm3 = spec_from_config(_with(architectures=["SmolLM3ForCausalLM"]))
    assert smollm3.layers_without_rope == frozenset({3})
    listed = spec_from_config(_with(architectures=["SmolLM3ForCausalLM"], no_rope_layers=[0, 1, 1, 0]))
    assert listed.layers_without_rope == frozenset({0, 3})


def test_old_and_new_rope_keys_say_the_same():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    old = spec_from_config(_with(rope_theta=5e5, rope_scaling={"type": "llama3", **scaling}))
    new = spec_from_config(_with(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling}))
    assert old.rope == new.rope
    assert old.rope.kind == "llama3"


def test_a_sliding_window_shortens_what_we_serve():
    assert spec_from_config(_with(architectures=["MistralForCausalLM"], sliding_window=512)).max_positions == 512
    assert spec_from_config(_with(architectures=["MistralForCausalLM"], sliding_window=None)).max_positions == 2_048
    assert spec_from_config(_with(architectures=["Qwen2ForCausalLM"], sliding_window=512)).max_positions == 2_048


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "no architecture"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"vocab_size": None}, "missing"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, words):
    with pytest.raises(ModelError, match=words):
        spec_from_config(_with(**changes))
