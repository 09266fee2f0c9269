"""Tokenizer and chat: exact bytes, one BOS, templates in a sandbox, a sentence for what cannot be encoded."""

from __future__ import annotations

import json

import pytest

from engine.model.gguf_tokenizer import to_json, tokenizer_from_gguf
from engine.model.spec import ModelError
from engine.model.tiny import tiny_tokenizer
from engine.model.tokenizer import ChatTokenizer, PromptError, byte_of_character

TEXTS = ["", " ", "hello world", "a  b\n\n\tc", "漢字 和 emoji 👩‍👩‍👧", "naïve\u0301 ½ Ⅷ", "\x00\x7f\u2028"]


def llama3_like(template: str | None = None, adds_bos: bool = True) -> ChatTokenizer:
    """Byte-level tokens after two special ones, with a BOS put first by the tokenizer itself."""
    characters = [c for c, _ in sorted(byte_of_character().items(), key=lambda item: item[1])]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": ["<|begin|>", "<|eot|>", *characters],
        "tokenizer.ggml.token_type": [3, 3] + [1] * 256,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": adds_bos,
        "tokenizer.chat_template": template,
    }
    tokenizer, config = tokenizer_from_gguf(fields)
    return ChatTokenizer(to_json(tokenizer), config)


def sentencepiece_like() -> ChatTokenizer:
    """As Llama 2's: a space mark, byte fallback, and a decoder that drops the first space."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for token in ("\u2581", "H", "i", "\u2581H", "\u2581Hi"):
        vocab[token] = len(vocab)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t, **special} for t, i in list(vocab.items())[:3]],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [["\u2581", "H"], ["\u2581H", "i"]],
        },
    }
    return ChatTokenizer(json.dumps(tokenizer), {"bos_token": {"content": "<s>"}, "eos_token": "</s>"})


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_the_text_back(text):
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_have_a_name_but_no_text():
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode("<|im_end|>x") == [2, tokenizer.token_id("x")]
    assert tokenizer.piece(2) == "<|im_end|>"
    assert tokenizer.decode([2, tokenizer.token_id("x"), 2]) == "x"


def test_pieces_show_loose_bytes():
    tokenizer = tiny_tokenizer()
    assert [tokenizer.piece(i) for i in tokenizer.encode("漢 a")] == ["<0xE6>", "<0xBC>", "<0xA2>", " ", "a"]


def test_ids_without_a_token_have_no_text():
    tokenizer = tiny_tokenizer()
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode([259, 10**6]) == tokenizer.piece(10**6) == ""


def test_sentencepiece_text_and_bytes():
    tokenizer = sentencepiece_like()
    ids = tokenizer.encode("Hi Hi漢")
    assert [tokenizer.piece(i) for i in ids] == [" Hi", " Hi", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert tokenizer.decode(ids) == "Hi Hi漢" == tokenizer._tokenizer.decode(ids)
    assert (tokenizer.bos_token, tokenizer.bos_id) == ("<s>", 1)


def test_an_unknown_kind_of_tokenizer_is_refused():
    with pytest.raises(ModelError, match="decoder"):
        ChatTokenizer(json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}), {})
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        ChatTokenizer("{}", {})


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_a_chat_has_exactly_one_bos(template):
    ids = llama3_like(template).encode_chat(MESSAGES)
    assert ids.count(0) == 1
    assert ids[0] == 0


def test_a_text_has_exactly_one_bos():
    tokenizer = llama3_like()
    assert tokenizer.encode("Hi") == tokenizer.encode("<|begin|>Hi") == [0, *tokenizer.encode("Hi")[1:]]
    assert tokenizer.encode("Hi").count(0) == 1
    assert tokenizer.encode("") == [0]


def test_no_bos_where_the_model_has_none():
    assert 0 not in llama3_like("{{ messages[0].content }}", adds_bos=False).encode_chat(MESSAGES)
    assert tiny_tokenizer().encode("Hi") == [tiny_tokenizer().token_id(c) for c in "Hi"]


def test_chat_end_token_is_read_off_the_template():
    assert tiny_tokenizer().chat_end_id() == 2
    assert llama3_like("{% for m in messages %}{{ m.content }}<|eot|>{% endfor %}").chat_end_id() == 1
    assert llama3_like("{% for m in messages %}{{ m.content }} {% endfor %}").chat_end_id() is None
    assert llama3_like().chat_end_id() is None


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (None, MESSAGES, "no chat template"),
        ("{{ messages }}", [], "empty"),
        ("{{ messages }}", [{"role": "user"}], "a role and a content"),
        ("{{ messages }}", [{"role": "user", "content": ["x"]}], "both texts"),
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "refuses"),
        ("{% if %}", MESSAGES, "refuses"),
    ],
)
def test_what_cannot_be_rendered_gets_a_sentence(template, messages, words):
    with pytest.raises(PromptError, match=words):
        llama3_like(template).encode_chat(messages)


def test_templates_may_use_the_usual_helpers():
    template = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    text = llama3_like(template + "{{ strftime_now('%Y')|length }}").render_chat([*MESSAGES, *MESSAGES])
    assert text == '{"role": "user", "content": "Hi"}4'


def test_a_folder_with_a_template_of_its_own(tmp_path):
    tokenizer, config = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["<s>", "H", "i"],
            "tokenizer.ggml.token_type": [3, 1, 1],
            "tokenizer.ggml.merges": [],
        }
    )
    (tmp_path / "tokenizer.json").write_text(to_json(tokenizer))
    assert ChatTokenizer.from_folder(tmp_path).encode("Hi") == [1, 2]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "chat_template": [{"name": "tool_use", "template": "t"}]})
    )
    with pytest.raises(PromptError):
        ChatTokenizer.from_folder(tmp_path).encode_chat(MESSAGES)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert ChatTokenizer.from_folder(tmp_path).encode_chat(MESSAGES) == [1, 2]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"needs a tokenizer\.json"):
        ChatTokenizer.from_folder(tmp_path)


def test_a_gguf_tokenizer_we_do_not_know_is_refused():
    fields = {"tokenizer.ggml.model": "llama"}
    with pytest.raises(ModelError, match="'llama'"):
        tokenizer_from_gguf(fields)
    fields = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [], "tokenizer.ggml.token_type": []}
    with pytest.raises(ModelError, match="'tekken'"):
        tokenizer_from_gguf({**fields, "tokenizer.ggml.merges": [], "tokenizer.ggml.pre": "tekken"})
