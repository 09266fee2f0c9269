"""The OpenAI request bodies in our terms: what is accepted, what is refused and with which sentence.

Pure functions of the decoded body; no HTTP, no torch. A field that would change the answer and is not supported is
refused, never ignored; fields that cannot change it (``user``, ``metadata``, ...) pass. Defaults are OpenAI's where a
lab can afford them: temperature 1, top_p 1, 16 tokens for a completion. A chat answer without a limit gets 512 tokens,
because one answer holds the device and learners wait behind it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from engine.lab.scenario import MAX_TOKENS_PER_REQUEST
from engine.server.wire import ApiError

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 512
MAX_STOP_STRINGS = 4
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# field -> values that ask for nothing; any other value asks for something this engine does not do
_REFUSED_UNLESS: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "audio": (None,),
    "prediction": (None,),
    "modalities": (None, ["text"]),
}


@dataclass(frozen=True)
class Ask:
    """One valid request before tokenization. Exactly one of ``text``, ``token_ids`` and ``messages`` is set."""

    model: str
    text: str | None
    token_ids: list[int] | None
    messages: list[dict[str, str]] | None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool  # not OpenAI's: vLLM and SGLang know it, and a load of known length needs it
    stream: bool
    include_usage: bool

    @property
    def is_chat(self) -> bool:
        return self.messages is not None


def parse(body: dict, *, chat: bool) -> Ask:
    """Validate a body of /v1/completions or /v1/chat/completions. Pure. Raises: ApiError(400)."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _bad("model", f"model is {_shown(model)}; name the model, GET /v1/models lists it")
    for name, harmless in _REFUSED_UNLESS.items():
        value = body.get(name)
        # 0 and false are equal in Python, yet logprobs=0 asks for log-probabilities and logprobs=false does not.
        if not any(value == nothing and isinstance(value, bool) == isinstance(nothing, bool) for nothing in harmless):
            allowed = " or ".join(_shown(v) for v in harmless if v is not None) or "leaving it out"
            raise _bad(name, f"{name} is {_shown(value)}; this engine does not support it, allowed: {allowed}")
    text, token_ids = (None, None) if chat else _prompt(body.get("prompt"))
    stream = _boolean(body, "stream")
    return Ask(
        model=model,
        text=text,
        token_ids=token_ids,
        messages=_messages(body.get("messages")) if chat else None,
        max_tokens=_max_tokens(body, chat),
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 0.0, 1.0, above=True),
        top_k=_whole(body, "top_k", -1, 1_000_000, default=-1),
        seed=_whole(body, "seed", 0, 2**63 - 1),
        stop=_stop(body.get("stop")),
        ignore_eos=_boolean(body, "ignore_eos"),
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream),
    )


def _prompt(value: object) -> tuple[str | None, list[int] | None]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, list) and len(value) > 1 and all(isinstance(part, (str, list)) for part in value):
        raise _bad("prompt", f"prompt holds {len(value)} prompts; send one per request")
    if isinstance(value, str):
        if not value:
            raise _bad("prompt", "prompt is empty; write at least one character")
        return value, None
    if isinstance(value, list) and value and all(type(token_id) is int for token_id in value):
        return None, value
    raise _bad("prompt", f"prompt is {_shown(value)}; send a text or a list of token ids")


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _bad("messages", f"messages is {_shown(value)}; send a list of at least one message")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(name: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _bad(name, f"{name} is {_shown(message)}; send an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _bad(f"{name}.role", f"{name}.role is {_shown(role)}; allowed: {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise _bad(f"{name}.content", f"{name}.content holds a part that is not text; this model reads text only")
        content = "".join(texts)
    if not isinstance(content, str):
        raise _bad(f"{name}.content", f"{name}.content is {_shown(content)}; send a text")
    return {"role": ROLES[role], "content": content}


def _max_tokens(body: dict, chat: bool) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    for name in names:
        value = _whole(body, name, 1, MAX_TOKENS_PER_REQUEST)
        if value is not None:
            return value
    return None


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
        raise _bad("stop", f"stop is {_shown(value)}; send a string or a list of at most {MAX_STOP_STRINGS} strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise _bad("stop", f"stop holds {len(strings)} strings; allowed: at most {MAX_STOP_STRINGS}")
    if not all(strings):
        raise _bad("stop", "stop holds an empty string; leave it out")
    return tuple(strings)


def _include_usage(value: object, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise _bad("stream_options", f"stream_options is {_shown(value)}; send an object")
    if not stream:
        raise _bad("stream_options", "stream_options is set but stream is not; set stream to true or leave it out")
    return _boolean(value, "include_usage")


def _boolean(body: dict, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(name, f"{name} is {_shown(value)}; allowed: true or false")
    return bool(value)


def _whole(body: dict, name: str, low: int, high: int, default: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise _bad(name, f"{name} is {_shown(value)}; allowed: a whole number from {low} to {high}")
    return value


def _number(body: dict, name: str, default: float, low: float, high: float, *, above: bool = False) -> float:
    value = body.get(name)
    if value is None:
        return default
    good = (
        type(value) in (int, float) and math.isfinite(value) and low <= value <= high and not (above and value == low)
    )
    if not good:
        edge = "more than " if above else ""
        raise _bad(name, f"{name} is {_shown(value)}; allowed: a number from {edge}{low:g} to {high:g}")
    return float(value)


def _bad(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value")


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
