"""The workloads of the long-context lesson: the same requests from one memory, with keys and values of five kinds.

It decides that every kind gets a pool of the same number of bytes: the blocks a kind has follow from the size of its
block, which is known once the first part has told the shape of the model. Requests are served with their whole length
reserved, so the most that run at once are those that fit. It never runs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.lab.records import ModelInfo, Run
from engine.lab.scenario import DEFAULT_MODEL, Limits, RequestSpec, Scenario, ScenarioError
from lessons.facts_error import FactsError
from lessons.parts import Part
from lessons.text import Lang

BLOCK_SIZE = 16
OWN_BLOCKS = 36  # of the model as it is, with 16 bits: the memory that all kinds share
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 16
NUM_REQUESTS = 24
PROMPT_OUTPUT_TOKENS = 48
MAX_CHARACTERS = 160
MOST_AT_ONCE = 32
OWN = "mine"  # the request with the learner's prompt, the last one

_TEXT: Mapping[Lang, str] = {
    "en": "A library keeps a card for every book it has lent. The more readers come, the more cards lie on the desk, "
    "and the desk does not grow. Describe in a few sentences how the librarians could make room.",
    "zh": "图书馆每借出一本书，就留一张卡片。来的读者越多，桌上的卡片越多，而桌子不会变大。"
    "请用几句话讲讲，管理员可以怎样腾出地方。",
}
PROMPTS: Mapping[Lang, tuple[str, ...]] = {
    "en": ("Tell me three things about the moon, in short sentences.", "Why do we forget most of what we read?"),
    "zh": ("用短句讲三件关于月亮的事。", "为什么读过的东西大多会忘掉？"),
}


@dataclass(frozen=True)
class Kind:
    """How keys and values are kept. ``heads``: all (as many as query heads), own, or one."""

    heads: Literal["all", "own", "one"]
    bits: int

    def num_kv_heads(self, model: ModelInfo) -> int:
        return {"all": model.num_heads, "own": model.num_kv_heads, "one": 1}[self.heads]


KINDS: Mapping[str, Kind] = {
    "own16": Kind("own", 16),
    "mha16": Kind("all", 16),
    "mqa16": Kind("one", 16),
    "own8": Kind("own", 8),
    "own4": Kind("own", 4),
}
ROLES = tuple(KINDS)
_KV_DTYPES = {16: None, 8: "int8", 4: "int4"}


def block_bytes(model: ModelInfo, kind: Kind) -> int:
    """Bytes of one block of this kind in all layers, scales included. Pure.

    8 bits: one 16-bit scale for each group; 4 bits: a scale and a minimum. Groups are the channels of the keys and the
    tokens of the values (``engine.runtime.kv_quant``, which a test holds this to).
    """
    heads, size = kind.num_kv_heads(model), model.head_dim
    codes = 2 * BLOCK_SIZE * heads * size * kind.bits // 8
    groups = heads * size + BLOCK_SIZE * heads
    scales = 0 if kind.bits == 16 else groups * (1 if kind.bits == 8 else 2) * 2
    return model.num_layers * (codes + scales)


def num_blocks(model: ModelInfo, kind: Kind) -> int:
    """Blocks of this kind that the shared memory holds. Pure."""
    return OWN_BLOCKS * block_bytes(model, KINDS["own16"]) // block_bytes(model, kind)


def first(prompt: str, lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """The part ``own16``, which tells the shape of the model. Raises: ScenarioError."""
    return _scenario("own16", OWN_BLOCKS, None, prompt, lang, model)


def later(label: str, asked: Mapping[str, Any], runs: Mapping[str, Run]) -> Scenario:
    """Another kind, with the blocks that the memory of ``own16`` holds of it. Raises: FactsError, ScenarioError."""
    if label not in KINDS:
        raise ScenarioError(f"role is {label[:40]!r}; allowed: {', '.join(ROLES)}", "role")
    run = runs.get("own16")
    if run is None:
        raise FactsError("there is no run of the model as it is yet; run the whole study")
    model, kind = run.header.model, KINDS[label]
    heads = kind.num_kv_heads(model) if kind.heads != "own" else None
    name = str(run.header.scenario["model"])
    return _scenario(label, num_blocks(model, kind), heads, str(asked["prompt"]), asked["lang"], name)


def _scenario(role: str, blocks: int, num_kv_heads: int | None, prompt: str, lang: Lang, model: str) -> Scenario:
    if not prompt.strip() or len(prompt) > MAX_CHARACTERS:
        raise ScenarioError(f"the prompt has {len(prompt)} characters; allowed: 1 to {MAX_CHARACTERS}", "prompt")
    kind = KINDS[role]
    requests = [
        RequestSpec(
            request_id=f"r{index}",
            prompt=_TEXT[lang],
            num_prompt_tokens=PROMPT_TOKENS,
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
        )
        for index in range(1, NUM_REQUESTS + 1)
    ]
    if kind.heads == "own":
        requests.append(RequestSpec(request_id=OWN, prompt=prompt, max_tokens=PROMPT_OUTPUT_TOKENS, ignore_eos=True))
    return Scenario(
        name=f"long_context/{role}",
        model=model,
        policy="orca",
        limits=Limits(max_requests=MOST_AT_ONCE, max_batch_tokens=512, num_blocks=blocks),
        dtype="bfloat16",
        kv_dtype=_KV_DTYPES[kind.bits],
        block_size=BLOCK_SIZE,
        num_kv_heads=num_kv_heads,
        probes=("quantization",) if kind.bits < 16 else (),
        requests=tuple(requests),
    )


def parts(prompt: str, lang: Lang) -> list[Part]:
    """The whole study. Raises: ScenarioError for a prompt that is empty or too long."""
    asked = {"prompt": prompt, "lang": lang}
    return [Part("own16", first(prompt, lang)), *(Part(role, None, asked) for role in ROLES if role != "own16")]


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return parts(PROMPTS[lang][0], lang)
