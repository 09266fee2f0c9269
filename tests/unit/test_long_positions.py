"""Families that scale RoPE, up to position 8 191, against transformers: in chunks and decoded, from one cache.

Short texts would not do: without its llama3 scaling the model below is off by 0.05 after 8 tokens and by 6 after 5 000.
"""

from __future__ import annotations

import pytest
import torch

from engine.model.decoder import Decoder
from engine.model.rope import Rotary
from engine.model.spec import RopeSpec
from tests.model_kit import Rig, hugging_face_pair

LENGTH = 8_192
CHUNKS = (
    1_000,
    3_000,
    96,
    1,
    2_000,
    2_000,
    *(1,) * 4,
    88,
    1,
    1,
    1,
)  # 8 192 in all; each ends in a row that is compared
SHAPE = {
    "vocab_size": 160,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": LENGTH,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1_024,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 2_048}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def configs():
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SmolLM3Config

    return {
        "llama_default": LlamaConfig(**SHAPE, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        "llama_llama3": LlamaConfig(**SHAPE, head_dim=16, tie_word_embeddings=True, rope_parameters=LLAMA3),
        "llama_linear": LlamaConfig(**SHAPE, rope_parameters=LINEAR),
        "llama_yarn": LlamaConfig(**SHAPE, rope_parameters=YARN),
        "mistral_yarn": MistralConfig(**SHAPE, head_dim=16, sliding_window=None, rope_parameters=YARN),
        "qwen2_yarn": Qwen2Config(**SHAPE, rope_parameters=YARN),
        "qwen3_yarn": Qwen3Config(**SHAPE, head_dim=16, rope_parameters=YARN),
        "smollm3_yarn": SmolLM3Config(**SHAPE, no_rope_layer_interval=2, rope_parameters=YARN),
    }


def tokens(length: int) -> list[int]:
    return torch.randint(3, 160, (length,), generator=torch.Generator().manual_seed(3)).tolist()


def logits_after(decoder: Decoder, chunks: tuple[int, ...]) -> torch.Tensor:
    """[chunks, V]: logits of the last row of each chunk."""
    rig = Rig(decoder, num_blocks=LENGTH // 32, block_size=32)
    request, start, logits = rig.request(tokens(sum(chunks))), 0, []
    for size in chunks:
        logits.append(rig.run(rig.chunk(request, start, size)))
        start += size
    return torch.cat(logits)


@pytest.mark.parametrize("family", list(configs()))
def test_logits_up_to_position_8191_equal_transformers(family):
    theirs, ours = hugging_face_pair(configs()[family])
    assert sum(CHUNKS) == LENGTH
    with torch.no_grad():
        hidden = theirs.model(torch.tensor([tokens(LENGTH)])).last_hidden_state[0]
        expected = theirs.lm_head(hidden[torch.tensor(CHUNKS).cumsum(0) - 1])
    torch.testing.assert_close(logits_after(ours, CHUNKS), expected, atol=1e-4, rtol=1e-4)


def test_a_scaling_that_is_left_out_shows_more_the_further_on():
    _, ours = hugging_face_pair(configs()["llama_llama3"])
    right = logits_after(ours, (8, 5_000))
    ours.rotary = Rotary(RopeSpec(theta=LLAMA3["rope_theta"]), ours.spec.head_dim, ours.dtype, ours.device)
    early, late = (logits_after(ours, (8, 5_000)) - right).abs().amax(dim=1).tolist()
    assert 0.01 < early < 0.5 < 2 < late
