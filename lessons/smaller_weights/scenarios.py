"""The workloads of the lesson on smaller weights: the same requests with weights of 16, 8 and 4 bits.

It decides that each form answers one request alone (its decode reads the weights for one token) and eight together
(its decode reads them for eight), that all forms get the same texts, and that the quantized ones are compared with the
16-bit one logit by logit. Everything but the weights is bfloat16 in all of them. It never runs anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.scenario import DEFAULT_MODEL, Limits, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

FORMS: Mapping[str, str | None] = {"bf16": None, "int8": "int8", "int4": "int4"}
SIZES = {"one": 1, "many": 8}
ROLES = tuple(f"{form}_{size}" for form in FORMS for size in SIZES)
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 48
MANY_PROMPT_TOKENS = 16
MANY_OUTPUT_TOKENS = 20
NUM_BLOCKS = 64

PROMPTS: Mapping[Lang, tuple[str, ...]] = {
    "en": (
        "Explain to a friend why a suitcase that is packed more tightly is quicker to carry up the stairs, and what "
        "may suffer on the way. Begin with the reason, give one example from daily life, end with a piece of advice.",
        "Write a short story about a map that was copied again and again by hand, until one day a traveller noticed "
        "that a river was missing. Tell who noticed it, what happened next, and what the map makers learned from it.",
    ),
    "zh": (
        "向一位朋友解释：行李箱装得更紧，搬上楼为什么更快，路上又可能损坏什么。先讲道理，再举一个生活里的例子，最后给一条建议，"
        "说得具体一些，不要太长。",
        "写一个小故事：一张地图被人一遍又一遍地手抄，直到有一天，一位旅人发现少了一条河。讲讲是谁发现的，后来发生了什么，"
        "画地图的人从中学到了什么。",
    ),
}


def scenario(role: str, text: int = 0, lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """The part ``role``, a form and a size, with the text of that number. Raises: ScenarioError."""
    if role not in ROLES:
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join(ROLES)}", "role")
    if not 0 <= text < len(PROMPTS[lang]):
        raise ScenarioError(f"text is {text}; allowed: 0 to {len(PROMPTS[lang]) - 1}", "text")
    form, _, size = role.partition("_")
    alone = size == "one"
    requests = tuple(
        RequestSpec(
            request_id=f"r{index}",
            prompt=PROMPTS[lang][text],
            num_prompt_tokens=PROMPT_TOKENS if alone else MANY_PROMPT_TOKENS,
            max_tokens=OUTPUT_TOKENS if alone else MANY_OUTPUT_TOKENS,
            ignore_eos=True,
        )
        for index in range(1, SIZES[size] + 1)
    )
    return Scenario(
        name=f"smaller_weights/{role}",
        model=model,
        policy="chunked",
        limits=Limits(max_requests=SIZES["many"], max_batch_tokens=256, num_blocks=NUM_BLOCKS),
        dtype="bfloat16",
        weights=FORMS[form],
        probes=("quantization",) if alone and FORMS[form] else (),
        requests=requests,
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
