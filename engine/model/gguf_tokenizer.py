"""tokenizer.json and tokenizer_config.json from the vocabulary inside a GGUF file.

A GGUF file stores tokens and merges, but of the pre-tokenizer only a name (``tokenizer.ggml.pre``). Another way to
split the text gives other tokens, so each name we know is written out here and an unknown one is refused.
(transformers' own converter ignores the name: it splits "a  1" otherwise than the model was trained on.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.model.spec import ModelError

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _pre_tokenizer(name: str) -> dict[str, Any]:
    """How the text is cut before merging. Raises: ModelError for a name that is not written out here."""
    digits = {"type": "Digits", "individual_digits": True}
    known = {
        "gpt-2": _byte_level(use_regex=True),
        "smollm": {"type": "Sequence", "pretokenizers": [digits, _byte_level(use_regex=True)]},
        "llama-bpe": _split(_LLAMA3_SPLIT),
        "qwen2": _split(_LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")),
    }
    if name not in known:
        raise ModelError(f"the GGUF file's pre-tokenizer is {name!r}; supported: {', '.join(known)}")
    return known[name]


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tokenizer.json, tokenizer_config.json) as decoded JSON. Pure. Raises: ModelError.

    fields: the GGUF file's ``tokenizer.*`` keys and values.
    """
    model = fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelError(f"the GGUF file's tokenizer is {model!r}; supported: 'gpt2' (byte-level BPE)")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    pre_name = fields.get("tokenizer.ggml.pre", "gpt-2")
    adds_bos = bool(fields.get("tokenizer.ggml.add_bos_token", False))
    bos = _token(fields, tokens, "tokenizer.ggml.bos_token_id")
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(index, token, kind == CONTROL)
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre_name == "qwen2" else None,
        "pre_tokenizer": _pre_tokenizer(pre_name),
        "post_processor": _bos_first(bos, fields["tokenizer.ggml.bos_token_id"]) if adds_bos and bos else None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre_name == "llama-bpe",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": bos,
        "eos_token": _token(fields, tokens, "tokenizer.ggml.eos_token_id"),
        "unk_token": _token(fields, tokens, "tokenizer.ggml.unknown_token_id"),
        "pad_token": _token(fields, tokens, "tokenizer.ggml.padding_token_id"),
        "chat_template": fields.get("tokenizer.chat_template"),
    }
    return tokenizer, {key: value for key, value in config.items() if value is not None}


def to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _token(fields: Mapping[str, Any], tokens: list[str], key: str) -> str | None:
    index = fields.get(key)
    return tokens[index] if index is not None and 0 <= index < len(tokens) else None


def _added_token(index: int, token: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": token, **flags, "special": special}


def _bos_first(bos: str, bos_id: int) -> dict[str, Any]:
    begin, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
