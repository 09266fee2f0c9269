"""Text to token ids and back, for completion and for chat; one BOS where the model has one, never two.

Decoding is defined on bytes: every token stands for fixed bytes and special tokens for none, so that a text can be
decoded token by token and always equals a prefix of the whole (``engine.runtime.text`` relies on it). Chat templates
run in Jinja's sandbox. Files are those of Hugging Face tokenizers; transformers itself is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.model.spec import ModelError

SPACE_MARK = "\u2581"  # how SentencePiece vocabularies write a space


class PromptError(ValueError):
    """A prompt or a conversation that cannot be encoded. The message is one sentence."""


class ChatTokenizer:
    """A model's tokenizer with its chat template. Immutable after construction; safe to share between engines."""

    def __init__(self, tokenizer_json: str, config: dict[str, Any]) -> None:
        """``tokenizer_json``: content of tokenizer.json; ``config``: of tokenizer_config.json. Raises: ModelError."""
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
            decoder = json.loads(tokenizer_json).get("decoder")
        except Exception as error:  # the tokenizers package raises bare Exception
            raise ModelError(f"tokenizer.json cannot be read ({error}); fetch or convert the model again") from None
        kinds = _decoder_kinds(decoder)
        self._is_byte_level = "ByteLevel" in kinds
        if not self._is_byte_level and not kinds & {"Metaspace", "ByteFallback"}:
            raise ModelError(
                f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported; "
                "supported: byte-level BPE and SentencePiece"
            )
        self.strips_first_space = not self._is_byte_level and bool(kinds & {"Strip", "Metaspace"})
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._byte_of_character = byte_of_character()
        self._chat_template = _template_text(config.get("chat_template"))
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        self.special_ids = frozenset(index for index, token in self._added.items() if token.special)
        self.bos_id = None if self.bos_token is None else self._tokenizer.token_to_id(self.bos_token)
        adds = self._tokenizer.encode("", add_special_tokens=True).ids
        self._adds_bos = self.bos_id is not None and self.bos_id in adds

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTokenizer:
        """Read tokenizer.json and what stands beside it. Raises: ModelError."""
        path = folder / "tokenizer.json"
        try:
            tokenizer_json = path.read_text(encoding="utf-8")
            config = _read_json(folder / "tokenizer_config.json")
            template = folder / "chat_template.jinja"
            if template.exists():
                config["chat_template"] = template.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read the tokenizer in {folder}: {error}; it needs a tokenizer.json") from None
        return cls(tokenizer_json, config)

    # ---- encoding ----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Token ids of a text to be continued, with BOS first where the model has one. Pure."""
        ids = self._tokenizer.encode(text, add_special_tokens=True).ids
        while self._adds_bos and len(ids) > 1 and ids[0] == ids[1] == self.bos_id:
            ids = ids[1:]  # the text began with BOS already
        return ids

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation up to where the assistant answers. Pure. Raises: PromptError.

        messages: ``{"role": ..., "content": ...}`` in order.
        """
        ids = self._tokenizer.encode(self.render_chat(messages), add_special_tokens=False).ids
        if self._adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids = [self.bos_id, *ids]
        return ids

    def render_chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model was trained to see it. Pure. Raises: PromptError."""
        if self._chat_template is None:
            raise PromptError("this model has no chat template; send the text as a plain prompt instead")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise PromptError("each message needs a role and a content, both texts")
        if not messages:
            raise PromptError("the conversation is empty; send at least one message")
        return _render(
            self._chat_template,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token or "",
            eos_token=self.eos_token or "",
        )

    # ---- decoding ----------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for: none for a special token or an id without a token. Pure."""
        if token_id in self.special_ids:
            return b""
        return self._plain_bytes(token_id)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of the tokens; bytes that are no UTF-8 become U+FFFD. Special tokens are not shown. Pure."""
        data = b"".join(map(self.token_bytes, token_ids))
        if self.strips_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def piece(self, token_id: int) -> str:
        """One token for people to look at: special tokens by name, loose bytes as <0xNN>. Pure."""
        if token_id in self._added:
            return self._added[token_id].content
        data = self._plain_bytes(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(chr(byte) if 32 <= byte < 127 else f"<0x{byte:02X}>" for byte in data)

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a token; a model's own vocabulary may be padded beyond it."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact text, None if there is none. Pure."""
        return self._tokenizer.token_to_id(token)

    def chat_end_id(self) -> int | None:
        """The special token the chat template writes after an assistant's answer, if it writes one. Pure."""
        answer = "\u2402answer\u2402"
        try:
            text = self.render_chat(
                [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}],
                add_generation_prompt=False,
            )
        except PromptError:
            return None
        after = self._tokenizer.encode(text.partition(answer)[2].lstrip(), add_special_tokens=False).ids
        return after[0] if after and after[0] in self.special_ids else None

    def _plain_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added:
            return token.encode("utf-8")
        if self._is_byte_level:
            table = self._byte_of_character
            if all(character in table for character in token):
                return bytes(table[character] for character in token)
            return token.encode("utf-8")
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace(SPACE_MARK, " ").encode("utf-8")


def byte_of_character() -> dict[str, int]:
    """The printable stand-in of every byte in GPT-2's byte-level vocabularies, reversed.

    Bytes that are printable stand for themselves; the others were given the characters from U+0100 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if not decoder:
        return set()
    nested = [_decoder_kinds(inner) for inner in decoder.get("decoders", [])]
    kind = decoder.get("type", "")
    if kind == "Metaspace" and decoder.get("prepend_scheme") == "never":
        kind = "ByteFallback"  # decodes the same way but keeps the first space
    return set().union({kind}, *nested)


def _token_text(token: str | dict[str, Any] | None) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _template_text(template: str | list[dict[str, str]] | None) -> str | None:
    """Some models ship several named templates; the one called default is for chat."""
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _render(template: str, **values: Any) -> str:
    """Run a chat template in Jinja's sandbox, with the helpers templates expect. Raises: PromptError."""
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    try:
        return environment.from_string(template).render(**values)
    except TemplateError as error:
        raise PromptError(f"the model's chat template refuses this conversation: {error}") from None
