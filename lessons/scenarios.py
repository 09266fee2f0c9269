"""The workloads of the lessons, as Scenarios.

It decides which requests a lesson serves: prompts, lengths, arrival times and the limits that make the point visible on
a laptop (a run takes a few seconds at 20 to 60 tokens/s a stream). It never runs anything. Invariant: two Scenarios of
one preset differ in the policy alone, so their Runs may be set side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.text import Lang

Preset = Literal["abcd", "chat", "mixed", "one_long"]
BatchingPolicy = Literal["static", "chunked"]
PRESETS: tuple[Preset, ...] = ("abcd", "chat", "mixed", "one_long")

# What the sliders of the lesson "prefill and decode" may ask for.
PROMPT_TOKENS_RANGE = (4, 512)
OUTPUT_TOKENS_RANGE = (2, 200)

SUGGESTED_PROMPTS: dict[Lang, tuple[str, ...]] = {
    "en": (
        "Why is the sky blue? Answer in two or three sentences.",
        "Tell me a short story about a lighthouse keeper who is afraid of the dark.",
        "Explain to a ten-year-old what a computer's memory does.",
    ),
    "zh": (
        "天空为什么是蓝色的？请用两三句话回答。",
        "讲一个怕黑的灯塔看守人的小故事。",
        "向十岁的孩子解释：电脑的内存是做什么用的？",
    ),
}


@dataclass(frozen=True)
class _Ask:
    """One request of a preset in both languages. ``max_tokens`` is exact when ``exact`` is set (EOS is ignored)."""

    request_id: str
    max_tokens: int
    en: str
    zh: str
    arrival_s: float = 0.0
    exact: bool = True

    def spec(self, lang: Lang) -> RequestSpec:
        return RequestSpec(
            request_id=self.request_id,
            arrival_s=self.arrival_s,
            prompt=self.zh if lang == "zh" else self.en,
            chat=True,
            max_tokens=self.max_tokens,
            ignore_eos=self.exact,
        )


# The source lesson's example. D comes late, when A, B and C hold all three places.
_ABCD = (
    _Ask("A", 50, "Why is the sky blue? Answer in two sentences.", "天空为什么是蓝色的？用两句话回答。"),
    _Ask("B", 10, "List the first ten prime numbers.", "列出前十个质数。"),
    _Ask("C", 80, "Tell a story about a lighthouse keeper.", "讲一个灯塔看守人的故事。"),
    _Ask("D", 30, "Give three tips for learning to swim.", "学游泳有哪三条建议？", arrival_s=0.1),
)

# Users come one after another and stop when they have said what they had to say: lengths are the model's own.
_CHAT = (
    _Ask("r1", 48, "What is the capital of France?", "法国的首都是哪里？", 0.0, exact=False),
    _Ask("r2", 48, "Write a two-line poem about autumn.", "写两句关于秋天的诗。", 0.1, exact=False),
    _Ask("r3", 48, "How do I boil an egg?", "怎么煮鸡蛋？", 0.3, exact=False),
    _Ask("r4", 48, "Translate 'good morning' into Spanish.", "“早上好”用英语怎么说？", 0.5, exact=False),
    _Ask("r5", 48, "Why do cats purr?", "猫为什么会打呼噜？", 0.8, exact=False),
    _Ask("r6", 48, "What is 12 times 12?", "十二乘以十二等于多少？", 1.0, exact=False),
    _Ask("r7", 48, "Suggest a name for a small bakery.", "给一家小面包店起个名字。", 1.3, exact=False),
    _Ask("r8", 48, "What does a heart do?", "心脏有什么作用？", 1.6, exact=False),
)

_LONG_EN = "Write a letter to a friend about a week in the mountains."
_LONG_ZH = "给朋友写一封信，讲讲在山里度过的一周。"
_SHORT = (
    ("Name a fruit.", "说一种水果。"),
    ("What is 7 + 5?", "七加五等于几？"),
    ("Name a primary colour.", "说出一种三原色。"),
    ("Which animal barks?", "哪种动物会汪汪叫？"),
    ("What comes after Monday?", "星期一之后是星期几？"),
    ("Name a planet.", "说出一颗行星。"),
    ("What is the opposite of hot?", "“热”的反义词是什么？"),
    ("How many legs has a spider?", "蜘蛛有几条腿？"),
    ("Name a season.", "说一个季节。"),
    ("What do bees make?", "蜜蜂酿什么？"),
    ("Name a musical instrument.", "说一种乐器。"),
)


def _long_and_short(lengths: tuple[int, ...]) -> tuple[_Ask, ...]:
    """One request per length, all at once; the long prompt for the longest. Pure."""
    short = iter(_SHORT)
    asks = []
    for index, num_tokens in enumerate(lengths, start=1):
        en, zh = (_LONG_EN, _LONG_ZH) if num_tokens == max(lengths) else next(short)
        asks.append(_Ask(f"r{index}", num_tokens, en, zh))
    return tuple(asks)


# In ``mixed`` every static batch of four holds one long request, so nearly every row idles nearly all the time; in
# ``one_long`` only the first batch does. The first shows what throughput can gain, the second what waiting costs.
_WORKLOADS: dict[Preset, tuple[int, tuple[_Ask, ...]]] = {
    "abcd": (3, _ABCD),
    "chat": (4, _CHAT),
    "mixed": (4, _long_and_short((64, 8, 8, 8, 64, 8, 8, 8, 64, 8, 8, 8))),
    "one_long": (4, _long_and_short((96, 8, 8, 8, 8, 8, 8, 8))),
}


def prefill_decode(
    prompt: str,
    num_prompt_tokens: int | None = None,
    max_tokens: int = 64,
    dtype: DType = "float32",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """One request alone on the device; its prompt is computed in one step.

    Without ``num_prompt_tokens`` the prompt is a chat message and the answer may end early, at EOS. With it the prompt
    is fitted to exactly that many tokens, and exactly ``max_tokens`` are generated, so that lengths can be compared.
    Raises: ScenarioError.
    """
    fitted = num_prompt_tokens is not None
    request = {
        "request_id": "you",
        "prompt": prompt,
        "num_prompt_tokens": num_prompt_tokens,
        "chat": not fitted,
        "max_tokens": max_tokens,
        "ignore_eos": fitted,
    }
    return Scenario.parse(
        {
            "name": "prefill_decode",
            "model": model,
            "policy": "chunked",
            "limits": {"max_requests": 1, "max_batch_tokens": 1024, "num_blocks": 96},
            "dtype": dtype,
            "requests": [request],
        }
    )


def batching(
    preset: Preset,
    policy: BatchingPolicy,
    dtype: DType = "float32",
    *,
    lang: Lang = "en",
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The workload ``preset`` under ``policy``; ``lang`` chooses the language of the prompts. Raises: ScenarioError."""
    if preset not in _WORKLOADS:
        raise ScenarioError(f"preset is {str(preset)[:40]!r}; allowed: {', '.join(PRESETS)}", "preset")
    if policy not in ("static", "chunked"):
        raise ScenarioError(f"policy is {str(policy)[:40]!r}; allowed: static, chunked", "policy")
    max_requests, asks = _WORKLOADS[preset]
    return Scenario(
        name=f"batching/{preset}",
        model=model,
        policy=policy,
        limits=Limits(max_requests=max_requests, max_batch_tokens=384, num_blocks=96),
        dtype=dtype,
        requests=tuple(ask.spec(lang) for ask in asks),
    )


def preset_of(scenario: dict) -> str | None:
    """The preset that a Run's scenario was made from, or None for one of another origin. Pure."""
    lesson_id, _, preset = str(scenario.get("name", "")).partition("/")
    return preset if lesson_id == "batching" and preset in PRESETS else None
