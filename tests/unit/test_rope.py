"""RoPE: one rotation convention, and frequencies equal to transformers' for every kind we accept."""

from __future__ import annotations

import math

import pytest
import torch

from engine.model.rope import Rotary, inverse_frequencies, rotate_
from engine.model.spec import ModelError, RopeSpec, spec_from_config

POSITIONS = torch.tensor([0, 1, 1_000, 8_191, 60_000])
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768},
}


def _config(rope: dict):
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=131_072, rope_parameters=dict(rope)
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_cos_and_sin_equal_transformers(kind):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = _config(KINDS[kind])
    theirs = LlamaRotaryEmbedding(config)
    cos, sin = theirs(torch.zeros(1, 1), POSITIONS[None])
    rope = spec_from_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}).rope
    assert rope.kind == kind
    ours_cos, ours_sin = Rotary(rope, 64, torch.float32, torch.device("cpu")).angles(POSITIONS)
    # At position 60 000 one last bit of a frequency is already 0.004 of a turn, hence the tolerance.
    torch.testing.assert_close(ours_cos[:, 0], cos[0], atol=5e-3, rtol=0)
    torch.testing.assert_close(ours_sin[:, 0, 32:], sin[0, :, 32:], atol=5e-3, rtol=0)
    torch.testing.assert_close(ours_sin[:, 0, :32], -sin[0, :, :32], atol=5e-3, rtol=0)
    torch.testing.assert_close(inverse_frequencies(rope, 64)[0], theirs.inv_freq, atol=0, rtol=1e-6)


def test_rotation_of_four_dimensions_by_hand():
    rope = RopeSpec(theta=100.0)  # frequencies 1 and 1/10
    cos, sin = Rotary(rope, 4, torch.float64, torch.device("cpu")).angles(torch.tensor([3]))
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    turned = rotate_(x.clone(), cos, sin)[0, 0]
    a, b = 3.0, 0.3  # dimension 0 turns with 2, dimension 1 with 3
    expected = [
        1 * math.cos(a) - 3 * math.sin(a),
        2 * math.cos(b) - 4 * math.sin(b),
        3 * math.cos(a) + 1 * math.sin(a),
        4 * math.cos(b) + 2 * math.sin(b),
    ]
    torch.testing.assert_close(turned, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


def test_rotation_keeps_lengths_and_depends_only_on_distance():
    rotary = Rotary(RopeSpec(), 16, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 16, generator=generator), torch.randn(1, 1, 16, generator=generator)

    def score(at: int, of: int) -> float:
        turned_q = rotate_(q.clone(), *rotary.angles(torch.tensor([at])))
        turned_k = rotate_(k.clone(), *rotary.angles(torch.tensor([of])))
        return float((turned_q * turned_k).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-4)


def test_stored_factors_divide_the_frequencies():
    plain, _ = inverse_frequencies(RopeSpec(), 8)
    scaled, _ = inverse_frequencies(RopeSpec(kind="factors", factors=(1.0, 1.0, 2.0, 8.0)), 8)
    torch.testing.assert_close(scaled, plain / torch.tensor([1.0, 1.0, 2.0, 8.0]))
    with pytest.raises(ModelError, match=r"2 RoPE factors.*needs 4"):
        inverse_frequencies(RopeSpec(kind="factors", factors=(1.0, 2.0)), 8)
