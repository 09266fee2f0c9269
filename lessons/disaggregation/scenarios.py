"""The workload of the disaggregation lesson: three chats that decode, and long prompts that arrive among them.

It decides sizes that two slow cores get through in a quarter of a minute. It never runs anything. Invariant: the two
parts differ in nothing but how the engine is divided, so both have the same threads, blocks and requests in all.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, Disaggregated, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

ROLES = ("shared", "disaggregated")
LONGS = (512, 256, 768)  # tokens of a long prompt
BUDGETS = (1024, 128)  # tokens of a step: a long prompt whole, or in pieces
LINKS = (0, 100, 20)  # 10^6 bytes per second between the workers; 0: as fast as this machine copies
CHATS = ("A", "B", "C")
LATE = ("L1", "L2", "L3")
CHAT_PROMPT_TOKENS = 24
CHAT_TOKENS = 90
LATE_TOKENS = 8
FIRST_LATE_S, APART_S = 0.5, 0.5
NUM_BLOCKS = 352

_CHAT: dict[Lang, str] = {
    "en": "Tell me a story about the sea and the people who live by it.",
    "zh": "讲一个关于大海和海边人家的故事。",
}
_LONG: dict[Lang, str] = {
    "en": "The keeper of the lighthouse wrote down every hour what he saw: ships, weather, birds, and the light. ",
    "zh": "灯塔看守人每过一小时就记下他看到的东西：船、天气、鸟，还有灯光。",
}


def scenario(
    role: str,
    long: int = LONGS[0],
    budget: int = BUDGETS[0],
    link: int = LINKS[0],
    lang: Lang = "en",
    dtype: DType = "float32",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The part ``role``: one engine for everything, or two workers. Raises: ScenarioError."""
    for name, value, allowed in (
        ("role", role, ROLES),
        ("long", long, LONGS),
        ("budget", budget, BUDGETS),
        ("link", link, LINKS),
    ):
        if value not in allowed:
            listed = ", ".join(sorted(map(str, allowed)))
            raise ScenarioError(f"{name} is {str(value)[:40]!r}; allowed: {listed}", name)
    return Scenario(
        name=f"disaggregation/{role}",
        model=model,
        policy="chunked",
        limits=Limits(max_requests=8, max_batch_tokens=budget, num_blocks=NUM_BLOCKS),
        disaggregated=Disaggregated(link_mb_per_s=float(link) if link else None) if role == "disaggregated" else None,
        dtype=dtype,
        requests=(*_chats(lang), *_late(long, lang)),
    )


def _chats(lang: Lang) -> list[RequestSpec]:
    return [
        RequestSpec(
            request_id=name,
            prompt=_CHAT[lang],
            num_prompt_tokens=CHAT_PROMPT_TOKENS,
            max_tokens=CHAT_TOKENS,
            ignore_eos=True,
        )
        for name in CHATS
    ]


def _late(long: int, lang: Lang) -> list[RequestSpec]:
    return [
        RequestSpec(
            request_id=name,
            arrival_s=FIRST_LATE_S + index * APART_S,
            prompt=_LONG[lang],
            num_prompt_tokens=long,
            max_tokens=LATE_TOKENS,
            ignore_eos=True,
        )
        for index, name in enumerate(LATE)
    ]


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
