"""Prompts become exactly the token ids a scenario asked for."""

import pytest

from engine.lab.scenario import RequestSpec, ScenarioError
from engine.runtime.prompts import fit, prompt_token_ids


class Characters:
    """A tokenizer with one token per character, and a chat template of three tokens around the text."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, 2, *self.encode(messages[-1]["content"]), 3]

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


class Bytes(Characters):
    """A tokenizer with one token per byte: a Chinese character is three of them."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def ids(vocab_size: int = 1000, **fields: object) -> list[int]:
    return prompt_token_ids(RequestSpec.model_validate(fields), "r0", Characters(), vocab_size)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 100])
def test_a_prompt_is_repeated_or_cut_to_the_length_asked_for(length: int) -> None:
    assert ids(prompt="abc", num_prompt_tokens=length) == ([97, 98, 99] * 34)[:length]
    assert fit([7, 8], length, Characters()) == ([7, 8] * 50)[:length]


@pytest.mark.parametrize("length", range(1, 20))
@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_is_not_cut_inside_a_character(length: int, chat: bool) -> None:
    around = 3 if chat else 0
    spec = RequestSpec(prompt="a字b缓存", num_prompt_tokens=length + around, chat=chat)
    fitted = prompt_token_ids(spec, "r0", Bytes(), 256)
    assert len(fitted) == length + around
    text = bytes(fitted[2:-1] if chat else fitted).decode()  # raises where a character is cut
    assert text.startswith("a字b缓存a字b缓存"[: max(1, len(text) - 2)])


def test_where_no_token_is_a_whole_character_the_cut_stays() -> None:
    assert fit(list("字".encode()), 5, Bytes()) == list("字字".encode())[:5]


@pytest.mark.parametrize("length", [4, 5, 6, 40])
def test_a_chat_prompt_keeps_its_template_whole(length: int) -> None:
    fitted = ids(prompt="abc", num_prompt_tokens=length, chat=True)
    assert len(fitted) == length
    assert fitted[:2] == [1, 2] and fitted[-1] == 3
    assert fitted[2:-1] == ([97, 98, 99] * 20)[: length - 3]


def test_a_chat_prompt_shorter_than_its_template_is_refused_with_the_least_length() -> None:
    with pytest.raises(ScenarioError, match="allowed: 4 or more"):
        ids(prompt="abc", num_prompt_tokens=3, chat=True)


def test_token_ids_are_taken_as_they_are_and_checked_against_the_vocabulary() -> None:
    assert ids(prompt_token_ids=(5, 6)) == [5, 6]
    with pytest.raises(ScenarioError, match="allowed: 0 to 9"):
        ids(vocab_size=10, prompt_token_ids=(5, 10))
