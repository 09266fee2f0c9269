"""The workload of the scheduling ladder, and the five policies that serve it.

It decides requests and limits under which each rung shows what it mends: three chats with long answers among nine short
questions to three assistants, whose instructions make a shared prefix, and few places, little memory, a small budget.
All requests are there from the start, so the schedule of every rung is the same on every device; only its seconds are
not. It never runs anything. Invariant: the parts differ in the policy alone.
"""

from __future__ import annotations

from types import MappingProxyType

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, PolicyName, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

RUNGS: tuple[PolicyName, ...] = ("static", "orca", "paged", "chunked", "cache_aware")
BUDGETS = (32, 64, 128)  # max_batch_tokens
POOLS = (23, 46)  # num_blocks: scarce, ample
PLACES = 4
CHAT_PROMPT, CHAT_TOKENS = 20, 40
QUESTION_PROMPT, QUESTION_TOKENS = 108, 12
# Six blocks of the instructions are shared; the questions differ. Chats are C1 to C3, the assistants S, L and T.
ORDER = ("C1", "S1", "L1", "T1", "C2", "S2", "L2", "T2", "C3", "S3", "L3", "T3")

_CHATS: dict[Lang, tuple[str, ...]] = {
    "en": (
        "Tell me a story about a lighthouse keeper and the ship that he saw one night, when the sea was calm.",
        "Write a letter to a friend about a week in the mountains, with much rain and with one clear day.",
        "Explain to a child why the moon seems to change its shape from one night to the next, in steps.",
    ),
    "zh": ("讲一个灯塔看守人的故事。", "给朋友写信，讲讲山里的一周。", "讲讲月亮为什么会变圆。"),
}
_INSTRUCTIONS: dict[Lang, dict[str, str]] = {
    "en": {
        "S": "You answer for a bicycle shop. It is open from nine to six, on Saturdays until two. A repair takes three "
        "days and a new tyre one. Parts that are in the house can be fetched at once; others come within a week. We "
        "lend a bicycle for the time of a repair. Bicycles are sold with two years of care, and the first service is "
        "free. Be friendly and short, and never promise a day or a price.",
        "L": "You answer for a town library. A card costs nothing for children and ten a year for others. Books may be "
        "kept for four weeks, films for one, and both once longer if nobody waits. Whoever brings a book late pays one "
        "a week. There are quiet rooms on the second floor and a room for groups that can be reserved. Stories are "
        "read aloud on Thursdays at four. Be friendly and short, or send them to the desk on the ground floor.",
        "T": "You answer for a railway. Trains to the coast leave every hour at ten past, and to the mountains every "
        "two hours at half past. A ticket is valid for one day and one direction. Children under six travel free, and "
        "older ones for half. A bicycle needs a ticket of its own. Whoever arrives an hour late gets a quarter back, "
        "after two hours half. Seats can be reserved until the evening before. Be friendly and short, and never guess.",
    },
    "zh": {
        "S": "你为自行车店回答问题。九点开门，六点关门，星期天休息。修车要三天，换轮胎一天。"
        "有的零件马上能取。修车时可以借车。回答要简短。",
        "L": "你为图书馆回答问题。儿童办卡免费，大人每年十元。书借四个星期，影片一个星期。"
        "晚还一星期一元。二楼安静。回答要简短。",
        "T": "你为铁路回答问题。去海边的车每小时十分开。一张票管一天。六岁以下免费，大孩子半价。"
        "自行车另买票。晚到一小时退一半。",
    },
}
_QUESTIONS: dict[Lang, dict[str, tuple[str, ...]]] = {
    "en": {
        "S": (
            " Question: Is a tyre done by Friday?",
            " Question: Do you lend bicycles too?",
            " Question: What does a service cost?",
        ),
        "L": (
            " Question: How long may I keep films?",
            " Question: Where can our group meet?",
            " Question: What if a book is late?",
        ),
        "T": (
            " Question: When does the coast train go?",
            " Question: May I take my bicycle?",
            " Question: My train was two hours late.",
        ),
    },
    "zh": {
        "S": ("能换轮胎吗？", "能借车吗？", "几点关门？"),
        "L": ("影片借多久？", "哪里安静？", "晚还怎么办？"),
        "T": ("去海边几点？", "能带车吗？", "车晚了怎么办？"),
    },
}
PREVIOUS = MappingProxyType(dict(zip(RUNGS[1:], RUNGS, strict=False)))  # the rung below each


def rung(
    policy: PolicyName,
    budget: int = 64,
    num_blocks: int = 23,
    dtype: DType = "float32",
    lang: Lang = "en",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The workload under one policy. Raises: ScenarioError."""
    if policy not in RUNGS:
        raise ScenarioError(f"policy is {policy[:40]!r}; allowed: {', '.join(RUNGS)}", "policy")
    if budget not in BUDGETS:
        raise ScenarioError(f"budget is {budget}; allowed: {', '.join(map(str, BUDGETS))}", "budget")
    if num_blocks not in POOLS:
        raise ScenarioError(f"num_blocks is {num_blocks}; allowed: {', '.join(map(str, POOLS))}", "num_blocks")
    return Scenario(
        name=f"scheduling_ladder/{policy}",
        model=model,
        policy=policy,
        limits=Limits(max_requests=PLACES, max_batch_tokens=budget, num_blocks=num_blocks, prefix_cache="radix"),
        dtype=dtype,
        requests=tuple(_request(name, lang) for name in ORDER),
    )


def _request(name: str, lang: Lang) -> RequestSpec:
    kind, index = name[0], int(name[1:]) - 1
    if kind == "C":
        prompt, num_prompt_tokens, max_tokens = _CHATS[lang][index], CHAT_PROMPT, CHAT_TOKENS
    else:
        prompt = _INSTRUCTIONS[lang][kind] + _QUESTIONS[lang][kind][index]
        num_prompt_tokens, max_tokens = QUESTION_PROMPT, QUESTION_TOKENS
    return RequestSpec(
        request_id=name, prompt=prompt, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens, ignore_eos=True
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(policy, rung(policy, lang=lang)) for policy in RUNGS]
