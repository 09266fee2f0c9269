"""The workload of the PagedAttention lesson: a dozen questions to one assistant, served from one small pool three ways.

``orca`` reserves blocks for the longest answer that may come, ``paged`` hands them out when they are needed, ``shared``
is ``paged`` with equal beginnings kept once. Policy and prefix cache are all that differs, so the tokens are the same
and the pools may be set side by side. Answers end when the model says so: nobody knows their length beforehand.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

PARTS = ("orca", "paged", "shared")
BLOCK_SIZES: tuple[int, ...] = (8, 16, 64)
POOL_POSITIONS: tuple[int, ...] = (768, 1_024, 2_048)  # what the pool holds in all, however it is cut into blocks
LIMITS: tuple[int, ...] = (64, 128, 256)  # max_tokens of every request

_ASSISTANT: dict[Lang, str] = {
    "en": "You work at the desk of a small museum of clocks. Be friendly, and answer the visitor's question. Visitor: ",
    "zh": "你在一家小小的钟表博物馆当接待员，请友好地回答参观者的问题。参观者：",
}
_QUESTIONS: dict[Lang, tuple[str, ...]] = {
    "en": (
        "When do you open?",
        "Tell me the story of the pendulum clock.",
        "Do you sell coffee?",
        "Why do old clocks tick so loudly?",
        "May I take pictures?",
        "How was time measured before there were clocks? Explain it in detail.",
        "Where are the toilets?",
        "Recommend three clocks that I should not miss, and say why.",
        "Is there a lift?",
        "Who wound up the tower clocks, and how?",
        "How much is a ticket?",
        "What did sailors need a clock for? Explain it to a child.",
    ),
    "zh": (
        "你们几点开门？",
        "请讲讲摆钟的故事。",
        "这里卖咖啡吗？",
        "老式的钟走起来为什么那么响？",
        "可以拍照吗？",
        "没有钟的时候，人们怎样计时？请详细说说。",
        "洗手间在哪里？",
        "推荐三座不能错过的钟，并说明理由。",
        "有电梯吗？",
        "塔楼上的钟由谁来上弦，怎么上？",
        "门票多少钱？",
        "水手要钟做什么？请讲给孩子听。",
    ),
}
DEFAULT_BLOCK_SIZE, DEFAULT_POOL_POSITIONS, DEFAULT_LIMIT = 16, POOL_POSITIONS[0], 128
NUM_REQUESTS = len(_QUESTIONS["en"])


def museum(
    part: str,
    block_size: int = DEFAULT_BLOCK_SIZE,
    pool_positions: int = DEFAULT_POOL_POSITIONS,
    limit: int = DEFAULT_LIMIT,
    dtype: DType = "float32",
    *,
    lang: Lang = "en",
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """All requests at once, under one part's way with memory. Raises: ScenarioError."""
    if part not in PARTS:
        raise ScenarioError(f"part is {part[:40]!r}; allowed: {', '.join(PARTS)}", "part")
    return Scenario.parse(
        {
            "name": f"paged_attention/{part}",
            "model": model,
            "policy": "orca" if part == "orca" else "paged",
            "limits": {
                "max_requests": NUM_REQUESTS,  # memory is to be what stops them, not the number of places
                "max_batch_tokens": 256,
                "num_blocks": pool_positions // block_size,
                "prefix_cache": "hash" if part == "shared" else "none",
            },
            "dtype": dtype,
            "block_size": block_size,
            "requests": [
                {
                    "request_id": f"r{number}",
                    "prompt": _ASSISTANT[lang] + question,
                    "chat": True,
                    "max_tokens": limit,
                }
                for number, question in enumerate(_QUESTIONS[lang], start=1)
            ],
        }
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(part, museum(part, lang=lang)) for part in PARTS]
