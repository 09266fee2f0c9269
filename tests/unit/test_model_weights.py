"""Strict loading: a missing, unknown or misshapen tensor is refused by name; joined weights equal their parts."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from engine.model.load import decoder_from
from engine.model.spec import ModelError
from engine.model.weights import (
    MemoryTensors,
    SafetensorsFolder,
    check_tensors,
    expected_shapes,
    num_decode_parameters,
    num_parameters,
)
from tests.model_kit import random_tensors, small_spec

SPEC = small_spec()


def test_expected_names_of_a_family_with_everything():
    spec = small_spec(has_qkv_bias=True, has_qk_norm=True, tied_head=True)
    names = expected_shapes(spec)
    assert names["model.layers.1.self_attn.k_proj.bias"] == (24,)
    assert names["model.layers.0.self_attn.q_norm.weight"] == (12,)
    assert "model.layers.0.self_attn.o_proj.bias" not in names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(name):
    found = {key: shape for key, shape in expected_shapes(SPEC).items() if key != name}
    with pytest.raises(ModelError, match=f"{name} is missing"):
        check_tensors(SPEC, found)


def test_an_unknown_tensor_is_named():
    found = {**expected_shapes(SPEC), "model.layers.0.self_attn.q_proj.bias": (48,)}
    with pytest.raises(ModelError, match=r"q_proj.bias .* has no place"):
        check_tensors(SPEC, found)


def test_another_shape_is_named():
    found = {**expected_shapes(SPEC), "model.embed_tokens.weight": (257, 32)}
    with pytest.raises(ModelError, match=r"embed_tokens.weight has shape \(257, 32\)"):
        check_tensors(SPEC, found)


def test_tensors_that_follow_from_others_may_stand_there():
    spec = small_spec(tied_head=True)
    found = {**expected_shapes(spec), "lm_head.weight": (256, 32), "model.layers.0.self_attn.rotary_emb.inv_freq": (6,)}
    check_tensors(spec, found)


def test_a_tied_head_that_differs_is_refused():
    spec = small_spec(tied_head=True)
    source = random_tensors(spec)
    tensors = {name: source.read(name) for name in source.shapes()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    decoder_from(spec, MemoryTensors(tensors))
    tensors["lm_head.weight"][3, 3] += 1
    with pytest.raises(ModelError, match="ties the head"):
        decoder_from(spec, MemoryTensors(tensors))


def test_joined_products_equal_their_parts():
    source = random_tensors(SPEC)
    layer = decoder_from(SPEC, source).layers[1]
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    parts = [source.read(f"model.layers.1.self_attn.{part}_proj.weight") for part in "qkv"]
    torch.testing.assert_close(layer.qkv(x), torch.cat([x @ part.T for part in parts], dim=1))
    gate, up = (source.read(f"model.layers.1.mlp.{part}_proj.weight") for part in ("gate", "up"))
    torch.testing.assert_close(layer.gate_up(x), torch.cat([x @ gate.T, x @ up.T], dim=1))


def test_counting_parameters():
    total = sum(torch.Size(shape).numel() for shape in expected_shapes(SPEC).values())
    assert num_parameters(SPEC) == total
    assert num_decode_parameters(SPEC) == total - 256 * 32  # the embedding is read by rows only
    tied = small_spec(tied_head=True)
    assert num_parameters(tied) == num_decode_parameters(tied) == total - 256 * 32


def test_a_folder_of_two_files_is_one_source(tmp_path):
    source = random_tensors(SPEC)
    names = list(source.shapes())
    save_file({name: source.read(name) for name in names[:7]}, tmp_path / "model-1.safetensors")
    save_file({name: source.read(name) for name in names[7:]}, tmp_path / "model-2.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert folder.shapes() == source.shapes()
    assert torch.equal(folder.read(names[9]), source.read(names[9]))


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"holds no \.safetensors"):
        SafetensorsFolder(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "two.safetensors")
    with pytest.raises(ModelError, match="two files"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "two.safetensors").write_bytes((tmp_path / "one.safetensors").read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"cannot read .*two\.safetensors"):
        SafetensorsFolder(tmp_path)
