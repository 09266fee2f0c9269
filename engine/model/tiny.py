"""The model of last resort: a tiny decoder with random weights, for machines where no trained model can be had.

Its text means nothing and its name and source say so; its requests, blocks, steps and bytes are as real as any.
The same seed gives the same weights everywhere.
"""

from __future__ import annotations

import torch

from engine.model.gguf_tokenizer import to_json, tokenizer_from_gguf
from engine.model.spec import ModelSpec, RopeSpec
from engine.model.tokenizer import ChatTokenizer, byte_of_character
from engine.model.weights import MemoryTensors, expected_shapes

TINY_SOURCE = "random weights made on the spot: the text means nothing"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_spec() -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=4,
        hidden_size=128,
        intermediate_size=256,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=256 + len(_SPECIAL),
        max_positions=8_192,
        rms_norm_eps=1e-5,
        rope=RopeSpec(),
    )


def tiny_tensors(seed: int = 0) -> MemoryTensors:
    """Random weights of the tiny spec. Pure.

    The head's rows of everything but printable ASCII are zero, so that greedy text can be shown and has no end token.
    """
    spec, generator = tiny_spec(), torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(spec).items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) / shape[1] ** 0.5
    printable = torch.zeros(spec.vocab_size, dtype=torch.bool)
    printable[len(_SPECIAL) + 32 : len(_SPECIAL) + 127] = True
    tensors["lm_head.weight"][~printable] = 0.0
    return MemoryTensors(tensors)


def tiny_tokenizer() -> ChatTokenizer:
    """One token per byte, after three special ones. Pure."""
    characters = sorted(byte_of_character().items(), key=lambda item: item[1])
    tokens = [*_SPECIAL, *(character for character, _ in characters)]
    tokenizer, config = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(_SPECIAL) + [1] * 256,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": _TEMPLATE,
        }
    )
    return ChatTokenizer(to_json(tokenizer), config)
