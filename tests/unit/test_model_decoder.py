"""The decoder against transformers on tiny random models of every family, whole, in chunks and token by token."""

from __future__ import annotations

import pytest
import torch

from engine.model.load import decoder_from
from tests.model_kit import Rig, hugging_face_pair, random_tensors, small_spec

SHAPE = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _configs():
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SmolLM3Config

    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    return {
        "llama": LlamaConfig(**SHAPE, head_dim=20, tie_word_embeddings=False),
        "llama_tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
        "llama_biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
        "llama3": LlamaConfig(**SHAPE, rope_parameters={**llama3, "original_max_position_embeddings": 32}),
        "yarn": LlamaConfig(**SHAPE, rope_parameters=yarn),
        "mistral": MistralConfig(**SHAPE, head_dim=16, sliding_window=None),
        "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**SHAPE, head_dim=16),
        "smollm3": SmolLM3Config(**SHAPE, no_rope_layer_interval=2),
    }


@pytest.mark.parametrize("family", list(_configs()))
def test_logits_equal_transformers_whole_chunked_and_decoded(family):
    theirs, ours = hugging_face_pair(_configs()[family])
    generator = torch.Generator().manual_seed(3)
    token_ids = torch.randint(0, 160, (61,), generator=generator).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    for sizes in ([61], [1], [7], [30, 1, 1, 13]):
        torch.testing.assert_close(Rig(ours).last_logits(token_ids, sizes), expected[-1], atol=1e-4, rtol=1e-4)


def test_a_mixed_step_gives_each_request_what_it_gets_alone():
    decoder = decoder_from(small_spec(), random_tensors(small_spec()))
    prompts = {"a": list(range(5, 28)), "b": list(range(40, 60)), "c": [9], "d": list(range(100, 140))}
    alone = {name: Rig(decoder).last_logits(ids, [len(ids)]) for name, ids in prompts.items()}
    rig = Rig(decoder)
    requests = {name: rig.request(ids, name) for name, ids in prompts.items()}
    rig.run(rig.chunk(requests["a"], 0, 22, samples=False), rig.chunk(requests["d"], 0, 11, samples=False))
    mixed = rig.run(
        rig.chunk(requests["a"], 22, 1, "decode"),
        rig.chunk(requests["d"], 11, 29),
        rig.chunk(requests["c"], 0, 1),
        rig.chunk(requests["b"], 0, 20),
    )
    for row, name in enumerate(["a", "d", "c", "b"]):
        torch.testing.assert_close(mixed[row], alone[name], atol=1e-5, rtol=1e-5)


def test_a_padding_row_changes_nothing_and_samples_nothing():
    decoder = decoder_from(small_spec(), random_tensors(small_spec()))
    rig = Rig(decoder)
    done, live = rig.request(range(10), "done"), rig.request(range(30, 43), "live")
    rig.run(rig.chunk(done, 0, 10), rig.chunk(live, 0, 12))
    before = rig.cache.slots[:, : rig.cache.zero_slot].clone()
    logits = rig.run(rig.chunk(done, 8, 1, "padding", samples=False), rig.chunk(live, 12, 1, "decode"))
    assert logits.shape == (1, 256)
    torch.testing.assert_close(logits[0], Rig(decoder).last_logits(list(range(30, 43)), [13]), atol=1e-5, rtol=1e-5)
    position_12 = live.block_ids[3] * 4
    changed = (rig.cache.slots[:, : rig.cache.zero_slot] != before) & ~before.isnan()
    changed |= before.isnan() & ~rig.cache.slots[:, : rig.cache.zero_slot].isnan()
    assert changed.any(dim=(0, 2, 3, 4)).nonzero().flatten().tolist() == [position_12]


def test_a_step_of_partial_chunks_computes_no_logits():
    decoder = decoder_from(small_spec(), random_tensors(small_spec()))
    rig = Rig(decoder)
    request = rig.request(range(10))
    assert rig.run(rig.chunk(request, 0, 6, samples=False)).shape == (0, 256)


def test_a_tied_head_has_the_embeddings_numbers():
    spec = small_spec(tied_head=True)
    decoder = decoder_from(spec, random_tensors(spec))
    assert "lm_head.weight" not in random_tensors(spec).shapes()
    torch.testing.assert_close(decoder.head(torch.eye(32)), decoder.embedding.T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_stays_near_float32(dtype):
    spec = small_spec()
    exact = Rig(decoder_from(spec, random_tensors(spec))).last_logits(range(40), [40])
    rough = Rig(decoder_from(spec, random_tensors(spec), dtype)).last_logits(range(40), [17, 1])
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.1 * exact.abs().max()
