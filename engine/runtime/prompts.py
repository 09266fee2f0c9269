"""From a Scenario's requests to token ids: tokenize, wrap in the chat template, fit to an exact length.

It decides nothing about scheduling and imports no torch. Its invariant: the ids returned are what the engine will
compute, so every length a page shows can be read off them.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine.lab.scenario import RequestSpec, ScenarioError


class Tokenizer(Protocol):
    """The part of a tokenizer this module needs."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


def prompt_token_ids(spec: RequestSpec, name: str, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The prompt of one request as token ids; of one that follows another, what stands behind that one's text.

    Pure. Raises: ScenarioError naming the request and the numbers.
    """
    if spec.prompt_token_ids is not None:
        largest = max(spec.prompt_token_ids)
        if largest >= vocab_size:
            raise ScenarioError(
                f"request {name}: prompt_token_ids holds {largest}; allowed: 0 to {vocab_size - 1} for this model",
                "prompt_token_ids",
            )
        return list(spec.prompt_token_ids)
    if spec.prompt is None:
        assert spec.follows is not None, "a RequestSpec has one prompt"
        return []
    if not spec.chat:
        ids = tokenizer.encode(spec.prompt)
        return ids if spec.num_prompt_tokens is None else fit(ids, spec.num_prompt_tokens, tokenizer)
    if spec.num_prompt_tokens is None:
        return tokenizer.encode_chat(_user(spec.prompt))
    return _fit_chat(spec.prompt, spec.num_prompt_tokens, name, tokenizer)


def fit(token_ids: Sequence[int], length: int, tokenizer: Tokenizer) -> list[int]:
    """Repeat or cut the ids to exactly ``length``; they never end inside a character. Pure.

    A model that has read half a character has to answer with the other half, which alone is no text. So the tokens of
    a character that is cut give way to the last one before it that stands for whole characters.
    """
    assert token_ids, "an empty prompt cannot be repeated"
    copies = -(-length // len(token_ids))
    ids = (list(token_ids) * copies)[:length]
    data = [tokenizer.token_bytes(index) for index in ids]
    end = length
    while _ends_inside_a_character(b"".join(data[:end])):
        end -= 1
    filler = next((ids[i] for i in reversed(range(end)) if data[i] and _is_text(data[i])), None)
    return ids if filler is None else ids[:end] + [filler] * (length - end)


def _ends_inside_a_character(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bool(decoder.getstate()[0])  # bytes that wait for the rest of their character


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _fit_chat(prompt: str, length: int, name: str, tokenizer: Tokenizer) -> list[int]:
    """Keep the template whole and fit what the user wrote between its head and its tail."""
    one, other = tokenizer.encode_chat(_user("a")), tokenizer.encode_chat(_user("9"))
    head = _shared(one, other)
    tail = _shared(one[::-1], other[::-1])
    room = length - head - tail
    if room < 1:
        raise ScenarioError(
            f"request {name}: num_prompt_tokens is {length}; the chat template alone takes {head + tail}, so allowed: "
            f"{head + tail + 1} or more",
            "num_prompt_tokens",
        )
    return one[:head] + fit(tokenizer.encode(prompt), room, tokenizer) + one[len(one) - tail :]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two lists begin with in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
