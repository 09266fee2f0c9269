"""The text stream: always a prefix of the final text, never half a character, stop strings cut exactly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.tiny import tiny_tokenizer
from engine.runtime.text import TextStream

TOKENIZER = tiny_tokenizer()  # one token per byte: every character can be cut anywhere


class Words:
    """A tokenizer whose token i is the i-th of the given byte strings."""

    strips_first_space = False

    def __init__(self, *words: str | bytes) -> None:
        self.words = [word.encode() if isinstance(word, str) else word for word in words]

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id]


def stream_of(words: list[str | bytes], stop=(), first_space=False) -> tuple[TextStream, list[str]]:
    """The stream after all words and finish(), and what each push and the finish gave."""
    tokenizer = Words(*words)
    tokenizer.strips_first_space = first_space
    stream = TextStream(tokenizer, stop)
    given = [stream.push(index) for index in range(len(words))]
    return stream, [*given, stream.finish()]


HARD = "é 漢字 👩‍👩‍👧 🇵🇹 naïve\u0301 𝔘 def f(x):\n\treturn x\u00a0½ \U0001f9d1\u200d\U0001f680 done"


def test_hard_characters_one_byte_at_a_time():
    stream, emitted = TextStream(TOKENIZER), []
    for token_id in TOKENIZER.encode(HARD):
        emitted.append(stream.push(token_id))
        assert HARD.startswith("".join(emitted))
        assert "\ufffd" not in emitted[-1]
    assert stream.finish() == ""
    assert "".join(emitted) == stream.text == HARD == TOKENIZER.decode(TOKENIZER.encode(HARD))


def test_every_character_comes_with_its_last_byte():
    stream = TextStream(TOKENIZER)
    assert [stream.push(token_id) for token_id in TOKENIZER.encode("a漢b")] == ["a", "", "", "漢", "b"]


def test_an_unfinished_character_is_flushed_once_at_the_end():
    stream, given = stream_of([b"ok \xe6\xbc"])
    assert given == ["ok ", "\ufffd"]
    assert stream.finish() == ""
    assert stream.text == "ok \ufffd"


def test_invalid_bytes_in_the_middle_become_replacement_characters_as_in_decode():
    data = b"a\xff\xe6b\x80\xf0\x9f\x98c"
    ids = [TOKENIZER.token_id(character) for character in (TOKENIZER._tokenizer.id_to_token(3 + byte) for byte in data)]
    stream = TextStream(TOKENIZER)
    text = "".join(stream.push(token_id) for token_id in ids) + stream.finish()
    assert text == TOKENIZER.decode(ids) == data.decode("utf-8", errors="replace")


def test_special_tokens_are_not_shown():
    stream = TextStream(TOKENIZER)
    ids = TOKENIZER.encode("<|im_start|>hi<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert "".join(stream.push(token_id) for token_id in ids) + stream.finish() == "hi"


@pytest.mark.parametrize(
    ("words", "stop", "pushes", "text", "stopped"),
    [
        (["one", " two", " three"], ["two"], ["one", " ", "", ""], "one ", True),
        (["STOP"], ["STOP"], ["", ""], "", True),  # first token
        (["a", "b", "STOP"], ["STOP"], ["a", "b", "", ""], "ab", True),  # last token
        (["ab ST", "OP cd"], ["STOP"], ["ab ", "", ""], "ab ", True),  # across tokens
        (["ab ST", "AR cd"], ["STOP"], ["ab ", "STAR cd", ""], "ab STAR cd", False),  # looked like one
        (["ab ST"], ["STOP"], ["ab ", "ST"], "ab ST", False),  # held back, given at the end
        (["aaa", "b"], ["aab"], ["a", "", ""], "a", True),  # the tail overlaps itself
        (["xaby"], ["by", "ab"], ["x", ""], "x", True),  # ends first wins
        (["xabc"], ["bc", "abc"], ["x", ""], "x", True),  # of two that end together the longer
        (["go. ", "\n\nStop"], ["\n\n"], ["go. ", "", ""], "go. ", True),
        (["漢", "字。"], ["字"], ["漢", "", ""], "漢", True),
    ],
)
def test_stop_strings(words, stop, pushes, text, stopped):
    stream, given = stream_of(words, stop)
    assert given == pushes
    assert (stream.text, stream.stopped) == (text, stopped)


def test_only_the_tail_that_could_stop_is_held_back():
    stream = TextStream(Words("x<", "y", "<|", "z"), ["<|end|>"])
    assert [stream.push(i) for i in range(4)] == ["x", "<y", "", "<|z"]


def test_nothing_comes_after_a_stop():
    stream = TextStream(Words("a STOP b", "c"), ["STOP"])
    assert [stream.push(0), stream.push(1), stream.finish()] == ["a ", "", ""]
    assert stream.text == "a "


def test_a_sentencepiece_text_loses_its_first_space_only():
    assert stream_of([" Hello", " world"], first_space=True)[0].text == "Hello world"
    assert stream_of([b"", " Hello", " world"], first_space=True)[0].text == "Hello world"


def brute_force(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: read characters until a stop string ends; of several the longest."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(
    st.text("ab漢", max_size=14),
    st.lists(st.text("ab漢", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), min_size=1),
)
def test_any_text_cut_anywhere_gives_the_defined_text(text, stops, cuts):
    data, words, sizes = text.encode(), [], itertools.cycle(cuts)
    while data:
        size = next(sizes)
        words.append(data[:size])
        data = data[size:]
    expected, stopped = brute_force(text, stops)
    stream, given = stream_of(words, stops)
    assert (stream.text, stream.stopped) == (expected, stopped)
    assert "".join(given) == expected
    for end in range(len(given) + 1):
        assert expected.startswith("".join(given[:end]))
